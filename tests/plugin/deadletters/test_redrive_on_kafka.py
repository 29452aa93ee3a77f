"""Dead letters of a worker on a real broker: suppressed by their key, redriven, dead again, redriven once more, and a kill amid it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.servers import RawKafka

from ackwise import App, ConsumeLater, Dedup, Events, Message
from ackwise.middleware.message import delivery_of
from ackwise.middleware.wire import parse_letter
from ackwise.plugin.deadletters.place import place_of_app
from ackwise.plugin.deadletters.redriving import redrive
from ackwise.plugin.deadletters.selection import Selection

pytestmark = pytest.mark.kafka

WORKER = """
from ackwise import App, ConsumeLater, Dedup, Events

app = App({group!r}, brokers={brokers!r})
app.use(ConsumeLater(0, levels="1s"), Dedup({store!r}, key=lambda message: message.key), Events({events!r}))

@app.agent({topic!r})
async def bill(value: bytes) -> None: ...
"""


class Shop:
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

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110  # what it waits for tells nobody
                await asyncio.sleep(0.05)

    async def letters(self, number: int) -> list[Any]:
        """The letters, once there are so many."""
        await self.until(lambda: self.tried)  # the topic is there then
        async with asyncio.timeout(60):
            while True:
                if len(records := await self.raw.records(f"{self.group}.dlq")) >= number:
                    break
                await asyncio.sleep(0.1)
        return [parse_letter(delivery_of((record.topic, record.partition), record), self.group)[0] for record in records]

    async def redrive(self, **selection: Any) -> int:
        result = await redrive(place_of_app(self.app().group()), Selection(**selection), execute=True)
        assert result.is_done
        return result.counts.total()

    async def ids(self) -> Counter[tuple[bytes | None, bytes | None]]:
        """Keys and replay ids of the copies."""
        records = await self.raw.records(f"{self.group}.retry")
        return Counter((record.key, dict(record.headers)["ackwise-replay-id"]) for record in records)


@pytest.fixture
async def shop(tmp_path: Path, raw_kafka: RawKafka) -> Shop:
    return Shop(tmp_path, raw_kafka, await raw_kafka.new_topic(1))


async def test_a_key_that_died_is_suppressed_until_its_letter_is_redriven_however_often_it_dies(shop: Shop) -> None:
    async with shop.serving():
        await shop.raw.produce(shop.topic, b"1", key=b"ann")
        await shop.letters(1)
        await shop.raw.produce(shop.topic, b"1", b"2", key=b"ann")  # the trap: neither runs, neither is a letter
        await shop.raw.produce(shop.topic, b"3", key=b"bob")
        await shop.letters(2)
        assert shop.tried == {b"ann": 1, b"bob": 1}
        assert await shop.redrive() == 2  # nothing was mended: they die again
        assert [letter.replay_id for letter in await shop.letters(4)] == [None, None, b"redrive-1", b"redrive-1"]
        shop.tax = 19
        assert await shop.redrive() == 2
        await shop.until(lambda: shop.billed.total() == 2)
        assert await shop.redrive() == 0
        await shop.raw.produce(shop.topic, b"4", key=b"ann")  # a duplicate of a success by now
        await shop.raw.produce(shop.topic, b"5", key=b"eve")
        await shop.until(lambda: shop.billed[b"eve"])
    assert shop.billed == {b"ann": 1, b"bob": 1, b"eve": 1}
    assert await shop.ids() == {(key, number): 1 for key in (b"ann", b"bob") for number in (b"redrive-1", b"redrive-2")}
    story = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/0", shop.events)
    assert "sent again as redrive-2" in " ".join(story.split())
    assert "EXACTLY_ONCE" in story
    suppressed = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/1", shop.events)
    assert "not run: its key is that of a dead letter; ackwise dlq redrive sends that letter again" in " ".join(suppressed.split())
    assert "SUPPRESSED_BY_DEAD" in suppressed
    later = await asyncio.to_thread(ackwise, shop, "why", f"{shop.topic}/0/4", shop.events)
    assert "DUPLICATE_SUPPRESSED" in later


async def test_a_killed_redrive_is_called_again_and_each_letter_runs_once(shop: Shop) -> None:
    orders = [b"order-%d" % number for number in range(30)]
    async with shop.serving():
        for order in orders:
            await shop.raw.produce(shop.topic, b"v", key=order)
        await shop.letters(30)
        (shop.folder / "redriveworker.py").write_text(
            WORKER.format(group=shop.group, brokers=shop.raw.bootstrap, store=shop.store, events=shop.events, topic=shop.topic)
        )
        shop.tax = 19
        command = [sys.executable, "-m", "ackwise.plugin.cli", "dlq", "redrive", "redriveworker:app", "--yes", "--json"]
        process = await asyncio.create_subprocess_exec(*command, "--rate", "5", cwd=shop.folder)
        await shop.until(lambda: shop.billed.total() >= 5)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        done = await asyncio.to_thread(subprocess.run, command, cwd=shop.folder, capture_output=True, text=True, timeout=60, check=True)
        assert 0 < json.loads(done.stdout)["letters"][0]["letters"] <= 25
        await shop.until(lambda: shop.billed.total() >= 30)
    assert shop.billed == dict.fromkeys(orders, 1)
    assert {number for _, number in await shop.ids()} == {b"redrive-1"}
    assert len(await shop.ids()) == 30


def ackwise(shop: Shop, *arguments: str) -> str:
    command = [sys.executable, "-m", "ackwise.plugin.cli", *arguments]
    return subprocess.run(command, cwd=shop.folder, capture_output=True, text=True, timeout=60, check=False).stdout
