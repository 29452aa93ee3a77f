"""`concurrency`: how many calls of a handler are made at a time, in a partition and over all of them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import turns

from ackwise import App, Transactional
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.testing import Place, TestApp


class Gate:
    """A handler whose calls end when the test says so."""

    def __init__(self) -> None:
        self.inside: dict[int, asyncio.Future[None]] = {}
        self.most = 0

    async def __call__(self, argument: Any) -> None:
        messages = [argument] if isinstance(argument, Message) else list(argument)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for message in messages:
            self.inside[message.offset] = end
        self.most = max(self.most, len({id(each) for each in self.inside.values()}))
        try:
            await end
        finally:
            for message in messages:
                del self.inside[message.offset]

    def end(self, *offsets: int, error: Exception | None = None) -> None:
        for offset in offsets:
            if error is None:
                self.inside[offset].set_result(None)
            else:
                self.inside[offset].set_exception(error)


SHOP = {"kind": "message", "order": None}


async def test_without_concurrency_and_with_one_a_partition_has_one_call_at_a_time(shop: Any) -> None:
    for concurrency in (None, 1):
        gate = Gate()
        here = shop(gate, concurrency=concurrency)
        here.offer(3)
        for offset in (100, 101, 102):
            await here.until(lambda offset=offset, gate=gate: offset in gate.inside)
            assert list(gate.inside) == [offset]
            gate.end(offset)
        await here.settled(3)


async def test_messages_of_a_partition_run_side_by_side_up_to_the_number(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, concurrency=3)
    here.offer(5)
    await here.until(lambda: len(gate.inside) == 3)
    assert sorted(gate.inside) == [100, 101, 102]
    gate.end(101)
    await here.until(lambda: 103 in gate.inside)
    gate.end(100, 102, 103)
    await here.until(lambda: 104 in gate.inside)
    gate.end(104)
    await here.settled(5)
    assert gate.most == 3


async def test_a_slow_message_stops_no_later_batch_and_what_is_finished_beside_it_is_settled(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, concurrency=2, max_batch=2, dedup=True)
    here.offer(6)
    await here.until(lambda: len(gate.inside) == 2)
    for offset in (101, 102, 103, 104, 105):
        await here.until(lambda offset=offset: offset in gate.inside)
        gate.end(offset)
    await here.until(lambda: here.lane.in_hand == 1)
    assert list(here.lane.watermark.unfinished) == [(100, 101)]
    gate.end(100)
    await here.settled(6)


async def test_batches_run_side_by_side_up_to_the_number(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, kind="batch", concurrency=2, max_batch=2)
    here.offer(6)
    await here.until(lambda: len(gate.inside) == 4)
    gate.end(100)
    await here.until(lambda: 104 in gate.inside)
    gate.end(102)
    gate.end(104)
    await here.settled(6)
    assert gate.most == 2


async def test_the_number_holds_over_all_partitions_of_a_worker(shop: Any) -> None:
    gate = Gate()
    here, there = shop(gate, concurrency=2), shop(gate, concurrency=2)
    there.pipeline.execution.starts._slots = here.pipeline.execution.starts._slots  # one worker has one pipeline for both
    here.offer(2)
    there.offer(2, start=200)
    await here.until(lambda: len(gate.inside) == 2)
    await turns(10)
    assert len(gate.inside) == 2
    assert sorted(gate.inside) == [100, 101]
    gate.end(100, 101)
    await there.until(lambda: 201 in gate.inside)
    gate.end(200, 201)
    await there.until(lambda: there.lane.watermark.commit == 202)


async def test_one_that_fails_comes_back_alone_and_its_neighbours_are_done(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, concurrency=4, dedup=True)
    here.offer(4)
    await here.until(lambda: len(gate.inside) == 4)
    gate.end(102, error=RuntimeError())
    gate.end(100, 101, 103)
    await here.settled(4)
    assert here.sent == [("billing.delay.10s", 102)]
    for offset in (100, 101, 103):
        assert here.sink.codes(offset).count(EventCode.SUCCEEDED) == 1


async def test_a_lost_claim_calls_off_its_own_message_alone(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, concurrency=3, dedup=True)
    here.offer(3)
    await here.until(lambda: len(gate.inside) == 3)
    lost = next(run for run in here.lane.running if run.first == 101)
    lost.claims.lost = set(lost.claims.tokens)
    lost.call.call_off()
    await here.until(lambda: 101 not in gate.inside)
    assert sorted(gate.inside) == [100, 102]
    gate.end(100, 102)
    await here.until(lambda: 101 in gate.inside)
    gate.end(101)
    await here.settled(3)
    assert here.seen.count([101]) == 2


async def test_a_stop_cancels_all_that_run_side_by_side_and_nothing_of_them_is_passed(shop: Any) -> None:
    gate = Gate()
    here = shop(gate, concurrency=3, dedup=True)
    here.offer(5)
    await here.until(lambda: len(gate.inside) == 3)
    here.lane.stop()
    here.lane.call_off()
    await here.stop()
    assert (gate.inside, here.lane.watermark.commit, here.sent) == ({}, 100, [])
    assert [run.first for run in here.lane.unsettled()] == [100, 101, 102, 103, 104]


async def test_a_system_exit_of_one_lets_the_others_end_and_stops_the_worker(shop: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        if message.offset == 101:
            raise SystemExit(3)

    here = shop(handle, concurrency=2)
    here.offer(2)
    with pytest.raises(BaseException, match="3"):
        await here.lane.task
    assert here.lane.watermark.commit == 101
    here.lane.task = asyncio.get_running_loop().create_task(asyncio.sleep(0))


async def test_by_key_other_keys_run_side_by_side_and_equal_ones_never(shop: Any) -> None:
    for kind in ("batch", "message"):
        running, order = set[bytes](), dict[bytes, list[int]]()
        most = 0

        async def handle(argument: Any, running: set[bytes] = running, order: dict[bytes, list[int]] = order) -> None:
            nonlocal most
            messages = [argument] if isinstance(argument, Message) else list(argument)
            keys = [message.key or b"" for message in messages]
            assert running.isdisjoint(keys)
            running.update(keys)
            most = max(most, len(running))
            await turns(messages[0].offset % 3)
            running.difference_update(keys)
            for message in messages:
                order.setdefault(message.key or b"", []).append(message.offset)

        here = shop(handle, kind=kind, order="key", concurrency=4, max_batch=3)
        here.offer(keys=[b"k%d" % (at * 7 % 5) for at in range(100)])
        await here.settled(100)
        assert all(offsets == sorted(offsets) for offsets in order.values())
        assert most > 1


async def test_by_key_a_message_that_fails_in_place_lets_other_keys_pass_side_by_side(shop: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        if message.offset == 100 and message.reconsume_times < 3:
            raise RuntimeError

    here = shop(handle, order="key", concurrency=2, in_place=RetryInPlace(3, delay=0.01))
    here.offer(keys=[b"a", b"b", b"a", b"c"])
    await here.settled(4)
    assert [call for call in here.seen if call in ([100], [102])] == [[100]] * 4 + [[102]]


@pytest.mark.slow  # waits for a worker that dies and for the next one
@pytest.mark.filterwarnings("ignore:Unclosed AIOKafka:ResourceWarning")  # what is dead closes nothing
async def test_where_the_offset_is_in_a_database_no_batch_passes_one_that_failed_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE billed (place INTEGER)")
    app = App("billing")
    app.use(Transactional(f"sqlite:///{tmp_path / 'shop.db'}", mode="offsets"))
    calls: list[int] = []

    @app.agent("orders", max_batch=2, concurrency=2)
    async def bill(batch: Batch[dict[str, int]]) -> None:
        calls.append(len(batch))
        batch.connection.executemany("INSERT INTO billed VALUES (?)", [(message.offset,) for message in batch])
        if len(calls) == 1:
            raise RuntimeError

    async with TestApp(app) as worker:
        worker.crash_at("before the handler", number=3)  # the first batch has failed, another one may have ended
        worker.kafka.produce("orders", *[b"{}"] * 6)
        await worker.fate(Place("orders", 0, 5))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert shop.execute("SELECT place FROM billed ORDER BY place").fetchall() == [(place,) for place in range(6)]
