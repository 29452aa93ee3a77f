"""Instances of one app that broadcasts, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE

from ackwise import App, Broadcasting, Message, RetryInPlace
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.policies.retry import Order
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka

FileOf = Callable[[str], Path | None]
"""The offsets file of an instance, where it has one."""

QUICK: dict[str, Any] = {"commit_interval": 0.05, "session_timeout": 6.0, "drain_timeout": 5.0}


class Instance:
    """One instance of group `cache`, which drops `bad` and keeps what it has seen."""

    def __init__(
        self,
        kafka: MemoryKafka,
        name: str,
        file: Path | None = None,
        order: Order = None,
        in_place: RetryInPlace | None = None,
        **settings: Any,
    ) -> None:
        self.name = name
        self.seen: list[bytes] = []
        self.events: list[Event] = []
        self.app = App("cache", brokers=kafka.bootstrap, config=Config(), client_id=f"client-{name}", **{**QUICK, **settings})
        self.app.use(Broadcasting(name, offsets_file=file), self._observe)
        self._came = asyncio.Event()
        self._stop = asyncio.Event()
        self.running: asyncio.Task[None] | None = None

        @self.app.agent("changes", order=order, in_place=in_place)
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
        async with asyncio.timeout(PATIENCE):
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
        kafka.expire(f"client-{self.name}")
