"""Which offsets are unknown where events are missing. Needs no Spark."""

from __future__ import annotations

import json

from tests.spark.fold.test_facts import SECOND, said

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.fold.facts import establish
from ackwise.spark.fold.gaps import END, Around, Hole, blindness

CONFIG = ReconcileConfig()


def test_nothing_is_unknown_where_nothing_is_missing() -> None:
    found = blindness(establish([said(1)], CONFIG), [], [])
    assert (dict(found.unread), dict(found.unsettled), found.groups) == ({}, {}, frozenset())


def test_a_hole_hides_what_was_read_and_what_was_open_in_it() -> None:
    found = blindness(establish([said(1)], CONFIG), [Hole(1, 4, 8)], [Around(7, reached=20, settled_to=12, resumed=30)])
    assert found.unread == {7: [(20, 30)]}
    assert found.unsettled == {7: [(12, 30)]}
    assert found.groups == {("c", "g")}


def test_a_hole_without_a_before_or_an_after_is_open_ended() -> None:
    found = blindness(establish([said(1)], CONFIG), [Hole(1, 0, 8)], [Around(7, None, None, 30), Around(8, 20, 20, None)])
    assert found.unread == {7: [(0, 30)], 8: [(20, END)]}


def test_spans_that_touch_become_one() -> None:
    around = [Around(7, 10, 10, 20), Around(7, 20, 20, 25), Around(7, 12, 12, 15), Around(7, 40, 40, 50)]
    assert blindness(establish([said(1)], CONFIG), [Hole(1, 0, 8)], around).unread == {7: [(10, 25), (40, 50)]}


def test_an_async_writer_that_died_hides_what_its_successor_did_not_read_again() -> None:
    rows = [
        said(1, session=json.dumps({"mode": "async"})),
        said(1, pk=7, reached=20, handler="bill", mk=1, message_events=1),
        said(1, pk=7, settled_to=12, assigned_to=0, assigned_ts=1, assigned_seq=0),
        said(2, pk=7, assigned_to=15, assigned_ts=9000 * SECOND, assigned_seq=0, last_ts=9000 * SECOND),
    ]
    found = blindness(establish(rows, CONFIG), [], [])
    assert found.unsettled == {7: [(12, 15)]}
    assert found.unread == {}


def test_who_had_the_partition_before_is_no_successor() -> None:
    rows = [
        said(1, session=json.dumps({"mode": "async"})),
        said(1, pk=7, reached=20, settled_to=12, last_ts=10 * SECOND),
        said(2, pk=7, assigned_to=15, assigned_ts=5 * SECOND, assigned_seq=0, last_ts=9000 * SECOND),
    ]
    assert blindness(establish(rows, CONFIG), [], []).unsettled == {7: [(12, END)]}


def test_a_partition_of_which_a_writer_only_saw_copies_is_not_hidden_by_its_death() -> None:
    rows = [
        said(1, session=json.dumps({"mode": "async"})),
        said(1, pk=7, handler="bill", mk=1, message_events=1),
        said(2, last_ts=9000 * SECOND),
    ]
    found = blindness(establish(rows, CONFIG), [], [])
    assert found.unread == {}
    assert found.groups == {("c", "g")}
