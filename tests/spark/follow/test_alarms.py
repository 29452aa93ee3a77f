"""Each finding is told once, in time, and is gone only if it was mended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.report.reports import CLAIMED

from ackwise.spark.follow.alarms import Patience, Red, Told
from ackwise.spark.follow.ranges import Findings, Kind
from ackwise.spark.follow.red import red_of

LOST = Kind("LOST", "g", "bill", "orders/0")
STUCK = Kind("STUCK", "g", "bill", "orders/0")
ABSENT = Kind("NEVER_SEEN", "g", "", "orders/0")
PLACE = Kind("", "g", "", "orders/0")


def test_a_finding_is_told_once_and_its_end_once() -> None:
    told, steps = Told(), []
    for red in (Red({LOST: [(1, 3)]}), Red({LOST: [(1, 3)]}), Red({LOST: [(1, 4)]}), Red({LOST: [(2, 4)]}), Red()):
        change = told.change(red, red.present)
        told.take(change)
        steps.append((change.new, change.gone))
    assert steps == [({LOST: [(1, 3)]}, {}), ({}, {}), ({LOST: [(3, 4)]}, {}), ({}, {LOST: [(1, 2)]}), ({}, {LOST: [(2, 4)]})]


def test_as_many_findings_as_before_are_new_if_they_are_others_or_have_another_verdict() -> None:
    told, red = Told({LOST: [(1, 2)], STUCK: [(5, 6)]}), Red({LOST: [(2, 3), (5, 6)]})
    assert told.change(red, red.present) == told.change(red, red.present), "what was not taken is told again"
    change = told.change(red, red.present)
    assert (change.new, change.gone) == ({LOST: [(2, 3), (5, 6)]}, {LOST: [(1, 2)], STUCK: [(5, 6)]})


def test_what_is_unknown_since_events_are_missing_is_not_gone() -> None:
    told = Told({LOST: [(1, 4)], ABSENT: [(7, 9)]})
    change = told.change(Red(unknown={PLACE: [(2, 3), (7, 9)]}), {})
    assert (change.new, change.gone) == ({}, {LOST: [(1, 2), (3, 4)]})


def dues(lateness: float, *audits: tuple[float, Red]) -> list[Findings]:
    patience = Patience(lateness)
    return [patience.due(red, now) for now, red in audits]


def test_without_lateness_all_is_due_at_once() -> None:
    assert dues(0.0, (5.0, Red({LOST: [(1, 2)]}, {ABSENT: [(3, 4)]}))) == [{LOST: [(1, 2)], ABSENT: [(3, 4)]}]


def test_young_findings_are_due_once_audits_found_them_for_the_lateness_though_the_events_stand_still() -> None:
    young, grown = Red(young={ABSENT: [(3, 5)]}), Red(young={ABSENT: [(3, 6)]})
    found = dues(60.0, (0.0, young), (30.0, grown), (59.0, grown), (60.0, grown), (90.0, grown))
    assert found == [{}, {}, {}, {ABSENT: [(3, 5)]}, {ABSENT: [(3, 6)]}]


def test_a_young_finding_that_late_events_mend_is_never_due() -> None:
    young = Red(young={LOST: [(3, 4)]})
    assert dues(60.0, (0.0, young), (30.0, Red()), (61.0, Red()), (90.0, young), (149.0, young)) == [{}, {}, {}, {}, {}]


def test_a_contradiction_with_the_claim_store_is_red_beside_other_findings(tmp_path: Path) -> None:
    where = {"cluster": "c", "group_id": "g", "topic": "orders", "topic_id": "", "partition": 0, "handler": "bill", "dedup_epoch": 0}
    for table, row in (
        ("verdicts", {"offset": 1, "verdict": "LOST", "flags": ["HAD_FAILURES"]}),
        ("claims", {"offset": 7, "finding": "DONE_UNSEEN"}),
    ):
        (tmp_path / table).mkdir()
        pq.write_table(pa.Table.from_pylist([where | row]), tmp_path / table / "part-0.parquet")
    present = red_of(replace(CLAIMED, output=str(tmp_path))).present
    assert {kind.verdict: ranges for kind, ranges in present.items()} == {"LOST": [(1, 2)], "DONE_UNSEEN": [(7, 8)]}
