"""Instances that broadcast, on a Kafka in memory: each gets everything, in both ways to keep positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ackwise import App, Broadcasting, Message
from ackwise.middleware.events import Event, EventCode
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka

pytestmark = pytest.mark.filterwarnings("error")

QUICK: dict[str, Any] = {"commit_interval": 0.05, "session_timeout": 6.0, "drain_timeout": 5.0}


class Instance:
    """One instance of group `cache`, which drops `bad` and keeps what it has seen."""

    def __init__(self, kafka: MemoryKafka, name: str, file: Path | None = None, **settings: Any) -> None:
        self.seen: list[bytes] = []
        self.events: list[Event] = []
        self.app = App("cache", brokers=kafka.bootstrap, config=Config(), client_id=f"client-{name}", **{**QUICK, **settings})
        self.app.use(Broadcasting(name, offsets_file=file), self._observe)
        self._came = asyncio.Event()
        self._stop = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

        @self.app.agent("changes")
        async def evict(message: Message[bytes]) -> None:
            self.seen.append(message.value)
            self._came.set()
            if message.value == b"bad":
                raise ValueError("bad")

    def _observe(self, event: Event) -> None:
        self.events.append(event)
        self._came.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        assert self.running is not None
        async with asyncio.timeout(20):
            while not condition():
                if self.running.done():
                    self.running.result()
                self._came.clear()
                waiting = asyncio.ensure_future(self._came.wait())
                await asyncio.wait({waiting, self.running}, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

    def codes(self, code: EventCode) -> list[Event]:
        return [event for event in self.events if event.code is code]

    def committed(self) -> dict[int, int]:
        return {event.partition or 0: event.range_end or 0 for event in self.codes(EventCode.COMMITTED)}

    async def __aenter__(self) -> Instance:
        self.running = asyncio.create_task(self.app.serve(self._stop))
        await self.until(lambda: bool(self.codes(EventCode.ASSIGNED)))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self.running is not None
        await self.running

    async def kill(self, kafka: MemoryKafka) -> None:
        """As if its process ended at once: nothing is drained, nothing committed."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


@pytest.fixture(params=["group", "file"])
def file_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path | None]:
    return lambda name: None if request.param == "group" else tmp_path / f"{name}.offsets"


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("changes", 2)
        yield kafka


FileOf = Callable[[str], Path | None]


async def test_every_instance_gets_everything(kafka: MemoryKafka, file_of: FileOf) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one, Instance(kafka, "web-2", file_of("web-2")) as two:
        for partition in (0, 1):
            kafka.produce("changes", b"a", b"b", partition=partition)
        for instance in (one, two):
            await instance.until(lambda instance=instance: len(instance.seen) == 4)  # type: ignore[misc]
    assert sorted(one.seen) == sorted(two.seen) == [b"a", b"a", b"b", b"b"]


async def test_B01_what_fails_is_dropped_counted_and_passed(kafka: MemoryKafka, file_of: FileOf, caplog: pytest.LogCaptureFixture) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        kafka.produce("changes", b"bad", b"good")
        await one.until(lambda: one.committed().get(0) == 2)
    assert one.seen == [b"bad", b"good"]
    (dropped,) = one.codes(EventCode.DROPPED)
    assert (dropped.offset, dropped.handler, dropped.error) == (0, "evict", "not-retried")
    assert one.codes(EventCode.SENT_BACK) == one.codes(EventCode.DEAD_LETTERED) == []
    assert "messages are dropped" in caplog.text


async def test_B03_there_are_no_topics_and_no_groups_for_what_comes_back(kafka: MemoryKafka, file_of: FileOf) -> None:
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        kafka.produce("changes", b"bad")
        await one.until(lambda: bool(one.codes(EventCode.DROPPED)))
    assert [topic for topic in kafka._cluster.topics if topic.startswith("cache")] == []


async def test_a_new_instance_begins_at_the_end_and_goes_on_where_it_was(kafka: MemoryKafka, file_of: FileOf) -> None:
    kafka.produce("changes", b"before")
    async with Instance(kafka, "web-1", file_of("web-1")) as one:
        await one.until(lambda: len(one.committed()) == 2)
        kafka.produce("changes", b"now")
        await one.until(lambda: one.seen == [b"now"])
    kafka.produce("changes", b"while it was away")
    async with Instance(kafka, "web-1", file_of("web-1")) as again:
        await again.until(lambda: again.seen == [b"while it was away"])
    assert {event.from_commit for event in one.codes(EventCode.ASSIGNED)} == {False}
    assert {event.from_commit for event in again.codes(EventCode.ASSIGNED)} == {True}


async def test_a_new_instance_begins_at_the_start_if_that_is_said(kafka: MemoryKafka, file_of: FileOf) -> None:
    kafka.produce("changes", b"before")
    async with Instance(kafka, "web-1", file_of("web-1"), start="earliest") as one:
        await one.until(lambda: one.seen == [b"before"])
