from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pydantic
import pytest
from tests.tables import each

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.cli.demo import _failures, _show
from ackwise.plugin.demo.demoprocesses import HOSTS, Stock, find_host, judge_stock, stock_records
from ackwise.plugin.demo.demorun import OnSpark, Options, Played
from ackwise.plugin.demo.ledger import LedgerLine, LedgerReader, LedgerWriter
from ackwise.plugin.demo.scenario import (
    MAX_BATCH,
    MAX_RECONSUME_TIMES,
    DeadLetterSeen,
    DemoOutcome,
    Observations,
    PlannedFate,
    Scenario,
    judge,
    make_scenario,
)
from ackwise.plugin.demo.shop import PARTITIONS


class Order(pydantic.BaseModel):
    id: str
    cents: int
    outage: int
    stolen: bool


SCENARIO = make_scenario(4000, seed=7)


def perfect(scenario: Scenario) -> Observations:
    """Everything went as it shall: the first record of each key acts, the others are suppressed."""
    positions = [(number % 4, number // 4) for number in range(len(scenario.records))]
    ledger: list[LedgerLine] = []
    dead: list[DeadLetterSeen] = []
    for record, (partition, offset) in zip(scenario.records, positions, strict=True):
        if record.is_duplicate:
            continue
        if record.fate is PlannedFate.BILLED:
            ledger.append(LedgerLine(record.key, record.cents, partition, offset, 1))
        else:
            dead.append(DeadLetterSeen(record.key, record.fate.value, partition, offset))
    return Observations(positions, ledger, dead, {"1s": 3}, in_flight=10, kills=1)


def judged(**changes: object) -> DemoOutcome:
    return judge(SCENARIO, replace(perfect(SCENARIO), **changes))  # type: ignore[arg-type]  # the fields of Observations


def test_the_same_seed_gives_the_same_messages_and_another_gives_others() -> None:
    assert make_scenario(4000, seed=7) == SCENARIO
    assert make_scenario(4000, seed=8).records != SCENARIO.records


@each("messages", [500, 4000, 20_000])
def test_exactly_as_many_messages_are_made_and_every_kind_is_among_them(messages: int) -> None:
    records = make_scenario(messages, seed=1).records
    assert len(records) == messages
    assert {record.fate for record in records} == set(PlannedFate)
    assert sum(record.is_duplicate for record in records) == round(messages * 0.05)


def test_a_duplicate_comes_after_its_original_and_is_the_same_bytes() -> None:
    seen: dict[str, bytes] = {}
    for record in SCENARIO.records:
        assert record.is_duplicate == (record.key in seen)
        assert seen.setdefault(record.key, record.value) == record.value


def test_an_order_says_what_shall_become_of_it_and_other_bytes_are_none() -> None:
    outages = Counter[int]()
    for record in SCENARIO.records:
        if record.fate is PlannedFate.UNDECODABLE:
            with pytest.raises(ValueError, match="Invalid JSON"):
                Order.model_validate_json(record.value)
            continue
        order = Order.model_validate_json(record.value)
        assert order.id == record.key
        assert order.stolen == (record.fate is PlannedFate.REJECTED)
        assert (order.outage > MAX_RECONSUME_TIMES) == (record.fate is PlannedFate.EXHAUSTED)
        outages[order.outage] += 1
    assert set(outages) == set(range(MAX_RECONSUME_TIMES + 2))


def test_the_ledger_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    reader = LedgerReader(path)
    assert reader.refresh() == []
    writer = LedgerWriter(path)
    first, second = LedgerLine("a", 1, 0, 0, 9), LedgerLine("b", 2, 0, 1, 9)
    writer.append([first])
    assert reader.refresh() == [first]
    writer.append([second])
    assert reader.refresh() == [first, second]


def test_a_torn_line_is_no_entry_and_hurts_no_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entry = LedgerLine("a", 1, 0, 0, 9)
    LedgerWriter(path).append([entry])
    with path.open("ab") as file:
        file.write(b'["b", 2, 0,')
    reader = LedgerReader(path)
    assert reader.refresh() == [entry]
    LedgerWriter(path).append([entry._replace(order="c")])
    assert [entry.order for entry in reader.refresh()] == ["a", "c"]


def test_when_everything_goes_well_nothing_fails_and_the_numbers_add_up() -> None:
    outcome = judged()
    assert outcome.failures == ()
    assert outcome.sent == 4000
    assert outcome.suppressed == 200
    assert outcome.sent == outcome.billed + outcome.suppressed + sum(outcome.dead.values())
    assert outcome.expected_cents == outcome.actual_cents > 0
    assert set(outcome.dead) == {"undecodable", "rejected", "max-reconsume-times"}


def test_an_order_that_is_missing_is_lost_and_the_accounts_do_not_balance() -> None:
    ledger = perfect(SCENARIO).ledger
    outcome = judged(ledger=ledger[1:])
    assert outcome.lost == 1
    assert outcome.expected_cents - outcome.actual_cents == ledger[0].cents
    assert [failure.partition(" orders ")[2].partition(",")[0] for failure in outcome.failures] == [
        "were neither billed nor dead-lettered",
        "should have been billed and were not",
    ]


def test_a_dead_letter_that_is_missing_is_lost() -> None:
    assert judged(dead_letters=perfect(SCENARIO).dead_letters[1:]).lost == 1


def test_an_order_at_another_price_fails_the_accounts() -> None:
    ledger = list(perfect(SCENARIO).ledger)
    ledger[3] = ledger[3]._replace(cents=ledger[3].cents + 1)
    assert "at another price" in judged(ledger=ledger).failures[0]


def test_an_order_that_is_dead_and_should_be_billed_fails_the_accounts() -> None:
    ledger = list(perfect(SCENARIO).ledger)
    first = ledger.pop(0)
    letters = [*perfect(SCENARIO).dead_letters, DeadLetterSeen(first.order, "rejected", first.partition, first.offset)]
    outcome = judged(ledger=ledger, dead_letters=letters)
    assert outcome.lost == 0
    assert len(outcome.failures) == 2


def test_repeats_are_allowed_up_to_what_was_in_flight() -> None:
    ledger = list(perfect(SCENARIO).ledger)
    allowed, too_many = judged(ledger=ledger + ledger[:10]), judged(ledger=ledger + ledger[:11])
    assert (allowed.repeated_by_kill, allowed.failures) == (10, ())
    assert allowed.repeated_cents == sum(entry.cents for entry in ledger[:10])
    assert allowed.actual_cents == allowed.expected_cents
    assert too_many.failures == ("11 orders were billed again, and at most 10 were in flight at the kill",)
    assert too_many.actual_cents == too_many.expected_cents


def test_a_dead_letter_published_twice_is_one() -> None:
    letters = list(perfect(SCENARIO).dead_letters)
    assert judged(dead_letters=letters + letters[:1]).dead == judged().dead


def test_the_table_counts_each_order_once_and_says_beside_it_what_the_kill_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = list(perfect(SCENARIO).ledger)
    outcome = judged(ledger=ledger + ledger[:10])
    out = Path("demo")
    verdicts, flags = {"MULTI_EXECUTED": 7, "MAYBE_TWICE": 30, "EXACTLY_ONCE": 3963}, {"AMBIGUOUS_EXEC": 35}
    _show(Played(outcome, 1, out / "summary.json", verdicts, flags, 1.5, OnSpark(40.0, 4000, {})), Options(4000, 1, out))
    printed = capsys.readouterr().out
    rows = {name.strip(): number.strip() for _, name, number, *_ in (line.split("│") for line in printed.splitlines() if "│" in line)}
    assert (rows["billed"], rows["repeated by the kill"]) == (f"{outcome.billed:,}", "10")
    assert rows["charged"] == rows["to be charged"]
    assert rows["charged again"] == f"{outcome.repeated_cents / 100:,.2f}" != "0.00"
    assert "10 entries are repeats of the kill" in printed
    assert rows["all messages"] == "4,000"
    said = " ".join(printed.split())
    assert "AMBIGUOUS_EXEC 35" in said
    assert "Expected: the kill repeated 10 entries of the ledger" in said
    assert "7 of these repeats are MULTI_EXECUTED" in said
    assert "3 are among the 30 MAYBE_TWICE" in said
    assert "1.5 s on this machine; 40.0 s on Spark, start included: of 4,000 rows in all tables no row differs" in said


@each("on_spark", [OnSpark(40.0, 4000, {"verdicts": 2}), "no Java of version 17 was found"])
def test_a_row_that_differs_fails_the_demo_and_a_machine_without_java_does_not(
    on_spark: OnSpark | str, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(judged(), 0, Path("demo/summary.json"), {}, {}, 1.5, on_spark)
    _show(played, Options(4000, 1, Path("demo")))
    printed = " ".join(capsys.readouterr().out.split())
    if isinstance(on_spark, str):
        assert _failures(played) == []
        assert "Spark did not audit the events: no Java of version 17 was found." in printed
    else:
        assert _failures(played) == ["the audit on Spark differs from that on this machine in rows: 2 of verdicts"]
        assert "Nothing was lost" not in printed


def test_without_ackwise_an_order_that_was_committed_past_and_not_billed_is_lost_and_one_that_was_not_passed_is_not() -> None:
    records = stock_records(SCENARIO)
    assert PlannedFate.UNDECODABLE not in {record.fate for record in records}
    positions = [(0, number) for number in range(len(records))]
    ledger = [LedgerLine(record.key, record.cents, *position, 1) for record, position in zip(records, positions, strict=True)]
    to_bill = {record.key for record in records[:100] if record.fate is PlannedFate.BILLED}
    without = [entry for entry in ledger if entry.order not in sorted(to_bill)[:2]]
    assert judge_stock(records, positions, {0: 100}, ledger) == Stock(passed=len(to_bill), lost=0)
    assert judge_stock(records, positions, {0: 100}, without) == Stock(passed=len(to_bill), lost=2)
    assert judge_stock(records, positions, {}, []) == Stock(passed=0, lost=0)


def test_what_stock_faust_lost_is_told_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    played = Played(judged(), 0, Path("demo/summary.json"), {}, {}, 1.5, "no Java was found", Stock(passed=143, lost=6))
    _show(played, Options(4000, 1, Path("demo"), host="faust"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "Nothing was lost and the ledger is correct. The same worker without Ackwise lost 6 of the first 143 orders" in printed


def test_what_the_demo_says_was_in_flight_is_what_the_host_on_faust_hands_ahead() -> None:
    assert HOSTS["faust"].in_flight == (_room() + MAX_BATCH) * PARTITIONS * 2


def test_a_host_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"runs faust, which is not installed: pip install 'ackwise\[faust\]'"):
        find_host("faust")


def _room() -> int:
    """How many messages of one partition may be at work in an agent of Faust."""

    async def never(_: object) -> None: ...

    return Agent("bill", ("orders",), "stream", never, lambda value: value, max_batch=MAX_BATCH).room
