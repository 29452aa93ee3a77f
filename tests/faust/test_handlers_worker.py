"""Handler functions in a `faust worker` process on a real Kafka: nothing is lost, and one that stops its program stops the worker."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from tests.servers import RawKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(120)]  # the start of a worker of Faust takes seconds

APP = """
import json
from pathlib import Path

from ackwise import Batch, ConsumeLater, Message
from ackwise.middleware.policies.retry import Fixed
from ackwise.plugin.faust import App

app = App("GROUP", broker="kafka://BROKERS", datadir="data", web_enabled=False, broker_commit_interval=0.2)
app.use(ConsumeLater(3, levels="200ms", retry=Fixed(0.2)))


@app.handler("TOPIC", max_batch=10)
async def bill(batch: Batch[int]) -> None:
    for index, message in enumerate(batch):
        if message.value == 66:
            raise SystemExit(3)
        if message.value % 7 == 0 and message.reconsume_times == 0:
            batch.ack_index = index - 1
            return
        write("bill", message.value)


@app.handler("TOPIC", name="ship")
async def ship(message: Message[int]) -> None:
    if message.value % 5 == 0 and message.reconsume_times == 0:
        raise ConnectionError("not now")
    write("ship", message.value)


def write(name: str, value: int) -> None:
    with Path("done").open("a") as file:
        file.write(json.dumps([name, value]) + "\\n")
"""


async def start(folder: Path, kafka: RawKafka, topic: str, group: str) -> asyncio.subprocess.Process:
    (folder / "shop.py").write_text(APP.replace("GROUP", group).replace("TOPIC", topic).replace("BROKERS", kafka.bootstrap))
    with (folder / "log").open("wb") as log:
        command = (sys.executable, "-m", "faust", "-A", "shop", "worker", "-l", "info", "--without-web")
        return await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=log, stderr=log)


async def eventually(condition: Callable[[], object], process: asyncio.subprocess.Process, folder: Path) -> None:
    """Until `condition` holds, or the worker has ended; the caller has the deadline."""
    while not condition():  # a file that another process writes wakes nobody
        assert process.returncode is None, (folder / "log").read_text()[-4000:]
        await asyncio.sleep(0.1)


def done(folder: Path) -> set[tuple[str, int]]:
    path = folder / "done"
    return {(name, value) for name, value in map(json.loads, path.read_text().splitlines())} if path.exists() else set()


async def test_what_fails_comes_back_nothing_is_lost_and_a_handler_that_exits_ends_the_worker_with_its_code_and_rules_on_nothing(
    raw_kafka: RawKafka, tmp_path: Path
) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, *(b"%d" % value for value in range(40)))
    process = await start(tmp_path, raw_kafka, topic, group)
    try:
        everything = {(name, value) for name in ("bill", "ship") for value in range(40)}
        async with asyncio.timeout(90):
            await eventually(lambda: done(tmp_path) >= everything, process, tmp_path)
            await raw_kafka.produce(topic, b"66")
            code = await process.wait()
        assert (code, (await raw_kafka.committed(group))[TopicPartition(topic, 0)]) == (3, 40), (tmp_path / "log").read_text()[-4000:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
