"""What a worker may have ended at: portions that get smaller with each death, and at last one message alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ackwise.middleware.claims.isolation import DEAD_AFTER, Suspects
from ackwise.middleware.message.disposition import Dead
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.progress.commitmetadata import CommitMetadata, Tried
from ackwise.middleware.runs.run import Run

PLACE = TopicPartition("orders", 0)

LEFT_OPEN = CommitMetadata(is_open=True)


def runs(offsets: Sequence[int], size: int = 7) -> list[Run]:
    pipeline: Any = SimpleNamespace(agent=SimpleNamespace(max_batch=200))
    records = [SimpleNamespace(offset=offset, timestamp=0) for offset in offsets]
    return [Run(PLACE, records[first : first + size], pipeline) for first in range(0, len(records), size)]


def portion(suspects: Suspects) -> list[int]:
    """Name and take the next portion; returns its offsets."""
    return [offset for run in suspects.take() for offset in run.offsets] if suspects.begin() else []


def test_nothing_is_suspect_after_an_owner_that_ended_in_order_or_where_nothing_was_there() -> None:
    assert Suspects.after(CommitMetadata(is_open=False), 100, 200) is None
    assert Suspects.after(CommitMetadata(), 100, 200) is None
    assert Suspects.after(LEFT_OPEN, 100, 100) is None
    assert Suspects.after(CommitMetadata(is_open=True, tried=Tried(90, 100, 0)), 100, 200) is None


def test_after_a_first_death_what_follows_the_commit_is_tried_in_growing_portions_as_far_as_the_log_reached() -> None:
    for log_end, sizes in ((350, [200, 50]), (2700, [200, 400, 800, 1000, 200]), (None, [200, 400, 800, 1000, 1000])):
        suspects = Suspects.after(LEFT_OPEN, 100, log_end)
        assert suspects is not None
        suspects.add(runs(range(100, 3600)))
        first = 100
        for size in sizes:
            assert portion(suspects) == [*range(first, first + size)]
            assert suspects.tried == Tried(first, first + size, 0)
            suspects.end()
            first += size
        assert suspects.is_over(3500) is (log_end is not None)
        assert suspects.tried is None
        assert next(iter(suspects)).first == first


@given(st.integers(0, 499), st.integers(1, 50), st.booleans())
def test_the_message_that_ends_each_worker_is_dead_after_ten_tries_alone_and_no_other(killer: int, size: int, one_at_a_time: bool) -> None:
    left, position, deaths, alone = LEFT_OPEN, 0, 1, 0
    while True:
        suspects = Suspects.after(left, position, 500)
        assert suspects is not None
        waiting = runs(range(position, 500), size)
        suspects.add(waiting[:1] if one_at_a_time else waiting)
        waiting = waiting[1:] if one_at_a_time else []
        while True:
            if not suspects.begin():
                suspects.add(waiting[:1])
                waiting = waiting[1:]
                continue
            is_alone, left = suspects.is_alone, CommitMetadata(is_open=True, tried=suspects.tried)
            taken = suspects.take()
            dead = [run.first for run in taken if isinstance(run.disposition, Dead)]
            if dead:
                assert dead == [killer]
                assert alone == DEAD_AFTER
                assert deaths <= 13
                return
            if any(killer in run.offsets for run in taken):
                deaths, alone = deaths + 1, alone + is_alone
                assert deaths <= 13
                break
            position = taken[-1].last + 1
            suspects.end()


def test_what_one_agent_tried_alone_is_not_suspect_for_another() -> None:
    left = CommitMetadata(is_open=True, tried=Tried(100, 101, 4, "aaaa"))
    assert Suspects.after(left, 100, 200, "bbbb") is None
    suspects = Suspects.after(left, 100, 200, "aaaa")
    assert suspects is not None
    suspects.add(runs([100, 101]))
    assert portion(suspects) == [100]
    assert suspects.tried == Tried(100, 101, 5, "aaaa")
    suspects.give_up()
    assert suspects.tried == Tried(100, 101, 4, "aaaa"), "nor for another agent of the next owner"


def test_tries_are_those_of_the_message_that_was_tried_and_no_other() -> None:
    suspects = Suspects.after(CommitMetadata(is_open=True, tried=Tried(100, 101, 9)), 100, 200)
    assert suspects is not None
    suspects.add(runs([104]))
    assert portion(suspects) == []
    assert suspects.is_over(105)


def test_what_was_tried_is_told_on_until_it_was_tried_again() -> None:
    suspects = Suspects.after(CommitMetadata(is_open=True, tried=Tried(100, 164, 0)), 90, 200)
    assert suspects is not None
    assert suspects.tried == Tried(100, 164, 0)
    suspects.add(runs(range(90, 170)))
    assert portion(suspects) == [*range(90, 100)], "what is before it was not tried"
    assert suspects.tried == Tried(100, 164, 0)
    suspects.end()
    suspects.begin()
    assert suspects.tried == Tried(100, 102, 0)
    suspects.give_up()
    assert suspects.tried == Tried(100, 164, 0)


def test_what_is_before_a_message_that_was_tried_alone_has_none_of_its_tries() -> None:
    suspects = Suspects.after(CommitMetadata(is_open=True, tried=Tried(100, 101, 9)), 98, 200)
    assert suspects is not None
    suspects.add(runs(range(98, 103)))
    assert not suspects.is_alone
    assert portion(suspects) == [98, 99]
    suspects.end()
    assert suspects.is_alone
    assert portion(suspects) == [100]
    assert suspects.tried == Tried(100, 101, 10)
