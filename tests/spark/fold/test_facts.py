"""What follows from the survey: who lives, what now is, which partitions are sources. Needs no Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.logs import Logs
from ackwise.spark.fold.facts import Facts, KeyCollision, SurveyRow, WriterFate, establish

SECOND = 1_000_000
CONFIG = ReconcileConfig(writer_timeout=600)


def said(writer_id: int = 1, **values: Any) -> SurveyRow:
    """What a writer says; of the topic `orders`, if it has a `pk`."""
    row: dict[str, Any] = dict.fromkeys(SurveyRow._fields) | {
        "writer_id": writer_id, "cluster": "c", "group_id": "g", "topic": "orders" if values.get("pk") else "", "topic_id": "",
        "partition": 0, "handler": "", "dedup_epoch": 0, "pk": 0, "mk": 0, "first_ts": 0, "last_ts": 0, "first_seq": 0, "last_seq": 0,
        "ended": 0, "strange": 0, "message_events": 0, "roles": 0,
    }  # fmt: skip
    return SurveyRow(**(row | values))


def fates(facts: Facts) -> dict[int, WriterFate]:
    return {writer.writer_id: writer.fate for writer in facts.writers}


def test_a_writer_that_still_holds_its_log_lives_though_others_have_its_partitions_and_its_tail_is_no_hole() -> None:
    rows = [said(1, pk=7, assigned_seq=1, assigned_ts=10, last_ts=20), said(2, pk=7, assigned_seq=1, assigned_ts=30, last_ts=40)]
    assert fates(establish(rows, CONFIG))[1] == WriterFate.DEAD
    facts = establish(rows, CONFIG, Logs(still_written=frozenset({1})))
    assert (fates(facts)[1], facts.as_of) == (WriterFate.LIVE, 20)


def test_a_last_commit_shows_that_events_are_missing_unless_its_writer_still_writes() -> None:
    rows, last = [said(1, last_ts=100 * SECOND), said(2, last_ts=1000 * SECOND)], [LastCommit("g", 1, 9), LastCommit("g", 2, 9)]
    dead, live = establish(rows, CONFIG, last_commits=last).writers
    assert ((dead.fate, dead.tail_is_unknown), (live.fate, live.tail_is_unknown)) == ((WriterFate.DEAD, True), (WriterFate.LIVE, False))


@each(
    "attrs,rolled_on,unreadable,is_marked",
    [
        ({"marks": True, "boot_id": "b1"}, "b1", (), True),
        ({"marks": True, "boot_id": "b1"}, "b2", (), False),
        ({"marks": True, "boot_id": "b1"}, None, (), False),
        ({"marks": True}, None, (), False),
        ({"boot_id": "b1"}, "b1", (), False),
        ({"marks": False, "boot_id": "b1"}, "b1", (), False),
        ({"marks": True, "boot_id": "b1", "mode": "async"}, "b1", (), False),
        ({"marks": True, "boot_id": "b1"}, "b1", (1,), False),
    ],
)
def test_a_dead_writer_says_what_it_started_if_it_marked_it_and_its_machine_ran_on(
    attrs: dict[str, object], rolled_on: str | None, unreadable: tuple[int, ...], is_marked: bool
) -> None:
    rows = [said(1, last_ts=10, session=json.dumps(attrs)), said(2, last_ts=1000 * SECOND, session=json.dumps({"marks": True}))]
    logs = Logs(unreadable=frozenset(unreadable), rolled_on={} if rolled_on is None else {1: rolled_on})
    assert establish(rows, CONFIG, logs).marked == ({1} if is_marked else set())


def test_two_partitions_with_one_key_are_refused() -> None:
    with pytest.raises(KeyCollision, match="two partitions have the key 7"):
        establish([said(1, pk=7), said(1, pk=7)._replace(partition=1)], CONFIG)


def test_two_handlers_with_one_key_are_refused() -> None:
    with pytest.raises(KeyCollision, match="two handlers have the key 9"):
        establish([said(1, pk=7, mk=9, message_events=1), said(1, pk=7, mk=9, message_events=1, handler="other")], CONFIG)
