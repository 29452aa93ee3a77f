"""What follows from the survey: who lives, what now is, which partitions are sources. Needs no Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.logs import Logs
from ackwise.spark.fold.facts import ROLES, Facts, KeyCollision, SurveyRow, WriterFate, establish

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


def test_no_events_are_judged_as_of_no_time() -> None:
    facts = establish([], CONFIG)
    assert (facts.as_of, list(facts.writers), dict(facts.partitions)) == (0, [], {})


def test_now_is_the_newest_event_of_the_slowest_writer_that_lives() -> None:
    facts = establish([said(1, last_ts=900 * SECOND), said(2, last_ts=1000 * SECOND)], CONFIG)
    assert facts.as_of == 900 * SECOND


def test_a_writer_that_fell_silent_does_not_hold_time_back() -> None:
    facts = establish([said(1, last_ts=399 * SECOND), said(2, last_ts=1000 * SECOND)], CONFIG)
    assert fates(facts) == {1: WriterFate.DEAD, 2: WriterFate.LIVE}
    assert facts.as_of == 1000 * SECOND


def test_a_writer_that_ended_does_not_hold_time_back() -> None:
    facts = establish([said(1, last_ts=900 * SECOND, ended=1), said(2, last_ts=1000 * SECOND)], CONFIG)
    assert fates(facts) == {1: WriterFate.ENDED, 2: WriterFate.LIVE}
    assert facts.as_of == 1000 * SECOND


def test_without_a_writer_that_lives_now_is_the_newest_event() -> None:
    assert establish([said(1, last_ts=900, ended=1), said(2, last_ts=1000, ended=1)], CONFIG).as_of == 1000


def test_a_time_that_was_given_makes_writers_dead_that_were_silent_before_it() -> None:
    facts = establish([said(1, last_ts=1000 * SECOND)], ReconcileConfig(as_of=1601, writer_timeout=600))
    assert (facts.as_of, fates(facts)) == (1601 * SECOND, {1: WriterFate.DEAD})


def test_a_writer_is_dead_once_others_have_all_its_partitions() -> None:
    rows = [
        said(1, pk=7, assigned_seq=1, assigned_ts=10, last_ts=20),
        said(1, pk=8, assigned_seq=2, assigned_ts=10, last_ts=20),
        said(2, pk=7, assigned_seq=1, assigned_ts=30, last_ts=40),
    ]
    assert fates(establish(rows, CONFIG)) == {1: WriterFate.LIVE, 2: WriterFate.LIVE}
    assert fates(establish([*rows, said(3, pk=8, assigned_seq=1, assigned_ts=30, last_ts=40)], CONFIG))[1] == WriterFate.DEAD


def test_a_writer_that_gave_its_partitions_back_lives() -> None:
    rows = [
        said(1, pk=7, assigned_seq=1, revoked_seq=2, assigned_ts=10, last_ts=20),
        said(2, pk=7, assigned_seq=1, assigned_ts=30, last_ts=40),
    ]
    assert fates(establish(rows, CONFIG))[1] == WriterFate.LIVE


def test_a_writer_that_still_holds_its_log_lives() -> None:
    rows = [said(1, pk=7, assigned_seq=1, assigned_ts=10, last_ts=20), said(2, pk=7, assigned_seq=1, assigned_ts=30, last_ts=40)]
    assert fates(establish(rows, CONFIG))[1] == WriterFate.DEAD
    facts = establish(rows, CONFIG, Logs(still_written=frozenset({1})))
    assert (fates(facts)[1], facts.as_of) == (WriterFate.LIVE, 20)


def test_a_writer_that_still_speaks_after_the_take_over_lives() -> None:
    rows = [said(1, pk=7, assigned_seq=1, assigned_ts=10, last_ts=50), said(2, pk=7, assigned_seq=1, assigned_ts=30, last_ts=40)]
    assert fates(establish(rows, CONFIG))[1] == WriterFate.LIVE


@pytest.mark.parametrize(
    ("mode", "ended", "unreadable", "is_unknown"),
    [("before_settle", 0, False, False), ("async", 0, False, True), ("async", 1, False, False), ("before_settle", 1, True, True)],
)
def test_a_tail_is_unknown_where_more_may_have_happened_than_was_exported(
    mode: str, ended: int, unreadable: bool, is_unknown: bool
) -> None:
    rows = [said(1, session=json.dumps({"mode": mode}), ended=ended), said(2, last_ts=1000 * SECOND)]
    writer = establish(rows, CONFIG, Logs(unreadable=frozenset({1} if unreadable else ()))).writers[0]
    assert writer.tail_is_unknown == is_unknown


def test_the_first_offset_is_the_smallest_that_anybody_says() -> None:
    rows = [said(1, pk=7, start=5), said(2, pk=7, start=3), said(3, pk=7)]
    assert establish(rows, CONFIG).partitions[7].start == 3


@pytest.mark.parametrize(("roles", "is_source"), [(0, True), (ROLES["source"], True), (ROLES["retry"], False), (ROLES["delay"], False)])
def test_a_partition_that_was_only_assigned_for_retries_is_no_source(roles: int, is_source: bool) -> None:
    assert establish([said(1, pk=7, roles=roles)], CONFIG).partitions[7].is_source == is_source


def test_settings_come_from_the_sessions_of_the_group() -> None:
    rows = [
        said(1, session=json.dumps({"lease": 10, "retention": 100, "levels": [1, 2]}), first_ts=5),
        said(2, session=json.dumps({"lease": 20, "retention": 50, "levels": [3]}), first_ts=9),
        said(3, session="not JSON"),
        said(4, session=json.dumps({"lease": "long", "levels": []})),
    ]
    group = establish(rows, CONFIG).groups["c", "g"]
    assert (group.lease, group.retention, group.levels) == (20 * SECOND, 100 * SECOND, (3 * SECOND,))


def test_settings_that_were_given_win() -> None:
    config = ReconcileConfig(lease=1, retention=2, levels=(4.0,))
    group = establish([said(1, session=json.dumps({"lease": 10, "retention": 100, "levels": [1, 2]}))], config).groups["c", "g"]
    assert (group.lease, group.retention, group.levels) == (SECOND, 2 * SECOND, (4 * SECOND,))


def test_retries_are_drained_once_all_retry_partitions_are() -> None:
    retry = ROLES["retry"]
    rows = [said(1, pk=7, roles=retry, drained_ts=30), said(2, pk=7, roles=retry, drained_ts=50), said(1, pk=8, roles=retry)]
    assert establish(rows, CONFIG).retries_drained() == {}
    assert establish([*rows, said(2, pk=8, roles=retry, drained_ts=40)], CONFIG).retries_drained() == {("c", "g"): 40}


def test_two_partitions_with_one_key_are_refused() -> None:
    with pytest.raises(KeyCollision, match="two partitions have the key 7"):
        establish([said(1, pk=7), said(1, pk=7)._replace(partition=1)], CONFIG)


def test_two_handlers_with_one_key_are_refused() -> None:
    with pytest.raises(KeyCollision, match="two handlers have the key 9"):
        establish([said(1, pk=7, mk=9, message_events=1), said(1, pk=7, mk=9, message_events=1, handler="other")], CONFIG)
