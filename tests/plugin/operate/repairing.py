"""A group that has consumed nothing yet, plans for it, and a worker that consumes what a plan sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.eventfiles import events_in
from tests.servers import RawKafka

from ackwise import App, Batch, ConsumeLater, Dedup, Events
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import delivery_of
from ackwise.middleware.message.wire import parse_copy
from ackwise.middleware.repairplan import NAME, Action, RepairStep, Title, write_plan
from ackwise.plugin.topics.group import Group


class Shop:
    """`topic` has records 0, 1, 2 … whose value is their key in the store."""

    def __init__(self, folder: Path, raw: RawKafka, topic: str) -> None:
        self.folder = folder
        self.raw = raw
        self.topic = topic
        self.group_id = raw.new_group()
        self.handled: Counter[bytes] = Counter()
        self.store = f"sqlite:///{folder}/claims.db"

    def app(self, **policies: Any) -> App:
        """As its workers run it. `dedup` is another policy, or `None` for none."""
        app = App(self.group_id, brokers=self.raw.bootstrap, commit_interval=0, session_timeout=6)
        dedup = policies.get("dedup", Dedup(self.store, key=lambda message: message.raw))
        app.use(ConsumeLater(levels="1s"), Events(str(self.folder / "events")), *([] if dedup is None else [dedup]))

        @app.agent(self.topic)
        async def bill(batch: Batch[bytes]) -> None:
            self.handled.update(message.value for message in batch)

        return app

    @property
    def group(self) -> Group:
        """What the commands know of the app."""
        return self.app().group()

    def plan(self, *steps: RepairStep, plan_id: str = "run-1", as_of: float | None = None) -> Path:
        """A plan with these steps, judged `as_of` seconds since 1970, or now."""
        path = self.folder / NAME
        write_plan(path, Title(plan_id, round((time.time() if as_of is None else as_of) * 1e6)), steps)
        return path

    def step(self, start: int, end: int, action: Action = Action.PROBE, verdict: str = "NEVER_SEEN", **more: Any) -> RepairStep:
        """A step for offsets without events, unless it is said otherwise."""
        fields = {"cluster": "", "group": self.group_id, "handler": None, "dedup_epoch": None, "topic": self.topic, "topic_id": ""}
        return RepairStep(action, verdict, **{**fields, "partition": 0, "start": start, "end": end, "attempt": 0, **more})

    async def topics(self) -> set[str]:
        """Its own, and those of its group."""
        return {topic for topic in await self.raw.topics() if topic == self.topic or topic.startswith(f"{self.group_id}.")}

    async def copies(self) -> Counter[int]:
        """How often each offset was sent to the retry topic."""
        return Counter(copy.origin.offset for copy in await self.deliveries())

    async def deliveries(self) -> list[Any]:
        """The copies in the retry topic, as a worker reads them."""
        if f"{self.group_id}.retry" not in await self.raw.topics():
            return []
        return [
            parse_copy(delivery_of((record.topic, record.partition), record), self.group_id)
            for record in await self.raw.records(f"{self.group_id}.retry")
        ]

    async def work_until(self, expected: Mapping[bytes, int], *, seconds: float = 60.0, **policies: Any) -> None:
        """A worker runs until its handler has had at least these values."""
        stop = asyncio.Event()
        serving = asyncio.create_task(self.app(**policies).serve(stop))
        try:
            async with asyncio.timeout(seconds):
                while any(self.handled[value] < number for value, number in expected.items()):
                    assert not serving.done(), serving
                    await asyncio.sleep(0.05)
        finally:
            stop.set()
            await serving

    def events(self, *codes: EventCode) -> list[dict[str, Any]]:
        """The exported events with these codes."""
        return [event for event in events_in(*sorted((self.folder / "events").rglob("*.parquet"))) if event["event_type"] in codes]


def values(numbers: Sequence[int]) -> list[bytes]:
    """What the records of these offsets hold."""
    return [b"order-%d" % number for number in numbers]
