"""Nights of which files are gone: where a number shows that, nobody is accused of what was in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.commands.test_reconcile import reconciled, summary
from tests.spark.histories import write_parquet
from tests.spark.robbed import CONFIG, Night, Robbery, accusations, night, rates, robberies

from ackwise.spark.events.sources import gathered
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import ANOMALIES, Verdict
from ackwise.spark.why.answer import inquire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHTS = [night(number) for number in range(12)]


def whole(each: Night) -> list[dict[str, object]]:
    return [event for file in each.files for event in file]


def test_a_night_of_which_all_files_are_there_accuses_nobody_and_leaves_nothing_unknown() -> None:
    for each in NIGHTS:
        for last_commits in ((), each.last_commits):
            found = rule(whole(each), CONFIG, last_commits=last_commits)
            assert accusations(found) == []
            assert {verdict for verdict, _ in found.messages.values()} <= {
                Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE, Verdict.MULTI_EXECUTED, Verdict.SKIPPED, Verdict.DUPLICATE_SUPPRESSED
            }  # fmt: skip


@pytest.mark.parametrize("by_brokers", [False, True])
def test_nobody_is_accused_where_a_number_shows_that_events_are_gone(by_brokers: bool) -> None:
    found = rates(NIGHTS, by_brokers=by_brokers)
    assert {kind: rate.accused_though_proved for kind, rate in found.items()} == dict.fromkeys(found, 0)
    assert found.keys() == {"file between", "last file", "last file of a killed writer", "writer", "killed writer"}
    assert all(rate.proved for rate in found.values())


def test_what_the_brokers_keep_shows_more_and_no_last_file_of_a_worker_that_ended_accuses_then() -> None:
    without, told = rates(NIGHTS, by_brokers=False), rates(NIGHTS, by_brokers=True)
    assert all(told[kind].proved >= without[kind].proved for kind in told)
    assert told["last file"].proved > without["last file"].proved
    assert sum(rate.accused for rate in told.values()) < sum(rate.accused for rate in without.values())
    assert told["last file"].accused == told["writer"].accused == 0


@pytest.mark.spark
def test_the_job_says_of_robbed_nights_what_the_oracle_says(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.running import run

    robbed = [(each, list(robberies(each))[place]) for each in NIGHTS for place in (-1, -2)][::2]
    left = {each.group: (each, each.left(robbery)) for each, robbery in robbed}
    files = [write_parquet(tmp_path / f"{place}.parquet", events) for place, (_, events) in enumerate(left.values())]
    for last_commits in ([], [last for each in NIGHTS for last in each.last_commits]):
        found = run(spark, files, CONFIG, last_commits=last_commits)
        for group, (_, events) in left.items():
            assert found.rulings[group] == rule(events, CONFIG, last_commits=last_commits)


def gone_by_number(each: Night) -> Robbery:
    """All files of a worker whom others name."""
    found = (robbery for robbery in robberies(each) if robbery.kind == "killed writer")
    return next(robbery for robbery in found if each.is_proved(robbery, by_brokers=False))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_command_names_the_missing_events_of_a_whole_worker(tmp_path: Path) -> None:
    each = NIGHTS[3]
    robbery = gone_by_number(each)
    each.write(tmp_path / "root", robbery)
    reconciled(tmp_path / "root", "--out", tmp_path / "out", "--as-of", "2026-01-01T01:00:00Z", "--grace", "1s")
    found = summary(tmp_path / "out")
    assert "UNKNOWN_EXPORT_GAP" in found["verdicts"]
    writer = f"{each.files[min(robbery.gone)][0]['writer_id']:016x}"
    (hole,) = found["holes"]
    assert (hole["writer"], hole["first"], hole["client"]) == (writer, 0, "")
    missing, unproved = found["warnings"]
    assert missing.startswith(f"{found['missing_events']} events of 1 worker are missing, 0 to {hole['last']} of {writer}: find its files")
    assert "died, and no commit says how far its events went" in unproved.replace("their events", "its events")


def test_why_says_with_the_brokers_what_reconcile_says_with_them(tmp_path: Path) -> None:
    each, robbery, accused = next(
        (each, robbery, message)
        for each in NIGHTS
        for robbery in robberies(each)
        for message, (verdict, _) in rule(each.left(robbery), CONFIG).messages.items()
        if robbery.kind == "last file" and verdict in ANOMALIES - {Verdict.MULTI_EXECUTED}
    )
    each.write(tmp_path / "root", robbery)
    (_, _, topic, _, partition), _, _, offset = accused
    told = rule(each.left(robbery), CONFIG, last_commits=each.last_commits).messages[accused][0]
    with gathered([tmp_path / "root"], tmp_path / "live") as evidence:
        without = inquire(f"{topic}/{partition}/{offset}", evidence, CONFIG)
        found = inquire(f"{topic}/{partition}/{offset}", evidence, CONFIG, last_commits=each.last_commits)
    assert [story.verdict for story in without.stories] == [rule(each.left(robbery), CONFIG).messages[accused][0]]
    assert [story.verdict for story in found.stories] == [told] == [Verdict.UNKNOWN_EXPORT_GAP]
    assert any(sentence.startswith(f"a commit of {each.group} names event ") for sentence in found.missing)
    assert found.exit_code == 3
