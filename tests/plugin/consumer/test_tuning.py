"""Tuning of the clients of a worker: what is set is what they have, and all works with it on a real Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise import App, ConsumeLater, Later

CONSUMER = {
    "fetch_max_bytes": 4096,
    "max_partition_fetch_bytes": 2048,
    "fetch_min_bytes": 2,
    "fetch_max_wait_ms": 20,
    "max_poll_interval_ms": 120_000,
    "heartbeat_interval_ms": 500,
    "client_rack": "cellar",
}
PRODUCER = {"compression_type": "gzip", "linger_ms": 3, "max_batch_size": 8192}


async def test_a_worker_with_everything_tuned_consumes_retries_and_publishes(raw_kafka: RawKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[dict[str, Any]]] = {"consumer": [], "producer": []}
    for name, client in (("consumer", AIOKafkaConsumer), ("producer", AIOKafkaProducer)):
        make: Any = client.__init__

        def watched(self: Any, *topics: Any, _make: Any = make, _name: str = name, **options: Any) -> None:
            given[_name].append(options)
            _make(self, *topics, **options)

        monkeypatch.setattr(client, "__init__", watched)
    source, target = await raw_kafka.new_topic(), await raw_kafka.new_topic()
    group = raw_kafka.new_group()
    app = App(
        group,
        brokers=raw_kafka.bootstrap,
        client_options={"metadata_max_age_ms": 1000},
        consumer_options=CONSUMER,
        producer_options=PRODUCER,
    )
    app.use(ConsumeLater(3, levels=["100ms"]))
    seen: list[bytes] = []
    is_done = asyncio.Event()
    large = b"x" * 10_000  # more than a fetch asks for

    @app.agent(source, max_batch=1)
    async def handle(value: bytes) -> None:
        seen.append(value)
        if seen == [large]:
            raise Later
        await app.publish(target, b"done")
        if len(seen) == 3:
            is_done.set()

    async with asyncio.timeout(PATIENCE), app.running() as worker:
        await worker.ready()
        await raw_kafka.produce(source, large, b"small")
        await is_done.wait()
    assert sorted(seen) == sorted([large, large, b"small"])
    assert [record.value for record in await raw_kafka.records(target)] == [b"done", b"done"]
    assert [record.value for record in await raw_kafka.records(f"{group}.retry")] == [large]
    (member,) = [options for options in given["consumer"] if options.get("group_id") == group]
    assert CONSUMER.items() <= member.items()
    tuned = [options for options in given["producer"] if "compression_type" in options]
    assert len(tuned) == 3  # of copies, of what handlers publish, and of the relay's copies
    assert all(PRODUCER.items() <= options.items() for options in tuned)
    ours = [each for each in (*given["consumer"], *given["producer"]) if str(each.get("client_id", "")).startswith("ackwise")]
    assert all(options["metadata_max_age_ms"] == 1000 for options in ours)
