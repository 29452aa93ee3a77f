"""Messages that expire, in a `faust worker` process on a real Kafka: for a handler function and for a loop."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.servers import RawKafka
from tests.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(120)]  # the start of a worker of Faust takes seconds

APP = """
import json
from pathlib import Path

from ackwise import Message
from ackwise.plugin.faust import App

app = App("GROUP", broker="kafka://BROKERS", datadir="data", web_enabled=False, broker_commit_interval=0.2)


@app.handler("TOPIC", expires=True)
async def bill(message: Message[bytes]) -> None:
    write("bill", message.value)


@app.agent(app.topic("TOPIC", value_serializer="raw"), name="watch")
async def watch(stream):
    async for value in stream:
        write("watch", value)


def write(name: str, value: bytes) -> None:
    with Path("done").open("a") as file:
        file.write(json.dumps([name, value.decode()]) + "\\n")
"""


async def test_neither_a_handler_function_nor_a_loop_gets_what_has_expired(raw_kafka: RawKafka, tmp_path: Path) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"old", headers=[("expires", b"1600000000000")])
    await raw_kafka.produce(topic, b"new", headers=[("expires", b"4000000000000")])
    (tmp_path / "shop.py").write_text(APP.replace("GROUP", group).replace("TOPIC", topic).replace("BROKERS", raw_kafka.bootstrap))
    done = tmp_path / "done"
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "faust", "-A", "shop", "worker", "-l", "info", "--without-web"),
            cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "ACKWISE_AGENTS__WATCH__EXPIRES": "true"},
        )  # fmt: skip

    async def letters() -> list[tuple[bytes | None, bytes, bytes]]:
        assert process.returncode is None, (tmp_path / "log").read_text()[-4000:]
        found = [(record.value, dict(record.headers)) for record in await raw_kafka.records(f"{group}.dlq")]
        return sorted((value, headers["ackwise-handler"], headers["ackwise-reason"]) for value, headers in found)

    try:
        async with asyncio.timeout(90):
            await until(done.exists)
            await until(letters, lambda found: len(found) == 2)
            assert await letters() == [(b"old", b"bill", b"expired"), (b"old", b"watch", b"expired")]
            await until(lambda: len(done.read_text().splitlines()) == 2)
        assert sorted(map(json.loads, done.read_text().splitlines())) == [["bill", "new"], ["watch", "new"]]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
