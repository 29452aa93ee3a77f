"""Every example runs as its first lines say, on a real Kafka."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.servers import RawKafka

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.kafka
async def test_billing_charges_brings_back_and_rejects(raw_kafka: RawKafka, tmp_path: Path) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=raw_kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("orders", 1, 1)])
    await admin.close()
    await raw_kafka.produce(
        "orders", *(b'{"id": "%s", "amount": %d}' % order for order in [(b"a", 5), (b"b", 0), (b"c", 20_000), (b"a", 5)])
    )
    shutil.copy(EXAMPLES / "billing.py", tmp_path)

    command = [sys.executable, "-m", "ackwise.plugin.cli", "run", "billing:app"]
    environment = {**os.environ, "BROKERS": raw_kafka.bootstrap}
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    async with asyncio.timeout(60):
        charged = [await worker.stdout.readline() for _ in range(2)]
    worker.send_signal(signal.SIGINT)
    rest, _ = await worker.communicate()

    assert charged == [b"charged a 5\n", b"charged c 20000\n"]
    assert (worker.returncode, rest) == (0, b"")
    assert [letter.value for letter in await raw_kafka.records("billing.dlq")] == [b'{"id": "b", "amount": 0}']


def test_no_example_is_without_a_test() -> None:
    here = Path(__file__).read_text("utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in here] == []
