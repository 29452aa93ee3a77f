"""The job on Spark says what the oracle says, message by message."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.commands.test_reconcile import AS_OF, reconciled, summary
from tests.spark.conftest import UNIVERSES
from tests.spark.fuzz import universe
from tests.spark.histories import NOW, SECOND, TOPIC, History, write_parquet
from tests.spark.reference.test_oracle import check

from ackwise.middleware.events import EventCode
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Account, CopyFate, Flag, LogicalVerdict, ProducedVerdict, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.running import Answer

pytestmark = pytest.mark.spark


def root_with(root: Path, events: list[dict[str, Any]]) -> Path:
    """The events in one file of a root."""
    write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / "events-00000000000000ab-000000000000-000000000004.parquet", events)
    return root


@pytest.mark.parametrize("name", CASES)
def test_the_job_says_of_the_case_what_the_oracle_says(name: str, bulk: Answer) -> None:
    check(CASES[name], bulk.rulings[name])
    assert bulk.rulings[name] == rule(CASES[name].history.events, CONFIG, produced=CASES[name].history.produced)


def test_the_job_says_of_every_universe_what_the_oracle_says(bulk: Answer) -> None:
    histories = [universe(number) for number in range(UNIVERSES)]
    different = [history for history in histories if bulk.rulings[history.group] != rule(history.events, CONFIG, produced=history.produced)]
    assert [history.group for history in different] == []


def test_two_partitions_with_one_key_are_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions as F
    from tests.spark.running import run

    from ackwise.spark.events import schema
    from ackwise.spark.fold import folded
    from ackwise.spark.fold.facts import KeyCollision

    history = History("g").say("w1", "0:CS W=1").add("w1", EventCode.COMMITTED, topic="other", partition=0, range_end=1)
    monkeypatch.setattr(folded, "project", lambda events: schema.project(events).withColumn("pk", F.lit(7)))
    with pytest.raises(KeyCollision, match="two partitions have the key 7"):
        run(spark, [write_parquet(tmp_path / "events.parquet", history.events)], CONFIG)


def test_a_file_without_events_gives_an_empty_report_that_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    result = reconciled(root_with(tmp_path / "root", []), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = summary(tmp_path / "out")
    assert (found["verdicts"], found["books"], found["findings"], found["warnings"]) == ({}, [], [], [])


def test_what_is_doubtful_about_the_events_themselves_is_said(spark: SparkSession, tmp_path: Path) -> None:
    history = CASES["47c a topic made anew, without an id, and newer records before older ones"].history
    history = copy(history)
    history.events = [*history.events]
    history.add("w1", 18, topic=TOPIC, partition=0, offset=9).add("w1", 77)
    result = reconciled(root_with(tmp_path / "root", history.events), "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 0, result.output
    falls, strange = summary(tmp_path / "out")["warnings"]
    assert falls.startswith("the records of 1 partitions, such as orders/0 of 47c a topic made anew")
    assert strange == "2 events were passed over: this version does not know what they mean"


def test_a_live_writer_that_lags_holds_the_time_of_judgement_back_and_a_dead_one_does_not(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.running import run

    config = replace(CONFIG, as_of=None, grace=0.0)
    history = History("g").say("w1", "0:RC", ago=5000).say("w2", "1:CS", ago=300).say("w3", "2:CS W=3", ago=0)
    expected = rule(history.events, config)
    assert NOW - 300 * SECOND < expected.as_of < NOW - 299 * SECOND
    assert run(spark, [write_parquet(tmp_path / "events.parquet", history.events)], config).rulings["g"] == expected


def test_the_universes_have_every_verdict_and_every_flag(bulk: Answer) -> None:
    rulings = bulk.rulings.values()
    absent = {name for ruling in rulings for offsets in ruling.absent.values() for name in offsets.values()}
    assert {verdict for ruling in rulings for verdict, _ in ruling.messages.values()} | {Verdict[n] for n in absent - {"GAP"}} == set(
        Verdict
    )
    assert {verdict for ruling in rulings for verdict, _ in ruling.logical.values()} == set(LogicalVerdict)
    flags = {flag for ruling in rulings for _, each in (*ruling.messages.values(), *ruling.logical.values()) for flag in each}
    assert flags == set(Flag)
    assert {account for ruling in rulings for each in ruling.produced.values() for account in each.values()} == set(Account)
    unsent = {verdict for ruling in rulings for verdict in ruling.unsent.values()}
    assert unsent == {None, *ProducedVerdict} - {ProducedVerdict.ORPHAN_CONSUMED}
    fates = {fate for ruling in rulings for each in ruling.copies.values() for _, fate in each}
    assert fates == set(CopyFate)
    assert any(ruling.fallen for ruling in rulings)


def test_the_books_of_every_universe_balance(bulk: Answer) -> None:
    assert len(bulk.books) > UNIVERSES / 2
    assert [book for book in bulk.books if book.balance] == []


def test_what_was_produced_is_accounted_for_in_every_universe(bulk: Answer) -> None:
    """That the books add up is checked where they are kept: `keep_produced` refuses any that do not."""
    histories = {history.group: history for history in map(universe, range(UNIVERSES))}
    books = {book.partition.group[1]: book for book in bulk.produced}
    assert len(books) > UNIVERSES / 4
    for group, book in books.items():
        history = histories.get(group) or CASES[group].history
        published = {
            row["offset"] for row in history.produced if row["offset"] is not None and row["partition"] == 0 and not row["aborted"]
        }
        acknowledged = (e for e in history.events if e["event_type"] in (EventCode.PRODUCED, EventCode.OUTBOX_SENT))
        published |= {
            e["offset"] for e in acknowledged if (e.get("partition"), e["cluster"]) == (0, history.cluster) and e.get("offset") is not None
        }
        assert (group, book.produced) == (group, len(published))
