"""Nights of which files are gone: where a number shows that, nobody is accused of what was in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.reconciling import reconciled, summary
from tests.spark.robbed import CONFIG, Night, Robbery, accusations, night, rates, robberies

from ackwise.spark.events.sources import gathered
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import ANOMALIES, Verdict
from ackwise.spark.why.answer import inquire

NIGHTS = [night(number) for number in range(8)]


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


def test_nobody_is_accused_where_a_number_shows_that_events_are_gone_and_the_brokers_show_more() -> None:
    without, told = rates(NIGHTS, by_brokers=False), rates(NIGHTS, by_brokers=True)
    for found in (without, told):
        assert {kind: rate.accused_though_proved for kind, rate in found.items()} == dict.fromkeys(found, 0)
        assert found.keys() == {"file between", "last file", "last file of a killed writer", "writer", "killed writer"}
        assert all(rate.proved for rate in found.values())
    assert all(told[kind].proved >= without[kind].proved for kind in told)
    assert told["last file"].proved > without["last file"].proved
    assert sum(rate.accused for rate in told.values()) < sum(rate.accused for rate in without.values())
    assert told["last file"].accused == told["writer"].accused == 0


def gone_by_number(each: Night) -> Robbery:
    """All files of a worker whom others name."""
    found = (robbery for robbery in robberies(each) if robbery.kind == "killed writer")
    return next(robbery for robbery in found if each.is_proved(robbery, by_brokers=False))


@pytest.mark.usefixtures("engine")
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
