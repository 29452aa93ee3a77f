"""What the relay takes from aiokafka's own fetcher over logs in memory: nothing is passed that no line was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition
from tests.plugin.logs import Logs, batch, buffers, endless, reading

from ackwise.plugin.client.internals import fetch_wait
from ackwise.plugin.relay.fetching import DelayFetch

BAD, GOOD = TopicPartition("delay-1s", 0), TopicPartition("delay-1s", 1)

TEN = [b"%d" % number for number in range(10)]


class Line:
    """A line with room for all; `given` are the offsets that it took."""

    def __init__(self) -> None:
        self.position = 0
        self.unreadable: str | None = None
        self.given: list[int] = []

    def offer(self, deliveries: Iterable[Any], *, is_append_time: bool) -> None:
        self.given += [delivery.offset for delivery in deliveries]
        self.position = self.given[-1] + 1

    def is_full(self, *, paused: bool) -> bool:
        return False


class Desk:
    """A relay's fetching of logs; `now` is the time."""

    def __init__(self, logs: Logs) -> None:
        self.now = 100.0
        self.logs = logs
        self.consumer: Any = reading(logs)
        self.lines: dict[TopicPartition, Any] = {partition: Line() for partition in logs.logs}
        self.fetch = DelayFetch(self.consumer, "billing", self.lines, reopen=lambda partition: None, clock=lambda: self.now)
        for partition in logs.logs:
            self.consumer.seek(partition, 0)

    async def until(self, condition: Callable[[], bool], *, step: float = 0.0) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.fetch.feed(0.0, only_lines=False)
                self.now += step


@asynccontextmanager
async def relaying(logs: Logs) -> AsyncIterator[Desk]:
    desk = Desk(logs)
    try:
        yield desk
    finally:
        await desk.consumer._fetcher.close()
        desk.consumer._closed = True


async def test_bytes_without_a_whole_batch_put_their_partition_in_quarantine_and_are_not_passed() -> None:
    logs = Logs({GOOD: [batch(0, *TEN)], BAD: [batch(0, *TEN), endless(batch(10, *TEN)), batch(20, *TEN)]})
    async with relaying(logs) as desk:
        bad, good = desk.lines[BAD], desk.lines[GOOD]
        await desk.until(lambda: bad.unreadable is not None and len(good.given) == 10)
        assert (bad.given, bad.unreadable) == ([*range(10)], "RecordTooLargeError")
        logs.logs[BAD][1] = batch(10, *TEN)
        desk.now += 1.01
        await desk.until(lambda: len(bad.given) == 30, step=0.1)
    assert (bad.given, good.given) == ([*range(30)], [*range(10)])


async def test_an_error_that_the_client_has_still_to_raise_is_not_dropped_when_positions_are_compared() -> None:
    async with relaying(Logs({BAD: [endless(batch(0, *TEN))]})) as desk:
        await buffers(desk.consumer, 1)
        desk.fetch._compare()
        assert BAD in desk.consumer._fetcher._records


async def test_a_client_that_moves_by_itself_after_a_fetch_passes_nothing() -> None:
    async with relaying(Logs({GOOD: [batch(first, *TEN) for first in range(0, 30, 10)]})) as desk:
        getmany, line = desk.consumer.getmany, desk.lines[GOOD]

        async def moved(*args: Any, **options: Any) -> Any:
            if found := await getmany(*args, **{**options, "max_records": 5}):
                desk.consumer.getmany = getmany
                asyncio.get_running_loop().call_soon(desk.consumer.seek, GOOD, 20)
            return found

        desk.consumer.getmany = moved
        await desk.until(lambda: line.position == 30)
        assert line.given == [*range(30)]


async def test_a_fetch_of_thousands_of_empty_partitions_may_last_unless_one_is_full() -> None:
    delays = [TopicPartition("billing.delay.1", number) for number in range(2_000)]
    async with relaying(Logs({GOOD: []} | {partition: [] for partition in delays})) as desk:
        await desk.until(lambda: fetch_wait(desk.consumer) == len(desk.lines))
        desk.fetch._full.add(GOOD)
        desk.fetch._set_wait()
        assert fetch_wait(desk.consumer) == desk.fetch._own_wait == 500
