"""A topic that is deleted and made again on a real Kafka while its partition is paused, and grows past the old position."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise import App, Message
from ackwise.plugin.settings.config import Config

pytestmark = pytest.mark.kafka


async def make_again(raw: RawKafka, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=raw.bootstrap)
    await admin.start()

    async def create() -> Any:
        return await admin.create_topics([NewTopic(topic, 1, 1)])

    try:
        await admin.delete_topics([topic])
        async with asyncio.timeout(PATIENCE):
            while [code for _, code, *_ in (await create()).topic_errors] != [0]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)  # Kafka deletes it in its own time
    finally:
        await admin.close()


async def test_nothing_of_the_new_topic_is_passed_over(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    ran: list[bytes] = []
    app = App(group, brokers=raw_kafka.bootstrap, config=Config(), commit_interval=0.2)

    @app.agent(topic, name="bill")
    async def bill(message: Message[bytes]) -> None:
        ran.append(message.value)

    old, new = [b"old %d" % number for number in range(5)], [b"new %d" % number for number in range(8)]
    await raw_kafka.produce(topic, *old)
    async with app.running() as worker:
        await worker.ready()
        await until(lambda: ran == old)
        await app.pause("bill")
        await asyncio.sleep(1.5)  # until the client has paused it, too
        await make_again(raw_kafka, topic)
        await raw_kafka.produce(topic, *new)
        await app.resume("bill")
        await until(lambda: set(new) <= {*ran})
