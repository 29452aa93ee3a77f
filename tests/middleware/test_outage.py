"""What a worker does while the event log is out of order, and how often it says that something is: nothing is started, and said once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.tables import each

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.runs.run import Stage


@each("dedup", [False, True])
async def test_nothing_is_begun_until_the_log_is_durable_again(make_spine: Any, dedup: bool) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[Any]) -> None:
        ran.extend(message.offset for message in batch)
        spine.sink.error = FULL_DISK if len(ran) == 1 else None

    spine = make_spine(handler, dedup=dedup)
    first, second = [spine.entry(100, value=b"a")], [spine.entry(101, value=b"b")]
    assert await spine.run(first) == [Stage.PUBLISHED]
    assert await spine.run(second) == [Stage.FETCHED]
    assert (ran, spine.watermark.commit) == ([100], 100)
    assert not any(trip.claims for trip in spine.store.trips[1:]), "nothing is claimed for it either"
    spine.sink.error = None
    spine.clock.now += 60
    assert await spine.run(second) == [Stage.SETTLED]
    assert await spine.run(first) == [Stage.SETTLED]
    assert (ran, spine.watermark.commit) == ([100, 101], 102)


@each("by_key", [False, True])
async def test_a_success_that_could_not_be_recorded_is_not_run_again_by_the_next_owner_which_records_it(
    make_spine: Any, by_key: bool
) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[Any]) -> None:
        ran.extend(message.offset for message in batch)

    async def fill_the_disk(batch: Batch[Any]) -> None:
        await handler(batch)
        first.sink.error = FULL_DISK

    dedup = {"key": lambda message: "one"} if by_key else True
    first = make_spine(fill_the_disk, dedup=dedup)
    (entry,) = entries = first.entries(1)
    assert await first.run(entries) == [Stage.PUBLISHED]
    (claimed,) = [event for event in first.sink.events if event.code is EventCode.CLAIMED]
    first.leases.give_back(entry)  # as when its partition leaves
    await first.leases.flush()
    second = make_spine(handler, dedup=dedup, store=first.store, clock=first.clock)
    assert await second.run(second.entries(1)) == [Stage.SETTLED]
    assert ran == [100]
    (suppressed,) = [event for event in second.sink.events if event.code is EventCode.DUP_SUPPRESSED]
    assert suppressed.exec_id == claimed.exec_id
    if by_key:  # so it is for another record with that key, of which the audit must not say that it ran
        assert await second.run(second.entries(1, start=200)) == [Stage.SETTLED]
        assert ran == [100]


@each(("dedup", "stage"), [(False, Stage.FETCHED), (True, Stage.PUBLISHED)])
async def test_without_claims_nothing_is_begun_before_it_is_durable_that_it_was_received(
    make_spine: Any, dedup: bool, stage: Stage
) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[Any]) -> None:
        ran.extend(message.offset for message in batch)

    spine = make_spine(handler, dedup=dedup)
    spine.sink.error = FULL_DISK
    assert await spine.run([spine.entry(100)]) == [stage]
    assert ran == [100] * dedup, "a claim says as much to whoever looks after a kill"


async def test_a_partition_is_said_to_be_held_once_in_a_while_and_not_for_each_of_its_batches(
    make_spine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(batch: Batch[Any]) -> None:
        spine.sink.error = FULL_DISK

    spine = make_spine(handler)
    for offset in range(100, 120):
        await spine.run([spine.entry(offset)])
    assert sum("messages held" in record.getMessage() for record in caplog.records) == 2, "one for each reason"
    spine.clock.now += 6
    await spine.run([spine.entry(130)])
    assert sum("messages held" in record.getMessage() for record in caplog.records) == 3


async def test_the_failures_of_single_messages_are_one_line_for_their_batch(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(message: Any) -> None:
        if message.offset != 101:
            raise ConnectionError("not now")

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(4))
    lines = [record.getMessage() for record in caplog.records if "come back later" in record.getMessage()]
    assert len(lines) == 1
    assert "messages=3 batch=4" in lines[0]
    assert "error=ConnectionError" in lines[0]


async def test_it_is_told_when_the_store_is_back(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(batch: Batch[Any]) -> None: ...

    caplog.set_level("INFO", "ackwise")
    spine = make_spine(handler, dedup=True)
    spine.store.fail = lambda exchange: True
    entries = spine.entries(1)
    await spine.run(entries)
    spine.store.fail = lambda exchange: False
    spine.clock.now += 60
    await spine.run(entries)
    assert sum("store answered again" in record.getMessage() for record in caplog.records) == 1
