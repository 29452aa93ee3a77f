"""The broker is away, or hangs: a worker waits for it, goes on when it is back, and ends in time when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from tests.servers import RawKafka

from ackwise import ConsumeLater, Reliable, reliable
from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.policies import DeadLetter
from ackwise.plugin.host.host import AiokafkaHost
from ackwise.plugin.local.broker import LocalKafka
from ackwise.plugin.settings.hostsettings import HostSettings

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(150)]

#: Seconds that a worker of these tests drains, and within which it has ended then.
DRAIN, END = 1.0, 11.0

#: Longer than every timeout of the client here: three seconds for a request, six for the session.
AWAY = 12.0

WORKER = f"""
import os
from pathlib import Path
from ackwise import App

app = App(os.environ["GROUP"], brokers=os.environ["BROKERS"], drain_timeout={DRAIN}, **eval(os.environ.get("MORE", "{{}}")))

@app.agent(os.environ["TOPIC"])
async def bill(value: str) -> None:
    Path(value).touch()
"""


@pytest.fixture(scope="module")
def broker(own_kafka: LocalKafka) -> Iterator[LocalKafka]:
    """One that no other test uses, since it goes away."""
    yield own_kafka
    own_kafka.start()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts workers as processes of their own, whose log is in the folder."""
    processes: list[subprocess.Popen[bytes]] = []
    (tmp_path / "worker.py").write_text(WORKER)

    def run(brokers: str, topic: str, group: str, more: str = "{}") -> subprocess.Popen[bytes]:
        environment = {**os.environ, "BROKERS": brokers, "TOPIC": topic, "GROUP": group, "MORE": more}
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, "-m", "ackwise.plugin.cli", "run", "worker:app"]
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()


async def eventually(condition: Callable[[], bool]) -> None:
    """Until `condition` is true."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # another process makes it true
            await asyncio.sleep(0.05)


async def new_topic(broker: LocalKafka, *values: bytes) -> str:
    raw = RawKafka(broker.bootstrap)
    await raw.start()
    try:
        topic = await raw.new_topic()
        await raw.produce(topic, *values)
        return topic
    finally:
        await raw.close()


async def send(broker: LocalKafka, topic: str, *values: bytes) -> None:
    await RawKafka(broker.bootstrap).produce(topic, *values)


@pytest.mark.parametrize("goes", ["pause", "kill"])
async def test_a_worker_that_is_told_to_stop_ends_in_time_with_0_whatever_its_broker_does(
    broker: LocalKafka, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], goes: str
) -> None:
    topic = await new_topic(broker, b"before")
    process = start(broker.bootstrap, topic, f"stopping-{goes}")
    await eventually((tmp_path / "before").exists)
    getattr(broker, goes)()
    try:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, END) == 0
    finally:
        broker.resume() if goes == "pause" else broker.start()
    assert "Traceback" not in (tmp_path / "log").read_text()


async def test_a_worker_waits_at_its_start_for_a_broker_that_is_away_and_says_so_once(
    broker: LocalKafka, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    topic = await new_topic(broker, b"first")
    broker.kill()
    try:
        start(broker.bootstrap, topic, "waiting")
        await eventually(lambda: "the brokers are away, the worker waits for them" in (tmp_path / "log").read_text())
    finally:
        broker.start()
    await eventually((tmp_path / "first").exists)
    assert (tmp_path / "log").read_text().count("the brokers are away") == 1


async def test_a_worker_that_waits_for_its_broker_ends_at_once_with_0_when_it_is_told_to(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start("127.0.0.1:1", "orders", "waiting")
    await eventually(lambda: "the brokers are away" in (tmp_path / "log").read_text())
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, END) == 0


async def test_a_worker_that_may_wait_no_longer_for_its_broker_ends_with_2_and_says_why(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start("127.0.0.1:1", "orders", "waiting", "{'start_timeout': 0.1}")
    assert await asyncio.to_thread(process.wait, 30) == 2
    assert "no broker answers" in (tmp_path / "log").read_text()


class Seen:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def __call__(self, batch: Batch[Any]) -> None:
        self.values += [message.value for message in batch]


async def be_away(broker: LocalKafka) -> None:
    broker.kill()
    try:
        await asyncio.sleep(AWAY)  # the clients' own clocks run meanwhile
    finally:
        await asyncio.to_thread(broker.start)


async def test_a_worker_goes_on_after_its_broker_was_away_for_longer_than_every_timeout(
    broker: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = AiokafkaHost._consumer_options

    def impatient(self: AiokafkaHost) -> dict[str, Any]:
        return {**options(self), "request_timeout_ms": 3000}

    monkeypatch.setattr(AiokafkaHost, "_consumer_options", impatient)
    topic, handler, stop = await new_topic(broker, b"before"), Seen(), asyncio.Event()
    settings = HostSettings(brokers=broker.bootstrap, group="outlasting", session_timeout=6, drain_timeout=5, commit_interval=1)
    agent: Any = Agent("bill", (topic,), "batch", handler, lambda value: value)
    host = AiokafkaHost(settings, [agent], later=ConsumeLater(2), dead_letter=DeadLetter())
    running = asyncio.create_task(host.run(stop))
    await eventually(lambda: handler.values == [b"before"])
    await be_away(broker)
    await send(broker, topic, b"after")
    await eventually(lambda: b"after" in handler.values or running.done())
    stop.set()
    await running
    assert set(handler.values) == {b"before", b"after"}


async def test_a_loop_goes_on_after_its_broker_was_away_for_longer_than_every_timeout(broker: LocalKafka) -> None:
    topic, handler = await new_topic(broker, b"before"), Seen()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id="looping", enable_auto_commit=False, auto_offset_reset="none",
        session_timeout_ms=6000, request_timeout_ms=3000, rebalance_timeout_ms=20_000,
    )  # fmt: skip
    await consumer.start()
    batches: Reliable[bytes] = reliable(consumer, topic, drain_timeout=5)
    try:
        async with batches:
            consuming = asyncio.create_task(_consume(batches, handler))
            await eventually(lambda: handler.values == [b"before"])
            await be_away(broker)
            await send(broker, topic, b"after")
            await eventually(lambda: b"after" in handler.values or consuming.done())
            batches.stop()
            await consuming
    finally:
        await consumer.stop()
    assert set(handler.values) == {b"before", b"after"}


async def _consume(batches: Reliable[bytes], handler: Seen) -> None:
    async for batch in batches:
        async with batch:
            await handler(batch)
