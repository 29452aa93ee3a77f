"""The local engine says what the oracle says, message by message. Starts no Spark."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.conftest import judged
from tests.spark.fuzz import universe
from tests.spark.histories import NOW, SECOND, History, write_parquet
from tests.spark.reference.test_oracle import check, contradictions
from tests.spark.robbed import CONFIG as ROBBED
from tests.spark.robbed import night, robberies
from tests.spark.running import Answer, run

from ackwise.middleware.events import EventCode
from ackwise.spark.bins.session import binned, in_this_process
from ackwise.spark.local.session import local_engine
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Account, CopyFate, Flag, LogicalVerdict, ProducedVerdict, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds, where other processes keep the machine busy: thousands of histories are judged.
pytestmark = pytest.mark.timeout(1200)

LATER = "83 a suppression after the time of judgement"

#: Others than those that Spark judges.
UNIVERSES = range(1000, 2000)
#: So many messages of others are judged each night, so many histories at once.
MESSAGES, AT_ONCE = 400_000, 1_500


#: Into how many bins the rows are dealt; 0: one engine has them all.
BINS = [0, 3, *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 7))]


@pytest.fixture(scope="module", params=BINS, ids=lambda bins: f"{bins} bins" if bins else "no bins")
def local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The local engine, or as many that share the work."""
    made = binned(in_this_process, request.param, tmp_path_factory.mktemp("bins") / "rows") if request.param else local_engine()
    with made as session:
        yield session


@pytest.fixture(scope="module")
def bulk(local: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return judged(local, tmp_path_factory.mktemp("bulk"), UNIVERSES)


def test_a_suppression_after_the_time_of_judgement_is_not_judged_yet(local: SparkSession, tmp_path: Path) -> None:
    for name, verdict in (("28 suppressed, and nobody did it", Verdict.PHANTOM_SUPPRESSED), (LATER, Verdict.DUPLICATE_SUPPRESSED)):
        found = run(local, [write_parquet(tmp_path / f"{name}.parquet", CASES[name].history.events)], CONFIG)
        assert [said for said, _ in found.rulings[name].messages.values()] == [verdict]


def judge(local: SparkSession, tmp_path: Path, names: str) -> None:
    """Assert what is said of the cases with such names."""
    cases = {name: case for name, case in CASES.items() if re.match(names, name)}
    events = [event for case in cases.values() for event in case.history.events]
    rolled_on = {writer: boot_id for case in cases.values() for writer, boot_id in case.history.rolled_on.items()}
    found = run(local, [write_parquet(tmp_path / "events.parquet", events)], CONFIG, rolled_on=rolled_on).rulings
    for name, case in cases.items():
        check(name, case, found[name])


def test_a_run_that_another_worker_tells_of_counts_as_if_its_own_had_told(local: SparkSession, tmp_path: Path) -> None:
    judge(local, tmp_path, "05[b-m]")


def test_a_dead_letter_that_succeeds_on_redrive_is_not_in_doubt_by_that(local: SparkSession, tmp_path: Path) -> None:
    judge(local, tmp_path, "27[d-k]")


def test_what_a_killed_worker_had_started_is_in_doubt_and_what_it_had_fetched_where_its_marks_may_be_lost(
    local: SparkSession, tmp_path: Path
) -> None:
    judge(local, tmp_path, "95[k-y]")


def test_the_local_engine_says_of_every_case_and_universe_what_the_oracle_says(bulk: Answer) -> None:
    assert contradictions(bulk.rulings, UNIVERSES) == []


@pytest.mark.nightly
@pytest.mark.slow  # judges very many histories
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bins", [0, 3])
def test_the_local_engine_says_of_very_many_messages_what_the_oracle_says(bins: int, tmp_path: Path) -> None:
    """Others each night: the name of a history that is judged otherwise ends with its number."""
    number, messages = random.SystemRandom().randrange(10**6, 10**12), 0
    with binned(in_this_process, bins, tmp_path / "rows") if bins else local_engine() as session:
        while messages < MESSAGES:
            numbers = range(number, number + AT_ONCE)
            (folder := tmp_path / str(number)).mkdir()
            found = judged(session, folder, numbers).rulings
            assert contradictions(found, numbers) == []
            messages += sum(len(ruling.messages) for ruling in found.values())
            number += AT_ONCE


def test_the_universes_have_every_verdict_every_flag_and_every_fate(bulk: Answer) -> None:
    rulings = bulk.rulings.values()
    absent = {name for ruling in rulings for offsets in ruling.absent.values() for name in offsets.values()} - {"GAP"}
    assert {verdict for ruling in rulings for verdict, _ in ruling.messages.values()} | {Verdict[name] for name in absent} == {*Verdict}
    assert {verdict for ruling in rulings for verdict, _ in ruling.logical.values()} == {*LogicalVerdict}
    assert {flag for ruling in rulings for _, each in (*ruling.messages.values(), *ruling.logical.values()) for flag in each} == {*Flag}
    assert {account for ruling in rulings for each in ruling.produced.values() for account in each.values()} == {*Account}
    unsent = {verdict for ruling in rulings for verdict in ruling.unsent.values()}
    assert unsent == {None, *ProducedVerdict} - {ProducedVerdict.ORPHAN_CONSUMED}
    assert {fate for ruling in rulings for each in ruling.copies.values() for _, fate in each} == {*CopyFate}
    assert any(ruling.fallen for ruling in rulings)


def test_the_accounts_of_every_universe_balance_and_account_for_all_that_was_produced(bulk: Answer) -> None:
    """That the accounts of what was produced add up is checked where they are kept: `keep_produced` refuses any that do not."""
    assert len(bulk.accounts) > len(UNIVERSES) / 2
    assert [account for account in bulk.accounts if account.balance] == []
    histories = {history.group: history for history in [case.history for case in CASES.values()] + [*map(universe, UNIVERSES)]}
    accounts = {account.partition.group[1]: account for account in bulk.produced}
    assert len(accounts) > len(UNIVERSES) / 4
    for group, account in accounts.items():
        history = histories[group]
        published = {row["offset"] for row in history.produced if row["partition"] == 0 and not row["aborted"]}
        acknowledged = [event for event in history.events if event["event_type"] in (EventCode.PRODUCED, EventCode.OUTBOX_SENT)]
        here = [event for event in acknowledged if (event.get("partition"), event["cluster"]) == (0, history.cluster)]
        published |= {event.get("offset") for event in here if (event.get("range_end") or 0) in range(2**62)}
        assert (group, account.produced) == (group, len({offset for offset in published - {None} if offset in range(2**62)}))


def test_the_local_engine_says_of_robbed_nights_what_the_oracle_says(local: SparkSession, tmp_path: Path) -> None:
    nights = [night(number) for number in range(12)]
    left = {each.group: each.left(robbery) for place, each in enumerate(nights) for robbery in [list(robberies(each))[-1 - place % 2]]}
    files = [write_parquet(tmp_path / f"{place}.parquet", events) for place, events in enumerate(left.values())]
    for last_commits in ([], [last for each in nights for last in each.last_commits]):
        found = run(local, files, ROBBED, last_commits=last_commits)
        for group, events in left.items():
            assert found.rulings[group] == rule(events, ROBBED, last_commits=last_commits), group


def test_only_some_time_is_judged_as_the_oracle_judges_it(local: SparkSession, tmp_path: Path) -> None:
    config = replace(CONFIG, since=NOW / SECOND - 1800)
    histories = [universe(number) for number in range(200)]
    events = [event for history in histories for event in history.events]
    rolled_on = {writer: boot_id for history in histories for writer, boot_id in history.rolled_on.items()}
    found = run(local, [write_parquet(tmp_path / "events.parquet", events)], config, rolled_on=rolled_on)
    for history in histories:
        expected = rule(history.events, config, rolled_on=history.rolled_on)
        assert found.rulings[history.group].messages == expected.messages, history.group
        assert found.rulings[history.group].absent == expected.absent, history.group


def test_a_live_writer_that_lags_holds_the_time_of_judgement_back_and_a_dead_one_does_not(local: SparkSession, tmp_path: Path) -> None:
    config = replace(CONFIG, as_of=None, grace=0.0)
    history = History("g").say("w1", "0:RC", ago=5000).say("w2", "1:CS", ago=300).say("w3", "2:CS W=3", ago=0)
    expected = rule(history.events, config)
    assert NOW - 300 * SECOND < expected.as_of < NOW - 299 * SECOND
    assert run(local, [write_parquet(tmp_path / "events.parquet", history.events)], config).rulings["g"] == expected


def test_names_are_data_and_never_part_of_a_query(local: SparkSession, tmp_path: Path) -> None:
    odd = "o'; DROP TABLE x; --\"\\%s{}"
    history = History(odd, topic=odd, cluster=odd).assign("w1", 0).say("w1", "RECEIVED_RANGE[0,2) 0:CS 1:CFB W=2", handler=odd)
    history.send("w1", EventCode.PRODUCED, "id", 0, ago=5)
    found = run(local, [write_parquet(tmp_path / "events.parquet", history.events)], CONFIG)
    assert found.rulings[odd] == rule(history.events, CONFIG)
