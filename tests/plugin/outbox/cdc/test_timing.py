"""Rows with a time, by the log of their database: they are sent from the table, when it says so, or never."""

from __future__ import annotations

import datetime

import pytest
from tests.fakes import Sink
from tests.plugin.outbox.cdc.world import World, until

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import RowState, TransactionOutcome
from ackwise.middleware.storage.rowtime import timing_of

pytestmark = pytest.mark.servers

_PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


async def test_a_delayed_row_is_sent_when_it_is_due_and_the_log_goes_on_meanwhile(any_world: World) -> None:
    async with any_world.running() as relay:
        async with any_world.outbox.transaction(any_world.database) as outbox:
            outbox.send("orders", b"much later", key=b"k", delay="1h")
            outbox.send("orders", b"later", key=b"k", delay=0.5)
            outbox.send("orders", b"now", key=b"k")
        await until(lambda: any_world.kafka.values == [b"now", b"later"])
        await any_world.write(b"next", key=b"k")
        await until(lambda: any_world.kafka.values == [b"now", b"later", b"next"])
        await until(lambda: relay.counts.position is not None)
    assert [row for (row,) in await any_world.rows("SELECT state FROM ackwise_outbox")] == [RowState.LOCAL_COMMIT]


async def test_a_row_whose_time_is_over_is_never_sent_and_one_in_time_goes_before_the_next_of_its_key(any_world: World) -> None:
    sink = any_world.sink = Sink()
    async with any_world.running() as relay:
        async with any_world.outbox.transaction(any_world.database) as outbox:
            outbox.send("orders", b"late", key=b"k", expires=_PAST, message_id="late")
            outbox.send("orders", b"in time", key=b"k", expires="1h")
            outbox.send("orders", b"next", key=b"k")
        await until(lambda: any_world.kafka.values == [b"in time", b"next"])
        await until(lambda: relay.counts.expired == 1)
    assert [event.dedup_key for event in sink.events if event.code is EventCode.OUTBOX_EXPIRED] == ["late"]
    assert [row for (row,) in await any_world.rows("SELECT state FROM ackwise_outbox")] == [RowState.EXPIRED]
    async with any_world.running():
        await any_world.write(b"after")
        await any_world.is_sent_and_deleted(b"after")
    assert any_world.kafka.values == [b"in time", b"next", b"after"]


async def test_a_delayed_half_message_is_sent_after_its_commit(any_world: World) -> None:
    async with any_world.running():
        message = Outgoing("orders", b"1", b"k")
        await any_world.outbox.prepare([message], "t1", producer_group="shop", first_check=600.0, timing=timing_of(delay=0.5))
        await any_world.write(b"now")
        await until(lambda: any_world.kafka.values == [b"now"])
        assert await any_world.outbox.decide("t1", TransactionOutcome.COMMIT) == 1
        await until(lambda: any_world.kafka.values == [b"now", b"1"])
