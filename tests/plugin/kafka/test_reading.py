"""The one reader of topics, on a Kafka in memory and on a real one: it reads to the end, and never past what it can't see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from tests.plugin.logs import batch, corrupt
from tests.servers import RawKafka
from tests.waiting import PATIENCE, until

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.recordbatches import RawBatches
from ackwise.plugin.kafka.topicreader import Bounds, TopicReader, Unreadable
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicadmin import connected
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import hostile_client

#: As large as a record is that has its own answer.
LARGE = 700_000

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def _who_waits_for_what_may_come_waits_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.kafka.topicreader._WAIT", 50)


@pytest.fixture
async def memory() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        yield kafka


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.kafka)])
async def raw(request: pytest.FixtureRequest) -> AsyncIterator[RawKafka]:
    if request.param == "real":
        async with opened_raw(request.getfixturevalue("kafka").bootstrap) as raw:
            yield raw
        return
    async with MemoryKafka() as kafka, opened_raw(kafka.bootstrap) as raw:
        yield raw


@asynccontextmanager
async def opened_raw(bootstrap: str) -> AsyncIterator[RawKafka]:
    raw = RawKafka(bootstrap)
    await raw.start()
    try:
        yield raw
    finally:
        await raw.close()


@asynccontextmanager
async def reading(bootstrap: str, *, committed: bool = True, patience: float = 60.0) -> AsyncIterator[TopicReader]:
    """A reader that has a minute: whatever would wait forever fails the test."""
    async with asyncio.timeout(PATIENCE), connected(HostSettings(bootstrap, group="billing")) as admin:
        yield TopicReader(admin, committed=committed, patience=patience)


async def values(reader: TopicReader, place: TopicPartition) -> list[bytes]:
    start, end = (await reader.bounds([place]))[place]
    return [record.value async for record in reader.records(place, start, end)]


@asynccontextmanager
async def transaction(raw: RawKafka, topic: str, *values: bytes) -> AsyncIterator[AIOKafkaProducer]:
    """A transaction in which `values` are written; whoever uses it ends it."""
    async with opened(AIOKafkaProducer(bootstrap_servers=raw.bootstrap, transactional_id=f"writes-{topic}")) as producer:
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)
        yield producer


async def test_every_record_is_read_once_in_its_order(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(2), 1)
    await raw.produce(place.topic, *(b"%d" % number for number in range(500)), partition=1)
    await raw.produce(place.topic, *(bytes([number]) * LARGE for number in range(5)), partition=1)
    async with reading(raw.bootstrap) as reader:
        assert await reader.partitions([place.topic, "nowhere"]) == [TopicPartition(place.topic, 0), place]
        assert await reader.bounds([place]) == {place: Bounds(0, 505)}
        read = [record async for record in reader.records(place, 497, 504)]
    assert [(record.offset, record.value[:1]) for record in read] == [
        *((offset, b"4") for offset in (497, 498, 499)),
        *((500 + number, bytes([number])) for number in range(4)),
    ]


async def test_an_empty_log_and_a_range_of_nothing_are_read_without_a_fetch(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    with hostile_client() as plan:
        async with reading(raw.bootstrap) as reader:
            assert await values(reader, place) == []
            assert [record async for record in reader.records(place, 5, 5)] == []
    assert plan.calls["topics.Fetch"] == 0


@pytest.mark.parametrize(("commits", "read"), [(True, [b"a", b"b"]), (False, [b"a"])])
async def test_the_mark_of_a_transaction_at_the_end_is_passed(raw: RawKafka, commits: bool, read: list[bytes]) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, b"a")
    async with transaction(raw, place.topic, b"b") as producer:
        await (producer.commit_transaction() if commits else producer.abort_transaction())
    async with reading(raw.bootstrap) as reader:
        await until(lambda: reader.bounds([place]), lambda found: found == {place: Bounds(0, 3)})  # Kafka writes the mark a moment later
        assert await values(reader, place) == read


async def test_an_open_transaction_is_the_end_for_who_reads_what_is_committed(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, b"a")
    async with transaction(raw, place.topic, b"b") as producer:
        await raw.produce(place.topic, b"c")
        for committed, read in ((True, [b"a"]), (False, [b"a", b"b", b"c"])):
            async with reading(raw.bootstrap, committed=committed) as reader:
                assert await values(reader, place) == read
        async with reading(raw.bootstrap) as reader:
            assert await reader.portion(place, 1) == ([], 1), "it may be committed yet"
        await producer.commit_transaction()
        async with reading(raw.bootstrap) as reader:
            await until(lambda: values(reader, place), lambda found: found == [b"a", b"b", b"c"])


async def test_what_compaction_took_at_the_end_is_not_waited_for(memory: MemoryKafka) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        memory.produce("orders", value)
    memory.log("orders").remove([1, 3])
    async with reading(memory.bootstrap) as reader:
        assert await values(reader, ORDERS) == [b"a", b"c"]
        assert await reader.first(ORDERS, 1, 2) is None
        assert await reader.first(ORDERS, 3, 4) is None
        assert (await reader.first(ORDERS, 1, 4)).value == b"c"


async def test_a_log_that_kafka_has_compacted_is_read_to_its_end(raw_kafka: RawKafka) -> None:
    options: dict[str, Any] = {
        "cleanup_policy": "compact",
        "segment_ms": 100,
        "min_cleanable_dirty_ratio": 0.001,
        "max_compaction_lag_ms": 100,
    }
    place = TopicPartition(await raw_kafka.new_topic(**options), 0)
    for number in range(5):
        await raw_kafka.produce(place.topic, b"%d" % number, key=b"k")

    async def read() -> list[bytes]:
        await raw_kafka.produce(place.topic, b"newest", key=b"k")  # what is newer lets the segment before it be compacted
        return await values(reader, place)

    async with reading(raw_kafka.bootstrap) as reader:
        found = await until(read, lambda found: b"0" not in found, step=0.2)
    assert found[-1] == b"newest"


async def test_what_retention_took_is_an_error_and_no_silence(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, *(bytes([number]) * LARGE for number in range(5)))
    async with reading(raw.bootstrap) as reader, opened(AIOKafkaAdminClient(bootstrap_servers=raw.bootstrap)) as admin:
        records = reader.records(place, 0, 5)
        assert (await anext(records)).offset == 0
        await admin.delete_records({place: RecordsToDelete(before_offset=4)})
        with pytest.raises(Unreadable, match=rf"{place.topic}/0 at offset 1 any more"):
            await anext(records)
        assert await reader.bounds([place]) == {place: Bounds(4, 5)}
        assert [len(value) for value in await values(reader, place)] == [LARGE]


async def test_a_topic_that_is_deleted_meanwhile_ends_the_reading_with_its_name(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, *(bytes([number]) * LARGE for number in range(5)))
    async with reading(raw.bootstrap, patience=0.5) as reader:
        records = reader.records(place, 0, 5)
        assert (await anext(records)).offset == 0
        await raw.delete(place.topic)
        with pytest.raises(Unavailable, match=rf"{place.topic}/0 at offset 1 could not be read"):
            await anext(records)
    assert place.topic not in await raw.topics()


async def test_without_an_end_the_records_that_come_later_are_read_too(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, b"a")
    async with reading(raw.bootstrap) as reader:
        records = reader.records(place, 0)
        assert (await anext(records)).value == b"a"
        coming = asyncio.ensure_future(anext(records))
        await raw.produce(place.topic, b"b")
        assert (await coming).value == b"b"


async def test_the_first_record_of_a_time_is_found(raw: RawKafka) -> None:
    topic = await raw.new_topic(2)
    await raw.produce(topic, b"a")
    async with reading(raw.bootstrap) as reader:
        partitions = await reader.partitions([topic])
        assert [(place.partition, offset) for place, (offset, _) in (await reader.offsets(partitions, 1)).items()] == [(0, 0), (1, -1)]
        assert {offset for offset, _ in (await reader.offsets(partitions, 4_000_000_000_000)).values()} == {-1}


async def test_no_topic_is_made_and_nothing_is_committed() -> None:
    async with MemoryKafka(auto_create_topics=True) as kafka:
        async with reading(kafka.bootstrap, patience=0.0) as reader:
            assert await reader.partitions(["orders"]) == []
            with pytest.raises(Unavailable, match="UnknownTopicOrPartitionError: orders"):
                await reader.bounds([ORDERS])
        assert not kafka.has_topic("orders")
        assert kafka._cluster.groups == {}


@pytest.mark.slow  # a request times out
@pytest.mark.parametrize("harm", ["short", "empty", "not-leader-one", "unknown-one", "no-topic-one", "raises-after", "times-out"])
async def test_what_may_pass_is_asked_again(memory: MemoryKafka, harm: str) -> None:
    memory.produce("orders", b"a", b"b")
    with hostile_client(f"topics.Fetch:{harm}x2", f"topics.ListOffsets:{harm}") as plan:
        async with reading(memory.bootstrap) as reader:
            assert await values(reader, ORDERS) == [b"a", b"b"]
    assert plan.unspent == []


@pytest.mark.parametrize("error", [NotLeaderForPartitionError, LeaderNotAvailableError, UnknownTopicOrPartitionError])
async def test_a_partition_without_a_leader_is_named_once_patience_is_over(memory: MemoryKafka, error: Any) -> None:
    memory.produce("orders", b"a")
    memory.faults.refuse("Fetch", error, times=None)
    async with reading(memory.bootstrap, patience=0.3) as reader:
        with pytest.raises(Unavailable, match=rf"^orders/0 at offset 0 could not be read \({error.__name__}"):
            await values(reader, ORDERS)
    memory.faults.refuse("ListOffsets", error, times=None)
    async with reading(memory.bootstrap, patience=0.3) as reader:
        with pytest.raises(Unavailable, match=rf"{error.__name__}.*orders/0"):
            await reader.ends([ORDERS])


async def test_a_leader_that_does_not_show_the_end_yet_is_asked_until_it_does(memory: MemoryKafka) -> None:
    memory.produce("orders", b"a")
    with hostile_client() as plan:
        async with reading(memory.bootstrap) as reader:
            reading_on = asyncio.ensure_future(anext(reader.records(ORDERS, 1, 2)))
            await until(lambda: plan.calls["topics.Fetch"] >= 2)
            memory.produce("orders", b"b")
            assert (await reading_on).value == b"b"
    async with reading(memory.bootstrap, patience=0.3) as reader:
        with pytest.raises(Unavailable, match="ends at 2 for now, and ended at 5"):
            await anext(reader.records(ORDERS, 2, 5))


async def test_what_is_in_remote_storage_is_waited_for_and_not_passed(memory: MemoryKafka) -> None:
    memory.produce("orders", b"a")
    memory.produce("orders", b"b")
    log = memory.log("orders")
    for end in (2, None):
        log.local_start, log.is_storage_away = 1, True
        with hostile_client() as plan:
            async with reading(memory.bootstrap) as reader:
                reading_on = asyncio.ensure_future(anext(reader.records(ORDERS, 0, end)))
                await until(lambda: plan.calls["topics.Fetch"] >= 2)
                log.is_storage_away = False
                assert (await reading_on).value == b"a"
    log.is_storage_away = True
    async with reading(memory.bootstrap, patience=0.0) as reader:
        assert (await anext(reader.records(ORDERS, 1, 2))).value == b"b", "its broker has that itself"
        with pytest.raises(Unavailable, match="the remote storage has not answered its broker yet"):
            await anext(reader.records(ORDERS, 0, 2))


async def test_a_broker_says_what_it_has_itself(raw: RawKafka) -> None:
    place = TopicPartition(await raw.new_topic(), 0)
    await raw.produce(place.topic, b"a", b"b")
    async with reading(raw.bootstrap) as reader:
        assert not await reader._is_remote(await reader._leader(place), place, 0)


async def test_many_partitions_are_tried_with_one_fetch(raw: RawKafka) -> None:
    topic = await raw.new_topic(20)
    await raw.produce(topic, b"a")
    with hostile_client() as plan:
        async with reading(raw.bootstrap) as reader:
            await reader.try_to_read([TopicPartition(topic, number) for number in range(20)])
    assert plan.calls["topics.Fetch"] == 1


async def test_one_partition_that_may_not_be_read_is_named(memory: MemoryKafka) -> None:
    memory.faults.refuse("Fetch", TopicAuthorizationFailedError)
    async with reading(memory.bootstrap) as reader:
        with pytest.raises(ConfigurationError, match=r"this client may not read the newest records .*orders/0.*; allow it to"):
            await reader.try_to_read([ORDERS])


async def test_a_client_that_may_not_read_is_told_so_at_once(memory: MemoryKafka) -> None:
    memory.produce("orders", b"a")
    memory.faults.refuse("Fetch", TopicAuthorizationFailedError, times=None)
    async with reading(memory.bootstrap) as reader:
        with pytest.raises(ConfigurationError, match=r"this client may not read orders/0 at offset 0 .*; allow it to"):
            await values(reader, ORDERS)


async def test_a_damaged_record_is_named_after_those_before_it(memory: MemoryKafka) -> None:
    memory.produce("orders", b"a", b"b")
    with hostile_client("topics.Fetch:corrupt"):
        async with reading(memory.bootstrap) as reader:
            with pytest.raises(Unreadable, match=r"orders/0 at offset 0 can't be read \(CorruptRecordException"):
                await values(reader, ORDERS)


def found(*batches: tuple[int, bytes], position: int = 0, aborted: Any = None) -> RawBatches:
    return RawBatches(ORDERS, position, b"".join(raw for _, raw in batches), aborted, 1, batches[-1][0])


def test_records_around_a_header_whose_name_is_no_text_are_read_once() -> None:
    ten = [b"%d" % number for number in range(10)]
    dropped = batch(30, *ten, producer=7)
    answer = found(batch(0, *ten), batch(10, *ten, header=b"\xff"), batch(20, *ten), dropped, position=5, aborted=[(7, 30)])
    assert [record.offset for record in answer.parsed()] == list(range(5, 30))
    assert answer.goes_on_at == 40
    parsed = found(batch(0, *ten, header=b"\xff"), corrupt(batch(10, *ten))).parsed()
    assert [next(parsed).offset for _ in range(10)] == list(range(10))
    with pytest.raises(Exception, match="Invalid CRC"):
        next(parsed)


def test_half_a_batch_at_the_end_of_an_answer_comes_again() -> None:
    whole = found(batch(0, b"a", b"b", last=4), batch(4, b"c"))
    answer = whole._replace(raw=whole.raw[:-1])
    assert [record.value for record in answer.parsed()] == [b"a", b"b"]
    assert (whole.goes_on_at, answer.goes_on_at) == (5, 2)
    assert whole._replace(raw=whole.raw[:40]).goes_on_at == 0


async def test_whatever_call_it_is_cancelled_in_no_connection_stays_open(memory: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        memory.produce("orders", bytes([number]) * LARGE)
    send: Any = AIOKafkaClient.send
    reached, asked, wanted = asyncio.Event(), 0, 0

    async def held(self: AIOKafkaClient, *arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > wanted:
            reached.set()
            await asyncio.Event().wait()
        return await send(self, *arguments, **options)

    async def work() -> None:
        async with reading(memory.bootstrap) as reader:
            await reader.partitions(["orders"])
            await values(reader, ORDERS)

    monkeypatch.setattr(AIOKafkaClient, "send", held)
    while True:
        asked = 0
        reached.clear()
        working = asyncio.ensure_future(work())
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            waiting.cancel()
            break
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await until(lambda: not memory._connections)
        wanted += 1
    working.result()
    assert wanted >= 7, "two about topics, two about bounds, a fetch for each record"
