"""A worker on a real broker whose messages die while something is missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import App, ConsumeLater, Dedup, Events, Message
from ackwise.middleware.message.message import delivery_of
from ackwise.middleware.message.wire import parse_letter
from ackwise.plugin.operate.deadletter import Selection
from ackwise.plugin.operate.deadlettertopics import place_of_app
from ackwise.plugin.operate.resenddeadletters import redrive


class TaxShop:
    """A worker that can't bill while the rate of the tax is missing; each order is its key."""

    def __init__(self, folder: Path, raw: RawKafka, topic: str) -> None:
        self.folder = folder
        self.raw = raw
        self.topic = topic
        self.group = raw.new_group()
        self.store = f"sqlite:///{folder}/claims.db"
        self.events = str(folder / "events")
        self.tax: int | None = None
        self.tried = Counter[bytes | None]()
        self.billed = Counter[bytes | None]()

    def app(self) -> App:
        app = App(self.group, brokers=self.raw.bootstrap, commit_interval=0, session_timeout=6)
        app.use(ConsumeLater(0, levels="1s"), Events(self.events), Dedup(self.store, key=lambda message: message.key))

        @app.agent(self.topic)
        async def bill(message: Message[bytes]) -> None:
            self.tried[message.key] += 1
            if self.tax is None:
                raise LookupError("no tax")
            self.billed[message.key] += 1

        return app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        serving = asyncio.create_task(self.app().serve(stop))
        try:
            yield
        finally:
            stop.set()
            await serving

    async def letters(self, number: int) -> list[Any]:
        """The letters, once there are so many."""
        await until(lambda: self.tried)  # the topic is there then
        async with asyncio.timeout(PATIENCE):
            while True:
                if len(records := await self.raw.records(f"{self.group}.dlq")) >= number:
                    break
                await asyncio.sleep(0.1)
        return [parse_letter(delivery_of((record.topic, record.partition), record), self.group)[0] for record in records]

    async def redrive(self, **selection: Any) -> int:
        result = await redrive(place_of_app(self.app().group()), Selection(**selection), execute=True)
        assert result.is_done
        return result.fates.total()

    async def ids(self) -> Counter[tuple[bytes | None, bytes | None]]:
        """Keys and replay ids of the copies."""
        records = await self.raw.records(f"{self.group}.retry")
        return Counter((record.key, dict(record.headers)["ackwise-replay-id"]) for record in records)
