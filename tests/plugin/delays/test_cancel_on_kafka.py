"""Cancelling on a real Kafka: what whoever cancels is answered, and what becomes of the message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from tests.servers import RawKafka
from tests.waiting import PATIENCE

from ackwise import App, ConsumeLater
from ackwise.middleware.errors import ConfigurationError, PublishUnavailable
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import BUDGET, Copy, retry_copy
from ackwise.plugin.delays.cancellations import CANCELLED, CancelPartition, cancel
from ackwise.plugin.delays.delayrelay import relay_apart
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.config import Config
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicadmin import ensure_topics


class Shop:
    """A group with copies that wait. `now` is the clock of whoever cancels, seconds ahead of the machine's."""

    def __init__(self, raw: RawKafka, group: Group, source: str) -> None:
        self.raw = raw
        self.group = group
        self.source = source
        self.ahead = 0.0
        self.publisher = KafkaPublisher(group.settings)

    async def send(self, *offsets: int, delay: float, partition: int = 0, handler: str = "bill", attempt: int = 1) -> None:
        """Copies of records of the source that are due in `delay` seconds."""
        due = round((time.time() + delay) * 1000)
        copies = []
        for offset in offsets:
            origin = Origin(self.source, partition, offset, 7)
            copies.append(
                retry_copy(
                    Delivery(*origin, b"k", b"%d" % offset, (), origin, attempt=attempt), topic=self.group.names.delay,
                    partition=partition, group=self.group.settings.group, handler=handler, due=due, now_ms=0, reason="Later", waits=True,
                )
            )  # fmt: skip
        assert await self.publisher.publish(copies) == [None] * len(copies)

    async def cancel(self, *ids: str) -> list[str]:
        answers = await cancel(self.group, [f"{self.source}/{each}" for each in ids], clock=lambda: time.time() + self.ahead)
        return [answers[f"{self.source}/{each}"] for each in ids]

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        relaying = asyncio.create_task(relay_apart(self.group, stop))
        try:
            yield
        finally:
            stop.set()
            await relaying

    async def came_back(self, *, at_least: int) -> list[bytes | None]:
        async with asyncio.timeout(PATIENCE):
            while True:
                records = await self.raw.records(self.group.names.retry)
                if len(records) >= at_least:
                    return [record.value for record in records]
                await asyncio.sleep(0.05)

    async def cancellations(self) -> list[Any]:
        return [record for record in await self.raw.records(self.group.names.delay) if record.partition == 0]

    async def relay_committed(self, offset: int) -> None:
        """Wait until the relay has committed that on the rung of five seconds."""
        first = TopicPartition(self.group.names.delay, 10)
        async with asyncio.timeout(PATIENCE):
            while True:
                if (await self.raw.committed(self.group.names.relay_group)).get(first) == offset:
                    return
                await asyncio.sleep(0.05)


@pytest.fixture
async def shop(raw_kafka: RawKafka) -> AsyncIterator[Shop]:
    source = await raw_kafka.new_topic(2)
    app = App(raw_kafka.new_group(), brokers=raw_kafka.bootstrap, config=Config(), relay="apart", commit_interval=0.2)
    app.use(ConsumeLater(levels="1s 1m"))

    @app.agent(source)
    async def bill(_: Any) -> None: ...

    group = app.group()
    await ensure_topics(group.settings, group.names, [source], levels=group.levels)
    shop = Shop(raw_kafka, group, source)
    await shop.publisher.start()
    await shop.cancel("0/0")  # a cluster that has just started takes seconds until it knows of groups
    yield shop
    await shop.publisher.stop()


async def test_what_is_accepted_does_not_come_back_and_the_rest_does(shop: Shop) -> None:
    await shop.send(*range(5), delay=5.0)
    assert await shop.cancel("0/1", "0/3") == ["accepted", "accepted"]
    async with shop.relay():
        assert await shop.came_back(at_least=3) == [b"0", b"2", b"4"]
        await shop.relay_committed(5)
    assert await shop.came_back(at_least=3) == [b"0", b"2", b"4"]


async def test_a_running_relay_sees_what_is_cancelled_later_also_while_it_hops(shop: Shop) -> None:
    async with shop.relay():
        await shop.send(0, delay=0)
        await shop.came_back(at_least=1)
        for number, delay in ((1, 5.0), (2, 6.5)):
            await shop.send(2 * number, 2 * number + 1, delay=delay)
            assert await shop.cancel(f"0/{2 * number}") == ["accepted"]
        assert {*await shop.came_back(at_least=3)} == {b"0", b"3", b"5"}


async def test_too_late_is_what_is_due_or_back_and_unknown_is_what_does_not_wait(shop: Shop) -> None:
    await shop.send(1, delay=0.2)
    await shop.send(2, delay=0)
    await shop.send(3, delay=60.0)
    assert await shop.cancel("0/1", "0/2", "0/99", "1/3") == ["too late", "too late", "unknown", "unknown"]
    async with shop.relay():
        assert await shop.came_back(at_least=2) == [b"1", b"2"]
    assert await shop.cancel("0/1", "0/2") == ["too late", "too late"], "they are in the retry topic"
    assert await shop.cancellations() == [], "nothing is written for what is not accepted"


async def test_a_cancellation_that_is_acknowledged_too_late_is_taken_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been due by then, so nobody can promise that it does not come back; and later copies of it must not vanish."""
    publish = KafkaPublisher.publish

    async def slow(self: KafkaPublisher, copies: Any) -> Any:
        answers = await publish(self, copies)
        shop.ahead = 100.0
        return answers

    await shop.send(1, delay=50.0)
    monkeypatch.setattr(KafkaPublisher, "publish", slow)
    assert await shop.cancel("0/1") == ["too late"]
    monkeypatch.undo()
    written = await shop.cancellations()
    assert [record.value for record in written] == [b'{"version": 1}', None]
    assert written[0].key == written[1].key
    topic = CancelPartition(shop.group.settings, shop.group.names.delay)
    await topic.read()
    assert topic.keys == set()
    await topic.close()


async def test_the_newest_attempt_counts_and_a_copy_in_another_partition_is_found(shop: Shop) -> None:
    await shop.send(1, delay=0.0)
    await shop.send(1, delay=50.0, attempt=2)
    assert await shop.cancel("0/1") == ["accepted"]
    origin = Origin(shop.source, 1, 8, 7)
    copy = retry_copy(
        Delivery(*origin, b"k", b"8", (), origin), topic=shop.group.names.delay, partition=0, group=shop.group.settings.group,
        handler="bill", due=round((time.time() + 50) * 1000), now_ms=0, reason="", waits=True,
    )  # fmt: skip
    assert await shop.publisher.publish([copy]) == [None]
    assert await shop.cancel("1/8") == ["accepted"], "its topic was narrower when it was sent back"


async def test_what_is_no_message_id_is_refused_with_an_example(shop: Shop) -> None:
    for wrong in ("orders", "orders/1", "orders/x/1", "orders/1/2/3"):
        with pytest.raises(ConfigurationError, match="write topic/partition/offset of its first record, such as orders/3/120"):
            await cancel(shop.group, [wrong])


async def test_who_reads_while_another_reads_sees_what_was_written_before_it_asked(shop: Shop) -> None:
    topic = CancelPartition(shop.group.settings, shop.group.names.delay)
    try:
        await topic.read()
        reading = asyncio.create_task(topic.read())
        await asyncio.sleep(0)
        assert await shop.publisher.publish([Copy(shop.group.names.delay, 0, b"key", CANCELLED, ())]) == [None]
        await asyncio.gather(topic.read(), topic.read())
        assert topic.keys == {b"key"}
        await reading
    finally:
        await topic.close()


async def test_batches_arrive_whole_and_in_order_and_what_is_too_large_is_refused_alone(shop: Shop) -> None:
    batches = KafkaPublisher(shop.group.settings)
    await batches.start()
    try:
        copies = [Copy(shop.group.names.retry, place % 2, None, b"%d" % place, (("n", b""),)) for place in range(3000)]
        assert await batches.publish(copies) == [None] * 3000
        found = [int(record.value or b"") for record in await shop.raw.records(shop.group.names.retry)]
        assert found == [*range(0, 3000, 2), *range(1, 3000, 2)]
        large = Copy(shop.group.names.retry, 0, None, b"x" * (1_048_588 + 2 * BUDGET), ())
        answers = await batches.publish([copies[0], copies[1], large])
        assert [type(each).__name__ for each in answers] == ["NoneType", "NoneType", "PublishRefused"]
        assert await batches.publish([copies[0], Copy(shop.group.names.retry, 0, None, None, ())]) == [None, None]
    finally:
        await batches.stop()


async def test_a_topic_that_is_not_there_is_no_refusal_and_the_next_batch_goes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.producer.copypublisher._TIMEOUT", 1.0)
    batches = KafkaPublisher(shop.group.settings)
    await batches.start()
    try:
        (answer,) = await batches.publish([Copy("nowhere", 0, None, b"x", ())])
        assert isinstance(answer, PublishUnavailable)
        assert await batches.publish([Copy(shop.group.names.retry, 0, None, b"x", ())]) == [None]
    finally:
        await batches.stop()
