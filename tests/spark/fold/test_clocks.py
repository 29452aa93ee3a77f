"""Clocks that are wrong make no worker dead, and accuse nobody."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.cases import CONFIG
from tests.spark.histories import NOW, SECOND, TOPIC, History, write_parquet
from tests.spark.reconciling import reconciled, root_of, summary
from tests.spark.running import answer, evidence_of, run

from ackwise.middleware.events import EventCode
from ackwise.spark.fold.clocks import Clocks, Reading, compare
from ackwise.spark.judging import weigh
from ackwise.spark.reference.oracle import Ruling, rule
from ackwise.spark.vocabulary import ANOMALIES, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3600 * SECOND
JUDGED_NOW = replace(CONFIG, as_of=None, grace=60.0, lease=30.0)
GROUP = ("c", "g")


def shop(clocks: Mapping[str, int], *, monotonic: bool = False, group: str = "g") -> History:
    """Three workers that consume for half an hour, and the first has one message in hand; `clocks` are by how much each is fast."""
    history = History(group)
    for minute in range(30):
        for place, worker in enumerate(("w1", "w2", "w3")):
            at, offset = NOW - (30 - minute) * 60 * SECOND, 3 * minute + place
            told(history, worker, EventCode.CLAIMED, offset, at, clocks, monotonic=monotonic)
            told(history, worker, EventCode.SUCCEEDED, offset, at + SECOND, clocks, monotonic=monotonic)
    told(history, "w1", EventCode.CLAIMED, 90, NOW - 2 * SECOND, clocks, monotonic=monotonic)
    return history


def told(history: History, worker: str, code: EventCode, offset: int, at: int, clocks: Mapping[str, int], *, monotonic: bool) -> None:
    """What happens at `at`, by the worker's clock; its record was written a second before."""
    step = clocks.get(worker, 0) if not monotonic or at > NOW - 900 * SECOND else 0
    history.add(
        worker, code, at=at + step, topic=TOPIC, partition=0, offset=offset, handler="bill", attempt=1, exec_id=offset + 1,
        dedup_hash=offset, record_ts=at - SECOND, mono_ns=(at - NOW + HOUR) * 1000 if monotonic else None,
    )  # fmt: skip


def verdicts(found: Ruling) -> dict[int, Verdict]:
    return {offset: verdict for (*_, offset), (verdict, _) in found.messages.items()}


def reading(writer_id: int, last_ts: int, lag: int | None = 0, *, span: int = HOUR, records: int = HOUR, was_set: int = 0) -> Reading:
    return Reading(writer_id, GROUP, last_ts - span, last_ts, lag, span, records, was_set)


def test_one_wrong_clock_makes_no_other_worker_dead_and_accuses_nobody() -> None:
    for case in itertools.product(("w1", "w2", "w3"), (False, True), (HOUR, -HOUR)):
        worker, monotonic, by = case
        found = rule(shop({worker: by}, monotonic=monotonic).events, JUDGED_NOW)
        assert not {*verdicts(found).values()} & ANOMALIES, case
        assert NOW - 120 * SECOND <= found.as_of <= NOW + 120 * SECOND, case
        assert verdicts(found)[0] in (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE), case


def test_an_absurd_clock_decides_nothing() -> None:
    for absurd in (-NOW, 10**6 * HOUR, -2 * NOW, 7974 * 365 * 24 * HOUR):
        found = rule(shop({"w3": absurd}).events, JUDGED_NOW)
        assert NOW - 120 * SECOND <= found.as_of <= NOW, absurd
        assert not {*verdicts(found).values()} & ANOMALIES, absurd
        assert verdicts(found)[90] is Verdict.IN_FLIGHT, absurd


def compared(*readings: Reading) -> Clocks:
    return compare(readings, 600 * SECOND, 60 * SECOND)


def test_whose_clock_is_wrong_is_found_by_the_others_and_by_the_records() -> None:
    agree = compared(reading(1, NOW), reading(2, NOW - 5 * SECOND))
    assert (agree.wrong, agree.now) == (frozenset(), NOW)
    ahead = [reading(3, NOW + HOUR, HOUR), reading(4, NOW + HOUR - SECOND, HOUR)]
    assert compared(reading(1, NOW), *ahead).fast.keys() == {3, 4}, "two workers of one fast host"
    assert compared(reading(1, NOW, HOUR), reading(2, NOW + HOUR, HOUR)).fast == {}, "a group that is always late"
    assert compared(reading(1, NOW, -HOUR), reading(2, NOW, -HOUR)).slow == {}, "the clock of the producer is fast"
    assert compared(reading(1, NOW, -HOUR), reading(2, NOW, 0)).slow == {1: HOUR}
    assert compared(reading(1, 0), reading(2, SECOND)).absurd == {}, "where all are absurd they are compared with each other"


def test_the_last_worker_that_is_left_is_not_fast_unless_its_records_say_so() -> None:
    others = [reading(1, NOW), reading(2, NOW - 5 * SECOND)]
    for last in (
        reading(3, NOW + HOUR),  # its records are as new as it says
        reading(3, NOW + HOUR, None),  # it only waited
        reading(3, NOW + HOUR, HOUR, span=30 * SECOND, records=0),  # a command that sent something again
        reading(3, NOW + HOUR, HOUR, span=120 * SECOND),  # it worked off what was left
    ):
        assert compared(*others, last).fast == {}
    assert compared(*others, reading(3, NOW + HOUR, HOUR)).fast == {3: HOUR}


def dated(ahead: Mapping[int, int], clocks: Mapping[str, int] | None = None) -> History:
    """The shop, with records that are dated ahead by so much, by offset; w3 has 2, 5, 8 and so on."""
    history = shop(clocks or {})
    for event in history.events:
        if event.get("offset") in ahead:
            event["record_ts"] += ahead[event["offset"]]
    return history


DAYS, W3 = 24 * HOUR, range(2, 90, 3)
#: Records of the future, and by how much w3's clock is behind by them.
DATED = {
    "one in a thousand years": (dated({5: 365_000 * DAYS}), None),
    "fewer than others": (dated(dict.fromkeys(W3[:14], 2 * DAYS)), None),
    "fewer than others, though the clock is behind": (dated(dict.fromkeys(W3[10:], -2 * DAYS), {"w3": -2 * DAYS}), None),
    "most, and later than now": (dated(dict.fromkeys(W3, 2 * DAYS)), None),
    "most, as the clock is behind": (dated({}, {"w3": -2 * DAYS}), 2 * DAYS),
    "the same, and one in a thousand years": (dated({5: 365_000 * DAYS}, {"w3": -2 * DAYS}), None),
}


def test_records_dated_far_ahead_tell_of_a_clock_only_if_most_are_and_it_is_as_late_by_others(
    judging: SparkSession, tmp_path: Path
) -> None:
    for place, (name, (history, behind)) in enumerate(DATED.items()):
        judgement = weigh(judging, evidence_of(write_parquet(tmp_path / f"{place}.parquet", history.events)), JUDGED_NOW)
        slow = {writer: by - SECOND for writer, by in judgement.facts.clocks.slow.items()}
        assert slow == ({} if behind is None else {history.number("w3"): behind - 2 * SECOND}), name
        assert answer(judgement).rulings["g"] == rule(history.events, JUDGED_NOW), name


def test_the_job_says_of_wrong_clocks_what_the_oracle_says(judging: SparkSession, tmp_path: Path) -> None:
    for place, (clocks, monotonic) in enumerate([({"w3": HOUR}, False), ({"w1": -HOUR}, True), ({"w2": -NOW, "w3": -HOUR}, False)]):
        events = shop(clocks, monotonic=monotonic).events
        assert run(judging, [write_parquet(tmp_path / f"{place}.parquet", events)], JUDGED_NOW).rulings["g"] == rule(events, JUDGED_NOW)


def test_the_command_names_the_clocks_and_writes_its_page_whatever_they_say(tmp_path: Path) -> None:
    root_of(tmp_path / "root", shop({"w3": HOUR}))
    root_of(tmp_path / "root", shop({"w3": 10**6 * HOUR}, group="absurd"))
    result = reconciled(tmp_path / "root", "--out", tmp_path / "out", "--lease", "30s")
    assert result.exit_code in (0, 3), result.output
    warnings = summary(tmp_path / "out")["warnings"]
    assert any("fast, by the records that it consumed: set it right, or give --as-of" in each for each in warnings)
    assert any("says 2140-" in each or "says 2139-" in each for each in warnings)
    assert (tmp_path / "out" / "report.html").exists()
