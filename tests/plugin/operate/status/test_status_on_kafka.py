"""`ackwise status` on a real Kafka: two workers, each with partitions."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from importlib.metadata import version
from typing import Any

import pytest
from tests.servers import RawKafka
from tests.waiting import until
from typer.testing import CliRunner

from ackwise import App, Message
from ackwise.plugin.cli.root import new_app
from ackwise.plugin.consumer import workerstate
from ackwise.plugin.settings.config import Config

pytestmark = pytest.mark.kafka


def worker(raw_kafka: RawKafka, group: str, topic: str, name: str) -> App:
    app = App(group, brokers=raw_kafka.bootstrap, config=Config(), client_id=name, commit_interval=0.1, session_timeout=6.0)

    @app.agent(topic)
    async def bill(message: Message[bytes]) -> None: ...

    return app


async def status(raw_kafka: RawKafka, group: str) -> Any:
    arguments = ["status", group, "--brokers", raw_kafka.bootstrap, "--json"]
    done = await asyncio.to_thread(CliRunner().invoke, new_app(), arguments, prog_name="ackwise")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def is_settled(found: Any, topic: str) -> bool:
    """Whether each of two workers has its partition, and has said so since."""
    said = sorted((name, each["client"]) for each in found["workers"] for name in each["partitions"] if name.startswith(f"{topic}/"))
    owned = sorted(
        (f"{topic}/{each['partition']}", str(each["owner"]).split()[0]) for each in found["partitions"] if each["topic"] == topic
    )
    return not found["findings"] and len(found["members"]) == 2 and not found["lag"] and said == owned


async def test_each_partition_has_the_worker_that_the_broker_gave_it_to(raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workerstate, "EVERY", 0.5)
    topic, group = await raw_kafka.new_topic(partitions=2), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", b"b")
    async with worker(raw_kafka, group, topic, "first").running() as first, worker(raw_kafka, group, topic, "second").running() as second:
        await first.ready()
        await second.ready()
        found = await until(lambda: status(raw_kafka, group), lambda found: is_settled(found, topic), step=0.2)
    partitions = [each for each in found["partitions"] if each["topic"] == topic]
    assert {each["owner"] for each in partitions} == set(found["members"])
    assert {name.split()[0] for name in found["members"]} == {"first", "second"}
    assert {each["client"] for each in found["workers"]} == {"first", "second"}
    assert {each["worker"] for each in partitions} == {f"{socket.gethostname()}:{os.getpid()}"}
    assert {each["version"] for each in found["workers"]} == {version("ackwise")}
    assert sum(each["committed"] or 0 for each in partitions) == 2
    after = await status(raw_kafka, group)
    assert after["findings"] == ["no worker is in the group, which is Empty; start one"]
    assert {each["topic"] for each in after["partitions"]} == {topic, f"{group}.retry"}
    assert after["workers"] == []  # they took back what they had said
