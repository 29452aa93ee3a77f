"""Copies that fail by themselves: refused after a while, alone in their batch, and while their own partition takes others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka.errors import BrokerResponseError, CorruptRecordException, InvalidTimestampError, UnknownError
from tests.fakes import Clock

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.outgoing import Publisher
from ackwise.middleware.message.refusals import REFUSED_AFTER
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing import MemoryKafka
from ackwise.testing.kafka.partition import Batch

_Make = Callable[[HostSettings, Clock], Any]

BOTH = pytest.mark.parametrize("make", [lambda s, c: KafkaPublisher(s, clock=c)], ids=["worker and relay"])


@pytest.fixture
async def kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("billing.retry", partitions=2)
        kafka.create_topic("compacted", cleanup_policy="compact")
        yield kafka


def copy(value: bytes, partition: int = 0, *, topic: str = "billing.retry") -> Copy:
    return Copy(topic, partition, None, value, ())


def poison(kafka: MemoryKafka, error: type[BrokerResponseError]) -> None:
    """Let the broker refuse each batch in which a record starts with `poison`."""
    cluster: Any = kafka._cluster
    append = cluster.append

    def refuse(topic: str, partition: int, batch: Batch) -> int:
        if any((record.value or b"").startswith(b"poison") for record in batch.records()):
            raise error
        return int(append(topic, partition, batch))

    cluster.append = refuse


async def publish(publisher: Publisher, *copies: Copy) -> list[type[Exception] | None]:
    return [None if answer is None else PublishRefused if isinstance(answer, PublishRefused) else PublishUnavailable
            for answer in await publisher.publish(copies)]  # fmt: skip


@BOTH
@pytest.mark.parametrize("error", [CorruptRecordException, UnknownError, InvalidTimestampError])
async def test_a_copy_that_fails_by_itself_takes_no_neighbour_with_it_and_is_refused_in_time(
    kafka: MemoryKafka, make: _Make, error: type[BrokerResponseError]
) -> None:
    poison(kafka, error)
    clock = Clock()
    publisher = make(HostSettings(kafka.bootstrap, "billing"), clock)
    if isinstance(publisher, KafkaPublisher):
        await publisher.start()
    bad = copy(b"poison")
    for _ in range(2):
        assert await publish(publisher, bad, copy(b"elsewhere", 1)) == [PublishUnavailable, None]
        clock.now += REFUSED_AFTER
    first, refused, last = await publish(publisher, copy(b"1"), bad, copy(b"2"))
    assert (first, last) == (None, None)
    assert PublishRefused in (refused, *await publish(publisher, bad))  # the first of them goes before its neighbours, or behind them
    assert sorted(record.value or b"" for record in kafka.records("billing.retry", 0)) == [b"1", b"2"]
    await publisher.stop()


@BOTH
async def test_a_partition_that_takes_no_copy_refuses_none_however_long(kafka: MemoryKafka, make: _Make) -> None:
    poison(kafka, UnknownError)
    clock = Clock()
    publisher = make(HostSettings(kafka.bootstrap, "billing"), clock)
    if isinstance(publisher, KafkaPublisher):
        await publisher.start()
    for _ in range(4):
        answers = await publish(publisher, copy(b"poison"), copy(b"poison, too"), copy(b"elsewhere", 1))
        assert answers == [PublishUnavailable, PublishUnavailable, None]
        clock.now += REFUSED_AFTER
    await publisher.stop()


async def test_a_partition_that_takes_nothing_costs_the_relay_few_producers(kafka: MemoryKafka) -> None:
    refusing = kafka.faults.refuse("Produce", UnknownError, times=None)
    publisher = KafkaPublisher(HostSettings(kafka.bootstrap, "billing"), clock=Clock())
    await publisher.start()
    answers = await publisher.publish([copy(b"%d" % number) for number in range(200)])
    assert all(isinstance(answer, PublishUnavailable) for answer in answers)
    assert refusing.met <= 12
    await publisher.stop()


@BOTH
async def test_a_copy_that_its_topic_never_takes_is_refused_in_time(kafka: MemoryKafka, make: _Make) -> None:
    clock = Clock()
    publisher = make(HostSettings(kafka.bootstrap, "billing"), clock)
    if isinstance(publisher, KafkaPublisher):
        await publisher.start()
    keyless = copy(b"v", topic="compacted")
    assert await publish(publisher, keyless) == [PublishUnavailable]
    clock.now += REFUSED_AFTER
    assert await publish(publisher, keyless) == [PublishRefused]
    await publisher.stop()


@BOTH
async def test_a_copy_that_fits_once_it_is_compressed_is_written(kafka: MemoryKafka, make: _Make) -> None:
    kafka.create_topic("small", max_message_bytes=20_000)
    publisher = make(HostSettings(kafka.bootstrap, "billing", producer_options={"compression_type": "gzip"}), Clock())
    if isinstance(publisher, KafkaPublisher):
        await publisher.start()
    answers = await publish(publisher, copy(bytes(100_000), topic="small"))
    await publisher.stop()
    assert answers == [None]
