"""Messages that are cancelled while they wait: what the relay drops, and what it says of that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.errors import NotLeaderForPartitionError
from tests.plugin.delays.desk import NAMES, Desk
from tests.waiting import until

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.policies.delaytopic import WAITS
from ackwise.plugin.delays.cancellations import CANCELLED, CancelPartition
from ackwise.plugin.kafka.topicreader import Unreadable
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing import MemoryKafka


def test_a_cancellation_names_the_message_its_record_its_replay_and_its_handler() -> None:
    desk = Desk()
    assert desk.key(5) == b"orders/2/105/7//bill"
    assert desk.key(5, handler="ship", replay_id=b"r1") == b"orders/2/105/7/7231/ship"


async def test_a_cancelled_message_does_not_come_back_and_its_neighbours_do_and_without_events_it_is_dropped_all_the_same() -> None:
    for has_events in (True, False):
        desk = Desk(has_events=has_events)
        desk.put(0, 1, 2)
        desk.put(3, handler="ship")
        desk.put(4, replay_id=b"r")
        desk.broker.keys |= {desk.key(offset) for offset in (1, 3, 4)}
        await desk.until(1_010.0)
        assert [value for _, value in desk.went] == [b"0", b"2", b"3", b"4"]
        assert (desk.watermark.commit, desk.counts.cancelled, len(desk.broker.events)) == (5, 1, int(has_events))


async def test_a_cancelled_copy_is_dropped_when_it_is_looked_at_due_or_not() -> None:
    """So its cancellation need not outlive the rung that it is in."""
    for wait, due in ((10, 1_100.0), (10, 1_010.4), (60, 1_060.0)):
        desk = Desk(partition=WAITS.index(wait) + 1)
        desk.put(0, due=due)
        desk.broker.keys.add(desk.key(0))
        await desk.until(1_000.0 + wait)
        assert (desk.went, desk.watermark.commit, desk.counts.cancelled) == ([], 1, 1)


async def test_a_copy_that_is_cancelled_while_it_is_set_aside_is_dropped() -> None:
    desk = Desk()
    desk.put(0, due=1_010.4)
    await desk.until(1_010.0)
    desk.broker.cancelled_by_the_end.add(desk.key(0))
    await desk.until(1_010.5)
    assert (desk.went, desk.watermark.commit) == ([], 1)


async def test_it_is_recorded_where_it_came_from_and_durable_before_the_relay_may_commit() -> None:
    desk = Desk()
    desk.put(0)
    desk.broker.keys.add(desk.key(0))
    desk.broker.log_is_away = True
    await desk.until(1_010.4)
    assert desk.watermark.commit == 0, "as long as the event is not durable, the copy is there"
    desk.broker.log_is_away = False
    await desk.until(1_010.5)
    assert desk.watermark.commit == 1
    event = desk.broker.events[-1]
    assert event[:6] == (EventCode.CANCELLED, "orders", 2, 100, "bill", 2)
    assert (event.phys_topic, event.phys_partition, event.phys_offset, event.due_ms) == (NAMES.delay, 1, 0, 1_010_000)
    assert desk.went == []


async def test_a_cancelled_copy_whose_event_can_t_be_written_is_held_for_ten_seconds_and_takes_a_rung_again() -> None:
    desk = Desk()
    desk.put(0)
    desk.broker.keys.add(desk.key(0))
    desk.broker.log_is_away = True
    await desk.until(1_019.9)
    assert (desk.went, desk.watermark.commit) == ([], 0)
    await desk.until(1_026.0)
    assert (desk.went, desk.watermark.commit, desk.counts.cancelled) == ([(NAMES.delay, b"0")], 1, 0)
    again = desk.broker.sent[0]
    assert (again.headers, again.until is not None and again.until > 1_026_000) == (desk.record(0).headers, True), "it is still cancelled"


async def test_cancellations_are_read_to_the_end_after_a_message_is_due_and_before_it_moves() -> None:
    """What was acknowledged a moment before it was due is seen, however long ago they were read last."""
    desk = Desk()
    desk.put(0)
    await desk.turn()
    assert desk.broker.log == []
    desk.broker.cancelled_by_the_end.add(desk.key(0))
    await desk.turn(1_010.0)
    assert (desk.broker.log[0], desk.went) == ("read", [])


async def test_what_becomes_due_while_cancellations_are_read_moves_after_the_next_reading() -> None:
    """The end of the log may be older than the answer that has it: what was cancelled in between is not in it, and was not due."""
    desk = Desk()
    desk.put(0, due=1_010.9)
    await desk.until(1_010.0)
    desk.now = 1_010.8
    desk.runs[0].not_before = desk.now
    read = desk.broker.read

    async def read_slowly() -> None:
        await read()
        desk.now = 1_012.0

    desk.broker.read = read_slowly  # type: ignore[method-assign]
    await desk.turn()
    desk.broker.read = read  # type: ignore[method-assign]
    assert desk.went == []
    desk.broker.cancelled_by_the_end.add(desk.key(0))
    await desk.turn()
    assert (desk.went, desk.counts.cancelled, desk.watermark.commit) == ([], 1, 1)


async def test_nothing_moves_and_nothing_is_lost_while_the_cancellations_can_t_be_read(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.put(0, 1)
    desk.broker.cancellations_are_away = True
    rests = []
    for _ in range(5):
        await desk.turn(max(1_010.0, desk.next_at or 0.0))
        rests.append((desk.next_at or 0.0) - desk.now)
    assert rests == [0.5, 1.0, 2.0, 4.0, 5.0]
    assert (desk.went, desk.watermark.commit) == ([], 0)
    assert caplog.text.count("cancellations could not be read") == 1
    desk.broker.cancellations_are_away = False
    await desk.until(1_030.0)
    assert ([value for _, value in desk.went], desk.watermark.commit) == ([b"0", b"1"], 2)


async def test_what_is_due_together_is_published_together_in_the_order_of_its_offsets() -> None:
    desk = Desk()
    desk.put(*range(100))
    await desk.until(1_010.0)
    assert desk.broker.log == ["read", "publish 100"]
    assert [value for _, value in desk.went] == [b"%d" % offset for offset in range(100)]
    assert desk.watermark.commit == 100


async def test_offsets_that_are_missing_in_the_log_hold_no_commit_up() -> None:
    desk = Desk()
    desk.put(0, 1, 4, 5, 9)
    await desk.until(1_010.0)
    assert desk.watermark.commit == 10


@asynccontextmanager
async def cancel_partition() -> AsyncIterator[tuple[MemoryKafka, CancelPartition]]:
    async with MemoryKafka() as kafka:
        kafka.create_topic(NAMES.delay)
        cancellations = CancelPartition(HostSettings(kafka.bootstrap, "billing"), NAMES.delay)
        try:
            yield kafka, cancellations
        finally:
            await cancellations.close()


def cancel(kafka: MemoryKafka, *keys: bytes, value: bytes | None = CANCELLED) -> None:
    for key in keys:
        kafka.produce(NAMES.delay, value, key=key)


async def test_cancellations_are_read_to_their_end_also_behind_what_compaction_or_a_transaction_left_there() -> None:
    async with cancel_partition() as (kafka, cancellations):
        cancel(kafka, b"a", b"b", b"c", b"d")
        cancel(kafka, b"b", value=None)
        kafka.log(NAMES.delay).remove([0, 4])
        await cancellations.read()
        assert cancellations.keys == {b"b", b"c", b"d"}
        cancel(kafka, b"e")
        await cancellations.read()
        assert cancellations.keys == {b"b", b"c", b"d", b"e"}


@pytest.mark.parametrize("is_trimmed", [True, False])
async def test_of_cancellations_that_are_gone_none_is_remembered_and_those_that_are_there_are_read(is_trimmed: bool) -> None:
    async with cancel_partition() as (kafka, cancellations):
        cancel(kafka, b"a", b"b", b"c")
        await cancellations.read()
        if is_trimmed:
            cancel(kafka, b"d", b"new")
            kafka.log(NAMES.delay).trim(4)
        else:
            kafka.delete_topic(NAMES.delay)
            kafka.create_topic(NAMES.delay)
            cancel(kafka, b"new")
        with pytest.raises(Unreadable):
            await cancellations.read()
        assert cancellations.keys == set()
        await cancellations.read()
        assert cancellations.keys == {b"new"}


async def test_cancellations_that_could_not_be_read_are_read_by_the_next_one_and_no_connection_is_left() -> None:
    async with cancel_partition() as (kafka, cancellations):
        cancel(kafka, b"a")
        kafka.faults.refuse("Fetch", NotLeaderForPartitionError)
        with pytest.raises(Unavailable, match="NotLeaderForPartitionError"):
            await cancellations.read()
        await until(lambda: not kafka._connections)
        await cancellations.read()
        assert cancellations.keys == {b"a"}
