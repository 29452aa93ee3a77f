"""What the job counts for the page, from a made-up history whose numbers are known."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.histories import NOW, SECOND, TOPIC, History, write_parquet
from tests.spark.reconciling import AS_OF, reconciled, root_of, summary

from ackwise.middleware.events import EventCode


def history() -> History:
    """Copies, failures, a hole, and records that took 1 s, 100 s and less than nothing."""
    found = History("g").assign("w1", 0)
    found.say("w1", "RECEIVED_RANGE[0,9) 0:CS 1:CS", record_ts=NOW - 20 * SECOND - 1_000_000)
    found.say("w1", "2:CFB 3:CFB", error="TimeoutError").say("w1", "2@2:CS", record_ts=NOW - 120 * SECOND)
    found.say("w1", "3@2:CFX", error="ValueError").say("w1", "4:CS", record_ts=NOW)
    found.skip("w1", 7).say("w1", "5:CF", error="TimeoutError").say("w1", "W=10")
    found.add("w1", EventCode.REVOKED, topic=TOPIC, partition=0, offset=10)
    return found


def left_open() -> History:
    """A claim that a dead worker left, and a record that was passed by."""
    return History("h").say("w2", "RECEIVED_RANGE[7,8) 7:C", ago=7200).say("w3", "8:CS W=10")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The details, of events that were all exported twice."""
    folder = tmp_path_factory.mktemp("details")
    made = history()
    root = root_of(root_of(folder / "root", made), left_open())
    write_parquet(root / "events" / "dt=2026-01-01" / "hr=00" / "events-00000000000000ab-000000000000-000000000009.parquet", made.events)
    result = reconciled(root, "--out", folder / "out", "--as-of", AS_OF, "--format", "json")
    assert json.loads(result.stdout) == summary(folder / "out")
    found: dict[str, Any] = summary(folder / "out")["exhibits"]
    return found


def test_latencies_are_from_the_record_to_the_success(told: dict[str, Any]) -> None:
    (row,) = told["latencies"]
    assert (row["group"], row["topic"], row["messages"], row["negative"]) == ("g", TOPIC, 4, 1)
    assert row["ms"]["p50"] == pytest.approx(1000, rel=0.06)
    assert row["ms"]["p99"] == pytest.approx(100_000, rel=0.06)


def test_attempts_and_failures_count_an_event_once_however_often_it_was_exported(told: dict[str, Any]) -> None:
    first, second = told["attempts"][0]["reached"]
    assert (first["done"], first["again"], second["done"], second["dead"]) == (3, 2, 1, 1)
    assert {row["error"]: row["runs"] for row in told["failures"]} == {"TimeoutError": 3, "ValueError": 1}


@pytest.mark.usefixtures("engine")
def test_attempts_in_place_have_a_column_and_a_late_success_is_no_copy_that_came_early(tmp_path: Path) -> None:
    made = History("g").assign("w1", 0)
    made.say("w1", "0:CICICS 1:CIFX 2:CS").say("w1", "3:COBY 3@2:D W=4", due_ts=NOW + 60 * SECOND)
    found = reconciled(root_of(tmp_path / "root", made), "--out", tmp_path / "out", "--as-of", AS_OF)
    assert found.exit_code == 0, found.output
    said = summary(tmp_path / "out")
    reached = said["exhibits"]["attempts"][0]["reached"]
    assert [(row["done"], row["again"], row["in_place"], row["dead"]) for row in reached] == [(1, 1, 2, 0), (1, 0, 1, 1), (1, 0, 0, 0)]
    assert said["delays"] == []
    assert said["flags"]["TIMED_OUT"] == 1


def test_what_went_wrong_stands_in_its_bin_beside_who_came_and_went(told: dict[str, Any]) -> None:
    strip, of_h = told["strips"]
    assert (strip["start"], strip["width"], strip["assigned"], strip["revoked"]) == (0, 1, [0], [10])
    assert strip["bins"]["3"] == {"DEAD_LETTERED": 1}
    assert strip["bins"]["5"] != {}
    assert of_h["bins"] == {"0": {"STUCK": 1}, "2": {"NEVER_SEEN": 1}}


def test_a_stuck_claim_is_that_of_its_writer_and_as_old_as_it_is(told: dict[str, Any]) -> None:
    (claims,) = told["stuck"]
    assert (claims["client"], {age: number for age, number in claims["older_than_seconds"].items() if number}) == ("w2", {"3600": 1})


def test_what_is_missing_of_a_writer_is_counted_beside_what_is_there(told: dict[str, Any]) -> None:
    exports = [(sum(each["events"]), sum(each["missing"])) for each in told["exports"]["writers"]]
    made = Counter(event["writer_id"] for event in (*history().events, *left_open().events))
    assert sorted(exports) == sorted((number, 7 if number == max(made.values()) else 0) for number in made.values())


def test_each_anomaly_has_its_story(told: dict[str, Any]) -> None:
    stories = {(story["group"], story["offset"], story["verdict"]): story["steps"] for story in told["stories"]}
    stuck, never = stories["h", 7, "STUCK"], stories["h", 9, "NEVER_SEEN"]
    assert [(step["event"], step["what"]) for step in stuck] == [
        ("RECEIVED_RANGE", "fetched from orders/0, among offsets 7"),
        ("CLAIMED", "claimed for run 1"),
        (None, "its last event: it vanished without closing its log"),
        ("COMMITTED", "committed orders/0 to 10, which passes 7"),
    ]
    assert [(step["event"], step["worker"]) for step in never] == [("COMMITTED", "")]
