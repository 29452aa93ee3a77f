"""Breaker and commands on a real Kafka, as an operator sees them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.servers import RawKafka
from tests.waiting import until

from ackwise import App, Breaker, Message
from ackwise.plugin.settings.config import Config

pytestmark = pytest.mark.kafka

WORKER = """
from ackwise import App

app = App({group!r}, brokers={brokers!r})

@app.agent({topic!r}, name="bill")
async def bill(value: bytes) -> None: ...
"""


def app_on(raw: RawKafka, group: str, topic: str, ran: list[str], *policies: Breaker) -> App:
    app = App(group, brokers=raw.bootstrap, config=Config(), commit_interval=0.0)
    app.use(*policies)

    @app.agent(topic, name="bill")
    async def bill(message: Message[dict[str, str]]) -> None:
        ran.append(message.value["id"])

    return app


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[None]:
    async with app.running() as worker:
        await worker.ready()
        yield


async def ackwise(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ackwise.plugin.cli", *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_letters_that_are_withheld_when_a_worker_stops_are_decided_by_the_next_one(raw_kafka: RawKafka) -> None:
    topic, group, ran = await raw_kafka.new_topic(), raw_kafka.new_group(), list[str]()
    await raw_kafka.produce(topic, *[b"no order"] * 5)
    async with serving(app_on(raw_kafka, group, topic, ran, Breaker(first_wait="1h"))):
        await asyncio.sleep(2)  # for the letters that nobody may send
    assert await raw_kafka.records(f"{group}.dlq") == []
    async with serving(app_on(raw_kafka, group, topic, ran, Breaker(first_wait="1h"))):
        await raw_kafka.produce(topic, b'{"id": "a"}')
        await until(lambda: ran == ["a"])
        letters = await until(lambda: raw_kafka.records(f"{group}.dlq"), lambda found: len(found) >= 5)
    assert [dict(letter.headers)["ackwise-attempt"] for letter in letters] == [b"1"] * 5


async def test_a_command_pauses_running_workers_and_those_that_start_later(
    raw_kafka: RawKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ackwise")
    topic, group, ran = await raw_kafka.new_topic(2), raw_kafka.new_group(), list[str]()
    (tmp_path / "worker.py").write_text(WORKER.format(group=group, brokers=raw_kafka.bootstrap, topic=topic))
    async with serving(app_on(raw_kafka, group, topic, ran)):
        await raw_kafka.produce(topic, b'{"id": "a"}')
        await until(lambda: ran == ["a"])
        assert "bill of group" in await ackwise(tmp_path, "pause", "worker:app", "bill")
        await until(lambda: "paused by command" in caplog.text)
        await raw_kafka.produce(topic, b'{"id": "b"}')
        await asyncio.sleep(1)
        assert ran == ["a"]
    async with serving(app_on(raw_kafka, group, topic, ran)):
        await asyncio.sleep(1)  # long enough for a record that is there
        assert ran == ["a"]
        paused = json.loads(await ackwise(tmp_path, "pause", "worker:app", "--json"))["paused"]
        assert [each["what"] for each in paused] == ["bill"]
        assert "resumed" in await ackwise(tmp_path, "resume", "worker:app", "bill")
        await until(lambda: ran == ["a", "b"])
        assert "nothing is paused by command" in await ackwise(tmp_path, "pause", "worker:app")


async def test_a_worker_starts_where_the_control_topic_is_missing_and_the_command_says_so(raw_kafka: RawKafka, tmp_path: Path) -> None:
    topic, group, ran = await raw_kafka.new_topic(), raw_kafka.new_group(), list[str]()
    (tmp_path / "worker.py").write_text(WORKER.format(group=group, brokers=raw_kafka.bootstrap, topic=topic))
    await ackwise(tmp_path, "topics", "create", "worker:app")
    await raw_kafka.delete(f"{group}.control")
    app = App(group, brokers=raw_kafka.bootstrap, config=Config(), create_topics="never")

    @app.agent(topic)
    async def bill(value: bytes) -> None:
        ran.append(value.decode())

    async with serving(app):
        await raw_kafka.produce(topic, b"a")
        await until(lambda: ran == ["a"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ackwise.plugin.cli", "pause", "worker:app", "bill", cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert f"there is no topic '{group}.control'" in " ".join(errors.decode().split())
