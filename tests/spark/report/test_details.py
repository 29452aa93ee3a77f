"""What the page draws, from rows to values. Needs no Spark."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spark.fold.test_facts import said
from tests.spark.report.reports import ANOMALIES, DETAILS, NOW, partition, writer

from ackwise.middleware.events import EventCode
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import WriterFate, establish
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.earlier import earlier_runs
from ackwise.spark.report.exports import Written, exports
from ackwise.spark.report.latency import GROWTH, NEGATIVE, Latency
from ackwise.spark.report.page.render import render
from ackwise.spark.report.report import OWN_REASON, RunReport
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.summary import to_json
from ackwise.spark.report.timeline import Buckets
from ackwise.spark.results.stories import Flagged, safe_error, stories_of
from ackwise.spark.vocabulary import Flag, Verdict

ONCE, LOST, DEAD, PENDING = Verdict.EXACTLY_ONCE, Verdict.LOST, Verdict.DEAD_LETTERED, Verdict.PENDING
UNKNOWN, NEVER = Verdict.UNKNOWN_EXPORT_GAP, Verdict.NEVER_SEEN


def class_of(micros: int) -> int:
    """As the job numbers them."""
    return NEGATIVE if micros < 0 else 0 if micros < 1000 else math.floor(math.log(micros / 1000) / math.log(GROWTH)) + 1


def test_percentiles_and_survival_follow_the_classes() -> None:
    found = Latency("g", "t", {NEGATIVE: 1, 0: 1, class_of(10_000): 6, class_of(1_000_000): 2})
    for micros in (1000, 1_999, 47_000, 3_600_000_000, 604_800_000_000):
        assert Latency("g", "t", {class_of(micros): 1}).percentile(0.5) == pytest.approx(micros, rel=0.05)
    assert (found.messages, found.negative, found.percentile(0.1), found.percentile(0.2)) == (10, 1, 0, 0)
    assert found.percentile(0.8) == pytest.approx(10_000, rel=0.05)
    assert found.percentile(0.81) == pytest.approx(1_000_000, rel=0.05)
    shares = [share for _, share in found.survival()]
    assert shares == [0.8, pytest.approx(0.2), 0]


def test_a_hole_is_shown_where_the_event_before_it_is_and_every_number_counts_once() -> None:
    time, one = Buckets(NOW, 10, 3), writer(7, "billing", WriterFate.ENDED)
    written = [Written(7, 0, 0, 99), Written(7, 1, 100, 245), Written(7, 2, 240, 299)]
    (found,) = exports([one], [Hole(7, 200, 240)], written, time)
    assert (found.events, found.missing) == ([100, 106, 54], [0, 40, 0])
    (found,) = exports([one], [Hole(7, 0, 10)], [Written(7, 1, 10, 19)], time)
    assert (found.events, found.missing) == ([0, 10, 0], [0, 10, 0])
    (found,) = exports([one], [Hole(7, 0, 10)], [], time)
    assert (found.events, found.missing) == ([0, 0, 0], [10, 0, 0])


def trail(number: int, code: EventCode | None, **fields: Any) -> dict[str, Any]:
    about = {
        "cluster": "c",
        "group_id": "g",
        "handler": "bill",
        "dedup_epoch": 0,
        "topic": "orders",
        "topic_id": "",
        "partition": 0,
        "attempt": 1,
    }
    rest = dict.fromkeys(("error", "exec_id", "duration_us", "due", "level", "took", "lost", "attrs", "dedup_hash", "phys_topic"))
    rest |= {"phys_partition": None, "phys_offset": None, "range_end": None, "writer_id": 1, "seq": 5, "offset": 3}
    return {"number": number, "code": code, "ts": NOW, **about, **rest, **fields}


def test_a_story_has_its_steps_the_commit_that_passed_it_and_no_text_of_a_handler() -> None:
    facts = establish([said(1, pk=7, mk=8, topic="orders", handler="bill", message_events=1)], ReconcileConfig())
    rows = [
        trail(0, EventCode.CLAIMED, exec_id=9, ts=NOW - 3),
        trail(0, EventCode.DEAD_LETTERED, error="card 4711 refused", ts=NOW - 2, seq=6),
        trail(0, EventCode.FAILED, error="TimeoutError", ts=NOW - 1, seq=7),
        trail(0, None, range_end=4),
        trail(1, None, range_end=12),
    ]
    flagged = [Flagged(LOST, Flag.HAD_FAILURES, 7, 8, 3), Flagged(NEVER, Flag(0), 7, None, 11), Flagged(LOST, Flag(0), 7, 8, 99)]
    first, second = stories_of(facts, flagged, rows, (), 600)
    assert [step.event for step in first.steps] == ["CLAIMED", "DEAD_LETTERED", "FAILED", "COMMITTED"]
    assert [step.what for step in first.steps][1:] == [
        f"dead letter: {OWN_REASON}", "a run failed: TimeoutError", "committed orders/0 to 4, which passes 3",
    ]  # fmt: skip
    assert (second.verdict, second.place.offset, [step.worker for step in second.steps]) == (NEVER, 11, [""])


def summary_of(folder: Path, report: RunReport, **changes: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(json.loads(to_json(report)) | changes))


def test_earlier_runs_are_those_beside_it_on_the_same_folders(tmp_path: Path) -> None:
    summary_of(tmp_path / "b", ANOMALIES, run_id="first", as_of="2025-12-30T00:00:00+00:00", verdicts={"LOST": 3})
    summary_of(tmp_path / "a", ANOMALIES, run_id="second", as_of="2025-12-31T00:00:00+00:00")
    summary_of(tmp_path / "c", ANOMALIES, run_id="of others", roots=["/elsewhere"])
    summary_of(tmp_path / "d", ANOMALIES, run_id="later", as_of="2026-02-01T00:00:00+00:00")
    summary_of(tmp_path / "this", ANOMALIES, run_id="this")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "summary.json").write_text('{"roots": ["/events"]')
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "summary.json").write_text("[]")
    (tmp_path / "no-run").mkdir()
    assert earlier_runs(tmp_path / "nowhere" / "this", ["/events"], NOW) == []
    found = earlier_runs(tmp_path / "this", ["/events"], NOW)
    assert dict(found[0].verdicts) == {LOST: 3}
    assert [run.run_id for run in found] == ["first", "second"]


def test_a_page_on_two_hundred_partitions_where_much_went_wrong_is_below_half_a_megabyte() -> None:
    accounts = [
        PartitionAccount(partition(n), 0, 100_000, False, {ONCE: 99_000, LOST: 900, DEAD: 50, UNKNOWN: 50}, {}, 0) for n in range(200)
    ]
    strips = [
        Strip(account, {b: {LOST: 1} if b % 2 else {UNKNOWN: 1} for b in range(160)}, range(0, 160, 9), range(0, 160, 9))
        for account in accounts
    ]
    details = replace(DETAILS, strips=strips, stories=[*DETAILS.stories] * 25, exports=[*DETAILS.exports] * 70)
    report = replace(ANOMALIES, accounts=accounts, details=details, writers=[*ANOMALIES.writers] * 70, findings=[*ANOMALIES.findings] * 10)
    page = render(report)
    assert (len(page.encode()) < 500_000, page.count('class="strip"')) == (True, 60)
    assert "And 140 more partitions with fewer anomalies" in page


def test_the_class_of_an_exception_is_shown_and_a_reason_that_a_handler_gave_itself_is_not() -> None:
    errors = ["TimeoutError", "billing.errors.Declined", "undecodable", "", "customer 4711 is odd"]
    assert [safe_error(error) for error in errors] == [*errors[:-1], "given by the handler"]
