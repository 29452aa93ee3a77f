"""What the page draws, from rows to values. Needs no Spark."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spark.fold.test_facts import said
from tests.spark.report.reports import ANOMALIES, DETAILS, HOSTILE, NOW, partition, writer

from ackwise.middleware.events import EventCode
from ackwise.middleware.repairplan import Action, Planned, Summary
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import WriterFate, establish
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.judge.books import Book
from ackwise.spark.report.attempts import Attempts, Ending, together
from ackwise.spark.report.details import Failures
from ackwise.spark.report.earlier import earlier_runs
from ackwise.spark.report.exports import Written, exports
from ackwise.spark.report.latency import GROWTH, NEGATIVE, Latency
from ackwise.spark.report.page.charts import exports_lanes
from ackwise.spark.report.page.latency import latency_curves, latency_sentence
from ackwise.spark.report.page.matrices import failures_matrix, shade, verdicts_matrix
from ackwise.spark.report.page.render import render
from ackwise.spark.report.page.sentences import plan_sentence
from ackwise.spark.report.page.strips import strips_drawn
from ackwise.spark.report.page.tables import attempts_table, latency_table
from ackwise.spark.report.report import OWN_REASON, RunReport
from ackwise.spark.report.strips import BINS, Strip, width_of
from ackwise.spark.report.summary import details_as_json, to_json
from ackwise.spark.report.timeline import Buckets
from ackwise.spark.results.stories import Flagged, safe_error, stories_of
from ackwise.spark.vocabulary import Flag, Verdict

ONCE, LOST, DEAD, PENDING = Verdict.EXACTLY_ONCE, Verdict.LOST, Verdict.DEAD_LETTERED, Verdict.PENDING
UNKNOWN, NEVER = Verdict.UNKNOWN_EXPORT_GAP, Verdict.NEVER_SEEN


def class_of(micros: int) -> int:
    """As the job numbers them."""
    return NEGATIVE if micros < 0 else 0 if micros < 1000 else math.floor(math.log(micros / 1000) / math.log(GROWTH)) + 1


@pytest.mark.parametrize("micros", [1000, 1_999, 47_000, 198_000, 1_000_000, 3_600_000_000, 604_800_000_000])
def test_a_percentile_is_within_five_percent_of_what_was_measured(micros: int) -> None:
    assert Latency("g", "t", {class_of(micros): 1}).percentile(0.5) == pytest.approx(micros, rel=0.05)


def test_percentiles_and_survival_follow_the_classes() -> None:
    found = Latency("g", "t", {NEGATIVE: 1, 0: 1, class_of(10_000): 6, class_of(1_000_000): 2})
    assert (found.messages, found.negative, found.percentile(0.1), found.percentile(0.2)) == (10, 1, 0, 0)
    assert found.percentile(0.8) == pytest.approx(10_000, rel=0.05)
    assert found.percentile(0.81) == pytest.approx(1_000_000, rel=0.05)
    shares = [share for _, share in found.survival()]
    assert shares == [0.8, pytest.approx(0.2), 0]


def test_a_curve_goes_from_all_at_the_top_to_none_at_the_bottom_and_never_up() -> None:
    data = latency_curves([Latency("g", "t", {class_of(10_000): 990, class_of(1_000_000): 9, class_of(60_000_000): 1})])
    heights = [float(part.split()[-1]) for part in data.curves[0].path.replace("M", "L").split("L")[1:] if "H" not in part]
    assert data.curves[0].path.startswith("M46.0 8")
    assert data.curves[0].path.endswith(" 204.0")
    assert heights == sorted(heights)
    assert [tick.label for tick in data.up] == ["100 %", "10 %", "1 %", "0.1 %"]


def test_what_was_done_before_it_was_written_is_counted_and_not_drawn() -> None:
    found = [Latency("g", "t", {NEGATIVE: 3})]
    assert latency_curves(found).curves == []
    (row,) = latency_table(replace(ANOMALIES, details=replace(DETAILS, latencies=found))).rows
    assert [cell.text for cell in row] == ["t", "3", "–", "–", "–", "3", "100 %", "g"]
    assert "3 were done before their records were written" in latency_sentence(found)


def test_curves_of_several_groups_say_whose_they_are() -> None:
    data = latency_curves([Latency("a", "orders", {5: 2}), Latency("b", "orders", {5: 1})])
    assert [curve.name for curve in data.curves] == ["orders of a", "orders of b"]


def test_whoever_reached_an_attempt_reached_all_before_it() -> None:
    attempts = Attempts("g", "bill", "orders", {(1, ONCE): 90, (1, LOST): 1, (2, ONCE): 5, (4, DEAD): 3, (4, PENDING): 1})
    assert attempts.by_number == {1: 91, 2: 5, 4: 4}
    assert [row.messages for row in attempts.funnel] == [100, 9, 4, 4]
    assert [row.endings[Ending.AGAIN] for row in attempts.funnel] == [9, 4, 4, 0]
    assert {ending: number for ending, number in attempts.funnel[3].endings.items() if number} == {Ending.DEAD: 3, Ending.OPEN: 1}
    assert attempts.funnel[0].endings[Ending.ANOMALY] == 1


def test_attempts_in_place_are_told_from_those_of_copies() -> None:
    attempts = Attempts("g", "bill", "orders", {(1, ONCE): 5, (2, ONCE): 3, (3, DEAD): 2}, {1: 4, 2: 2})
    assert [row.messages for row in attempts.funnel] == [10, 5, 2]
    assert [(row.endings[Ending.AGAIN], row.endings[Ending.IN_PLACE]) for row in attempts.funnel] == [(1, 4), (0, 2), (0, 0)]
    (first, *_) = together([attempts])
    assert (first.endings[Ending.AGAIN], first.endings[Ending.IN_PLACE], first.ended) == (1, 4, 5)


def test_the_attempts_of_all_handlers_are_one_table_and_first_attempts_alone_are_none() -> None:
    attempts = [Attempts("g", h, "orders", {(1, ONCE): 8, (2, ONCE): 2}) for h in "ab"]
    rows = attempts_table(replace(ANOMALIES, details=replace(DETAILS, attempts=attempts))).rows
    assert [[cell.text for cell in row[:6]] for row in rows] == [
        ["1", "20", "100 %", "0", "16", "16"],
        ["2", "4", "20 %", "0", "4", "4"],
    ]
    assert together([Attempts("g", "a", "orders", {(1, ONCE): 8})]) == []


@pytest.mark.parametrize(("start", "end", "width"), [(0, 0, 1), (0, 1, 1), (5, 165, 1), (0, 161, 2), (1000, 1_001_000, 6250)])
def test_the_bins_of_a_strip_are_as_narrow_as_fits(start: int, end: int, width: int) -> None:
    assert width_of(start, end) == width
    assert -(-(end - start) // width) <= BINS


def test_neighbours_of_one_tone_are_one_mark_and_the_worst_verdict_decides() -> None:
    book = Book(partition(0), 0, 320, False, {ONCE: 300}, {}, 0)
    (row,) = strips_drawn(
        [Strip(book, {0: {LOST: 1, ONCE: 9}, 1: {NEVER: 2}, 3: {UNKNOWN: 1, LOST: 1}, 4: {PENDING: 1}, 5: {DEAD: 4}}, [0, 900], [2])]
    )
    assert [(mark.at, mark.number, mark.tone) for mark in row.marks] == [(0, 2, "bad"), (3, 1, "bad"), (4, 1, "plain")]
    assert (row.bins, row.assigned, row.revoked, row.summary) == (160, [0], [2], "4 anomalous, 1 unknown")


def test_strips_with_the_most_anomalies_come_first_and_a_page_does_not_grow_with_the_cluster() -> None:
    strips = [
        Strip(Book(partition(n), 0, 100_000, False, {ONCE: 100_000}, {}, 0), {b: {LOST: 1} for b in range(0, 160, 2)}) for n in range(200)
    ]
    strips.append(Strip(Book(partition(200), 0, 10, False, {ONCE: 4}, {}, 0), {0: {LOST: 81}}))
    assert strips_drawn(strips)[0].book.partition.partition == 200
    page = render(replace(ANOMALIES, details=replace(DETAILS, strips=strips)))
    assert (page.count('class="strip"'), "And 141 more partitions with fewer anomalies" in page) == (60, True)


def test_a_hole_is_shown_where_the_event_before_it_is_and_every_number_counts_once() -> None:
    time, one = Buckets(NOW, 10, 3), writer(7, "billing", WriterFate.ENDED)
    written = [Written(7, 0, 0, 99), Written(7, 1, 100, 245), Written(7, 2, 240, 299)]
    (found,) = exports([one], [Hole(7, 200, 240)], written, time)
    assert (found.events, found.missing) == ([100, 106, 54], [0, 40, 0])
    (found,) = exports([one], [Hole(7, 0, 10)], [Written(7, 1, 10, 19)], time)
    assert (found.events, found.missing) == ([0, 10, 0], [0, 10, 0])
    (found,) = exports([one], [Hole(7, 0, 10)], [], time)
    assert (found.events, found.missing) == ([0, 0, 0], [10, 0, 0])


def test_writers_of_which_events_are_missing_come_first() -> None:
    data = exports_lanes(DETAILS.exports, DETAILS.time)
    assert data is not None
    assert [(lane.name[-1], lane.tone) for lane in data.lanes] == [("1", "bad"), ("3", "doubt"), ("2", "plain")]
    assert data.sentence.startswith("Of 3,000 events of 3 writers, 10 events of 1 writer are missing.")


def test_the_matrix_has_offsets_without_events_and_only_anomalies_are_red() -> None:
    data = verdicts_matrix(ANOMALIES)
    assert data is not None
    assert [row[:2] for row in data.rows] == [("billing", "orders"), ("mail", HOSTILE)]
    numbers, tones = (dict(zip(data.columns, values, strict=True)) for values in (data.rows[0][2], data.tones))
    assert (numbers["NEVER_SEEN"], tones["NEVER_SEEN"], tones["EXACTLY_ONCE"], tones["PENDING"]) == (5, "bad", "good", "plain")
    assert (shade(970, data.most), shade(1, data.most), shade(0, data.most)) == (4, 1, 0)


def test_errors_beyond_the_widest_table_are_added_up() -> None:
    data = failures_matrix([Failures("g", "h", f"t{n:02}", "E", n + 1) for n in range(14)])
    assert data is not None
    assert (len(data.columns), data.columns[-1], data.rows[0][2][-1]) == (13, "other topics", 1 + 2)


def test_a_plan_says_how_much_of_it_is_without_risk_and_what_it_leaves_out() -> None:
    assert plan_sentence(Summary("/out/plan.jsonl", [Planned(Action.REDELIVER, 2, 4), Planned(Action.REVIEW, 1, 6)], 1)) == (
        "plan.jsonl beside this page says how to mend it: 4 of 10 offsets without risk, and “ackwise plan apply” does it. "
        "1 message is left out, since events that mend it may still come."
    )
    assert "plan.jsonl" not in render(replace(ANOMALIES, plan=Summary("/out/plan.jsonl", [], 0)))


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


def test_what_is_drawn_is_in_the_summary_too() -> None:
    found = json.loads(json.dumps(details_as_json(DETAILS)))
    assert found["latencies"][0]["messages"] == 997
    assert found["strips"][0]["bins"]["0"] == {"LOST": 1}
    assert found["stuck"][0]["older_than_seconds"]["300"] == 1
    assert found["exports"]["writers"][0]["missing"] == [0, 10, 0]
    assert found["stories"][0]["steps"][1]["event"] == "FAILED"
    assert found["earlier"] == ["20251231T000000Z-0001", HOSTILE]


def test_a_page_on_two_hundred_partitions_where_much_went_wrong_is_below_half_a_megabyte() -> None:
    books = [Book(partition(n), 0, 100_000, False, {ONCE: 99_000, LOST: 900, DEAD: 50, UNKNOWN: 50}, {}, 0) for n in range(200)]
    strips = [
        Strip(book, {b: {LOST: 1} if b % 2 else {UNKNOWN: 1} for b in range(160)}, range(0, 160, 9), range(0, 160, 9)) for book in books
    ]
    details = replace(DETAILS, strips=strips, stories=[*DETAILS.stories] * 25, exports=[*DETAILS.exports] * 70)
    report = replace(ANOMALIES, books=books, details=details, writers=[*ANOMALIES.writers] * 70, findings=[*ANOMALIES.findings] * 10)
    assert len(render(report).encode()) < 500_000


@pytest.mark.parametrize(
    ("error", "safe"),
    [("TimeoutError", "TimeoutError"), ("billing.errors.Declined", "billing.errors.Declined"), ("undecodable", "undecodable"), ("", "")],
)
def test_the_class_of_an_exception_is_shown(error: str, safe: str) -> None:
    assert safe_error(error) == safe


def test_a_reason_that_a_handler_gave_itself_is_not_shown_though_a_run_failed_with_it() -> None:
    assert safe_error("customer 4711 is odd") == "given by the handler"
