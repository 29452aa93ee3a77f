"""A scenario on a real Kafka: workers of one group in this process or in others, and what ran."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.modes.share.worker import make_app
from tests.servers import RawKafka
from tests.shared import SharedKafka
from tests.waiting import PATIENCE

from ackwise.plugin.app import App
from ackwise.plugin.consumer.workerstate import ShareCounts


@dataclass
class Worker:
    """A worker in this process."""

    app: App
    task: asyncio.Task[None]
    stop: asyncio.Event

    @property
    def counts(self) -> ShareCounts:
        counts = None if self.app._host is None else self.app._host._member.share_counts
        return counts or ShareCounts()

    async def leave(self) -> None:
        """Let it drain; raises what it ended with."""
        self.stop.set()
        await self.task


@dataclass
class Scenario:
    """One group and its source topic; what ran is in the file `ledger`, one line each."""

    brokers: str
    raw: RawKafka
    folder: Path
    group: str
    topic: str
    open: AsyncExitStack
    workers: list[Worker] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def ran(self) -> list[tuple[str, int]]:
        """Value and attempt of each run that came to its end, in order."""
        if not self.ledger.exists():
            return []
        return [(value, attempt) for value, attempt in map(json.loads, self.ledger.read_text().splitlines())]

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "brokers": self.brokers, "group": self.group, "topic": self.topic, "folder": str(self.folder), "share": {}, "app": {}, **more
        }  # fmt: skip

    async def join(self, *, handler: Callable[[Any], Any] | None = None, **settings: Any) -> Worker:
        """Start a worker in this process."""
        app, stop = make_app(handler=handler, **self.settings(**settings)), asyncio.Event()
        worker = Worker(app, asyncio.create_task(app.serve(stop)), stop)
        self.workers.append(worker)
        self.open.push_async_callback(self._end, worker)
        return worker

    async def _end(self, worker: Worker) -> None:
        worker.stop.set()
        await asyncio.wait({worker.task})

    async def process(self, **settings: Any) -> asyncio.subprocess.Process:
        """Start a worker in its own process, which says what it does, line by line."""
        arguments = json.dumps(self.settings(**settings))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.plugin.modes.share.worker", arguments, stdout=asyncio.subprocess.PIPE
        )

        async def end() -> None:
            if process.returncode is None:
                process.kill()
            await process.communicate()

        self.open.push_async_callback(end)
        return process

    async def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until `condition` is true; fails after the deadline, or when a worker ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    for worker in self.workers:
                        if worker.task.done() and not worker.stop.is_set():
                            worker.task.result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{what} did not happen within {PATIENCE:.0f} s; ran: {self.ran()}") from None

    async def retried(self) -> list[Mapping[str, bytes | None]]:
        """The headers of each copy on the retry topic."""
        return [dict(record.headers) for record in await self.raw.records(f"{self.group}.retry")]


@pytest.fixture
async def scenario(kafka: SharedKafka, raw_kafka: RawKafka, tmp_path: Path) -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as open:
        yield Scenario(kafka.bootstrap, raw_kafka, tmp_path, raw_kafka.new_group(), await raw_kafka.new_topic(), open)
