"""`ackwise status` on a real Kafka: two workers in processes of their own, each with partitions."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers import RawKafka

pytestmark = pytest.mark.kafka

WORKER = """
from ackwise import App, Message

app = App({group!r}, brokers={brokers!r}, commit_interval=0.2, session_timeout=6.0, start="earliest")

@app.agent({topic!r})
async def bill(message: Message[bytes]) -> None: ...
"""


async def run(folder: Path, *arguments: str) -> tuple[Any, str]:
    """Exit code, and what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ackwise.plugin.cli", *arguments, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return process.returncode, (await process.communicate())[0].decode()


async def test_each_partition_has_the_worker_that_the_broker_gave_it_to(raw_kafka: RawKafka, tmp_path: Path) -> None:
    topic, group = await raw_kafka.new_topic(partitions=2), raw_kafka.new_group()
    (tmp_path / "worker.py").write_text(WORKER.format(group=group, brokers=raw_kafka.bootstrap, topic=topic))
    await raw_kafka.produce(topic, b"a", b"b")
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ackwise.plugin.cli", "run", "worker:app", cwd=tmp_path,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(2)
    ]  # fmt: skip
    found: Any = None
    try:
        async with asyncio.timeout(90):
            while not found or len(found["members"]) < 2 or found["findings"] or found["lag"]:
                said = (await run(tmp_path, "status", "worker:app", "--json"))[1]
                found = json.loads(said) if said.startswith("{") else None  # its topics are not there yet
        partitions = [each for each in found["partitions"] if each["topic"] == topic]
        assert {each["owner"] for each in partitions} == set(found["members"])
        assert sum(each["committed"] for each in partitions) == 2
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            await worker.wait()
    told = json.loads((await run(tmp_path, "status", group, "--brokers", raw_kafka.bootstrap, "--json"))[1])
    assert told["findings"] == ["no worker is in the group, which is Empty; start one"]
    assert {each["topic"] for each in told["partitions"]} == {topic, f"{group}.retry"}
