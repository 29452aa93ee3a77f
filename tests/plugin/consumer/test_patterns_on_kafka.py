"""Topics that patterns find, on a real Kafka."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import App, Message
from ackwise.plugin.settings.config import Config

pytestmark = pytest.mark.kafka

WORKER = """
from ackwise import App

app = App({group!r}, brokers={brokers!r})

@app.agent(pattern={pattern!r})
async def bill(value: bytes) -> None: ...
"""


def worker(raw: RawKafka, group: str, pattern: str, ran: list[tuple[str, bytes]]) -> App:
    app = App(group, brokers=raw.bootstrap, config=Config(), pattern_interval=0.5, commit_interval=0.2, session_timeout=6.0)

    @app.agent(pattern=pattern)
    async def bill(message: Message[bytes]) -> None:
        ran.append((message.topic, message.value))

    return app


@asynccontextmanager
async def running(app: App) -> AsyncIterator[None]:
    async with app.running() as worker:
        await worker.ready()
        yield


async def until_committed(raw: RawKafka, group: str, topic: str, offset: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await raw.committed(group)).get(TopicPartition(topic, 0)) != offset:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.1)


async def ackwise(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ackwise.plugin.cli", *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, errors = await process.communicate()
    assert process.returncode in (0, 1), errors
    return said.decode()


async def test_topics_come_and_go_while_two_workers_run_and_every_record_is_handled(raw_kafka: RawKafka, tmp_path: Path) -> None:
    group = raw_kafka.new_group()
    first, later, doomed = (f"{group}-orders-{name}" for name in ("de", "fr", "it"))
    pattern, ran = rf"{group}[-.].*", list[tuple[str, bytes]]()
    for topic in (first, doomed):
        await raw_kafka.create(topic)
        await raw_kafka.produce(topic, b"1")
    async with running(worker(raw_kafka, group, pattern, ran)), running(worker(raw_kafka, group, pattern, ran)):
        await until(lambda: {(first, b"1"), (doomed, b"1")} <= {*ran})

        await raw_kafka.create(later)
        await raw_kafka.produce(later, b"1", b"2")
        await until(lambda: {(later, b"1"), (later, b"2")} <= {*ran})

        await raw_kafka.delete(doomed)
        await raw_kafka.produce(first, b"2")
        await until(lambda: (first, b"2") in ran)
        await until_committed(raw_kafka, group, first, 2)
        await until_committed(raw_kafka, group, later, 2)

        (tmp_path / "shop.py").write_text(WORKER.format(group=group, brokers=raw_kafka.bootstrap, pattern=pattern), "utf-8")
        checked = json.loads(await ackwise(tmp_path, "topics", "check", "shop:app", "--json"))
        assert {each["topic"] for each in checked["topics"] if each["role"] == "source"} == {first, later}
        assert {each["todo"] for each in checked["topics"]} == {"nothing"}
        standing = json.loads(await ackwise(tmp_path, "status", "shop:app", "--json"))
        assert {(each["topic"], each["lag"]) for each in standing["partitions"]} == {(first, 0), (later, 0), (f"{group}.retry", 0)}
    assert not {topic for topic, _ in ran} - {first, later, doomed}
