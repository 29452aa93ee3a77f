"""What waits in place on a real Kafka: a burial that outlives the worker it was told to."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
from tests.plugin.flow.test_flow_on_kafka import ackwise
from tests.servers import RawKafka
from tests.waiting import PATIENCE

pytestmark = pytest.mark.kafka

WORKER = """
from pathlib import Path

from ackwise import App, Message, RetryInPlace

app = App({group!r}, brokers={brokers!r}, commit_interval=0.2, session_timeout=6.0)
ran = Path(__file__).with_name("ran")

@app.agent({topic!r}, order="partition", in_place=RetryInPlace(3, delay=30))
async def bill(message: Message[bytes]) -> None:
    with ran.open("a") as file:
        file.write(message.value.decode() + "\\n")
    if message.value == b"bad":
        raise RuntimeError
"""


async def started(folder: Path) -> asyncio.subprocess.Process:
    with (folder / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ackwise.plugin.cli", "run", "worker:app", cwd=folder, stdout=log, stderr=log
        )


async def test_a_worker_that_was_killed_after_the_command_leaves_the_burial_to_the_next_one(raw_kafka: RawKafka, tmp_path: Path) -> None:
    topic, group, ran = await raw_kafka.new_topic(), raw_kafka.new_group(), tmp_path / "ran"
    (tmp_path / "worker.py").write_text(WORKER.format(group=group, brokers=raw_kafka.bootstrap, topic=topic))
    await raw_kafka.produce(topic, b"bad", b"good")
    worker = await started(tmp_path)
    async with asyncio.timeout(PATIENCE):
        while not (waiting := json.loads(await ackwise(tmp_path, "inplace", "list", "worker:app", "--json"))["waiting"]):  # noqa: ASYNC110  # as below
            await asyncio.sleep(0.3)
    assert [(each["message"], each["attempts"], each["depth"]) for each in waiting] == [(f"{topic}/0/0", 1, 1)]
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    assert "will be buried" in await ackwise(tmp_path, "inplace", "bury", "worker:app", f"{topic}/0/0")
    assert await raw_kafka.records(f"{group}.dlq") == []
    worker = await started(tmp_path)
    try:
        async with asyncio.timeout(PATIENCE):
            while ran.read_text().split() != ["bad", "good"]:  # what it waits for tells nobody
                assert ran.read_text().split() == ["bad"]
                await asyncio.sleep(0.1)
    finally:
        worker.send_signal(signal.SIGTERM)
        await worker.wait()
    (letter,) = await raw_kafka.records(f"{group}.dlq")
    assert dict(letter.headers)["ackwise-reason"] == b"buried"
    assert "pauses are not known yet" not in (tmp_path / "log").read_text()  # also of a topic without a record
