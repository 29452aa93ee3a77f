"""A process of receivers that is killed, on a real Kafka with a store on disk."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise import Answer, SimpleConsumer


@pytest.mark.kafka
async def test_what_a_killed_receiver_had_comes_again_and_what_it_acknowledged_does_not(raw_kafka: RawKafka, tmp_path: Path) -> None:
    topic, group, store = await raw_kafka.new_topic(), raw_kafka.new_group(), f"sqlite:///{tmp_path / 'claims.db'}"
    written = [f"m{number}" for number in range(20)]
    await raw_kafka.produce(topic, *(value.encode() for value in written))
    command = [sys.executable, str(Path(__file__).with_name("receiver.py")), raw_kafka.bootstrap, group, topic, store]
    doomed = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert doomed.stdout is not None
    said: dict[str, list[str]] = {"acked": [], "has": []}
    async with asyncio.timeout(PATIENCE):
        for _ in range(11):
            what, value = (await doomed.stdout.readline()).decode().split()
            said[what].append(value)
        doomed.kill()
        await doomed.wait()
        for line in (await doomed.stdout.read()).decode().splitlines():
            what, value = line.split()
            said[what].append(value)
    again: list[str] = []
    async with asyncio.timeout(90), SimpleConsumer(group, topic, brokers=raw_kafka.bootstrap, store=store, session_timeout=6) as heir:
        while not set(written) <= {*again, *said["acked"]}:
            received = await heir.receive(20, invisible="1m")
            again += [each.value.decode() for each in received]
            assert all(each.reconsume_times == 0 for each in received)
            assert set(await heir.ack_all(received)) <= {Answer.ACKED}
        assert await heir.receive(20, invisible="1m", wait=1) == []
    assert len(again) == len(set(again))
    assert set(said["has"]) <= set(again)
    assert set(said["acked"]).isdisjoint(again)
