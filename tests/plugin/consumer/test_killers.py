"""Workers that one message kills while it is decoded, before anything is claimed: processes against a Kafka in memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ackwise.testing import MemoryKafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # it starts some thirteen processes

#: Deaths until it is a dead letter: the first, two until it is found, and ten alone.
MOST_DEATHS = 13

WORKER = """
import os
import signal

from pydantic import BaseModel, field_validator

from ackwise import App, Message
from ackwise.plugin.settings.config import Config


class Order(BaseModel):
    id: str

    @field_validator("id")
    @classmethod
    def kill(cls, value: str) -> str:
        if value == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        return value


app = App("billing", brokers={brokers!r}, config=Config(), session_timeout=6.0, client_id="worker", commit_interval=0.5)


@app.agent("orders", name="bill")
async def bill(message: Message[Order]) -> None:
    with open({out!r}, "a") as file:
        file.write(message.value.id + "\\n")


app.run()
"""


async def test_a_message_that_kills_its_worker_while_it_is_decoded_becomes_a_dead_letter_and_all_others_run(tmp_path: Path) -> None:
    out, script, deaths = tmp_path / "ran", tmp_path / "worker.py", 0
    async with MemoryKafka() as kafka, asyncio.timeout(170):
        kafka.create_topic("orders", 2)
        ids = [f"v{number}" for number in range(50)]
        for number, name in enumerate(ids):
            kafka.produce("orders", b'{"id": "%s"}' % (b"killer" if number == 20 else name.encode()), partition=0)
            kafka.produce("orders", b'{"id": "w%d"}' % number, partition=1)
        script.write_text(WORKER.format(brokers=kafka.bootstrap, out=str(out)))
        while True:
            worker = await asyncio.create_subprocess_exec(sys.executable, script, stderr=asyncio.subprocess.DEVNULL)
            while worker.returncode is None and not (kafka.has_topic("billing.dlq") and kafka.records("billing.dlq")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if worker.returncode is None:
                break
            deaths += 1
            assert deaths <= MOST_DEATHS
            kafka.expire("worker")
        (letter,) = kafka.records("billing.dlq")
        assert letter.value == b'{"id": "killer"}'
        assert dict(letter.headers)["ackwise-reason"] == b"crashed-worker"
        expected = {*ids, *(f"w{number}" for number in range(50))} - {"v20"}
        while {*out.read_text().split()} != expected:  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.05)
        worker.terminate()
        assert await worker.wait() == 0
