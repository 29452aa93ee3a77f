"""What the world does to a worker: bytes that nobody can read, handlers that misbehave, disks and brokers that fail."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError
from tests.failures.calls import Tap, current
from tests.failures.world import Member, NewWorld, Record, World, each, expected, mixed_messages, start_process

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_SUCCESS
from ackwise.middleware.message.message import Message

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(90)]


class Reads:
    """A handler that remembers what it was given and sends everything back once."""

    def __init__(self, world: World, *, later: bool = True) -> None:
        self.messages: list[Message[Any]] = []
        self._world = world
        self._later = later

    async def __call__(self, batch: Batch[Any]) -> None:
        self.messages += batch
        for message in batch:
            if self._later and message.reconsume_times == 0:
                batch.later(message, delay_level=1)
            else:
                self._world.ledger.ran([(message.topic, message.partition, message.offset)])


async def finish(world: World, *members: Member) -> None:
    await world.wait_until_committed()
    await asyncio.gather(*(member.leave() for member in members))
    await world.judge()


async def letters(world: World) -> list[tuple[bytes | None, bytes | None, str]]:
    """Key, value and reason of each dead letter, in the order of partitions and offsets."""
    records = await world.read(f"{world.group}.dlq")
    return [(record.key, record.value, dict(record.headers)["ackwise-reason"].decode()) for record in records]


def raw(value: bytes | None) -> bytes | None:
    return value


async def test_bytes_that_no_decoder_takes_and_what_somebody_else_wrote_for_a_retry_are_dead_letters_whole(new_world: NewWorld) -> None:
    world = new_world(partitions=1)
    await world.create()
    poison: list[bytes | None] = [b"\xff\xfe", b"", b"{", None, bytes(1000)]
    await world.send(Record(None, 0, value, key=b"k%d" % number) for number, value in enumerate(poison))
    await world.send([Record.of("m1", 0)])
    member = world.join()
    await member.tap.wait_for("store.complete-ok")
    await world.send([Record(None, 0, b"stray", headers=(("ackwise-version", b"one"),))], topic=f"{world.group}.retry")
    await world.wait_until_committed()
    await member.leave()
    undecodable = [(b"k%d" % number, value, "undecodable") for number, value in enumerate(poison)]
    assert await letters(world) == [*undecodable, (None, b"stray", "foreign-copy")]
    assert world.ledger.runs() == {"m1": 1}


async def test_null_keys_ten_thousand_headers_and_headers_that_are_called_like_ours_come_back_as_they_were(new_world: NewWorld) -> None:
    world = new_world(partitions=1, dedup=False, decode=raw)
    await world.create()
    many = tuple((f"h{number}", b"x") for number in range(10_000))
    forged = (
        ("ackwise-version", b"2"), ("ackwise-group", world.group.encode()), ("ackwise-handler", b"nobody"), ("ackwise-attempt", b"17"),
        ("ackwise-origin-topic", b"elsewhere"), ("ackwise-origin-partition", b"9"), ("ackwise-origin-offset", b"9"),
        ("ackwise-origin-timestamp", b"9"), ("ackwise-first-seen", b"9"), ("ackwise-due", b"99999999999999"), ("ackwise-version", b"77"),
    )  # fmt: skip
    sent = [Record(None, 0, None), Record(None, 0, b""), Record(None, 0, None, key=b""), Record(None, 0, b"v", key=b"k", headers=many)]
    await world.send([*sent, Record(None, 0, b"v", headers=forged)])
    handler = Reads(world)
    await finish(world, world.join(handler))
    given = Counter((message.key, message.value, message.headers, message.reconsume_times) for message in handler.messages)
    assert given == Counter((record.key, record.value, record.headers, times) for record in world.sent for times in (0, 1))
    assert await letters(world) == []


class Odd(BaseException):
    """Not an `Exception`."""


async def _append(batch: Batch[Any]) -> object:
    return batch.messages.append(batch[0])  # type: ignore[attr-defined]  # it is a tuple


async def _assign(batch: Batch[Any]) -> object:
    batch[0] = batch[0]  # type: ignore[index]  # it is read-only
    return None


async def _rule_on_another(batch: Batch[Any]) -> object:
    batch.done(Message(batch[0].delivery, batch[0].value))
    return CONSUME_SUCCESS


def _returns(value: object) -> Callable[[Batch[Any]], Awaitable[object]]:
    async def handler(_: Batch[Any]) -> object:
        return value

    return handler


def _raises(error: BaseException) -> Callable[[Batch[Any]], Awaitable[object]]:
    async def handler(_: Batch[Any]) -> object:
        raise error

    return handler


def _sets_ack_index(index: Any) -> Callable[[Batch[Any]], Awaitable[object]]:
    async def handler(batch: Batch[Any]) -> object:
        batch.ack_index = index
        return CONSUME_SUCCESS

    return handler


MISBEHAVIOURS: dict[str, Callable[[Batch[Any]], Awaitable[object]]] = {
    "returns True": _returns(True),
    "returns a text": _returns("CONSUME_SUCCESS"),
    "returns an object": _returns(object()),
    "raises BaseException": _raises(Odd()),
    "raises CancelledError": _raises(asyncio.CancelledError()),
    "raises a group": _raises(BaseExceptionGroup("several", [Odd(), ValueError()])),
    "raises StopAsyncIteration": _raises(StopAsyncIteration()),
    "raises TimeoutError": _raises(TimeoutError()),
    "raises RecursionError": _raises(RecursionError()),
    "raises MemoryError": _raises(MemoryError()),
    "appends to the batch": _append,
    "assigns to the batch": _assign,
    "rules on another": _rule_on_another,
    "sets ack_index below -1": _sets_ack_index(-2),
    "sets ack_index to a text": _sets_ack_index("all"),
}


async def test_whatever_a_handler_returns_or_raises_its_message_comes_later(new_world: NewWorld) -> None:
    world = new_world(max_batch=1, later={"max_reconsume_times": 1})
    await world.create()
    await world.send(Record.of(name, number % 3) for number, name in enumerate([*MISBEHAVIOURS, "sets ack_index above the last"]))
    failed: set[str] = set()

    async def handler(batch: Batch[Any]) -> object:
        name = batch[0].value["id"]
        if batch[0].reconsume_times == 0 and name in MISBEHAVIOURS:
            failed.add(name)
            return await MISBEHAVIOURS[name](batch)
        world.ledger.ran([name])
        return await _sets_ack_index(99)(batch)

    await finish(world, world.join(handler))
    assert failed == set(MISBEHAVIOURS)
    assert world.ledger.runs() == dict.fromkeys([*MISBEHAVIOURS, "sets ack_index above the last"], 1)
    assert await letters(world) == []


async def test_a_handler_that_stops_the_program_rules_on_nothing(new_world: NewWorld) -> None:
    async def attempt(error: BaseException) -> None:
        world = new_world(partitions=1, max_batch=1)
        await world.create()
        await world.send(Record.of(f"m{number}", 0) for number in range(3))

        async def stops_at_m1(batch: Batch[Any]) -> None:
            if batch[0].value["id"] == "m1":
                raise error
            world.ledger.ran([batch[0].value["id"]])

        current.set(tap := Tap(world.ledger))
        with pytest.raises(type(error)):
            await world.host(tap, stops_at_m1).run(asyncio.Event())
        assert world.ledger.runs() == {"m0": 1}
        await finish(world, world.join())
        assert world.ledger.runs() == {"m0": 1, "m1": 1, "m2": 1}

    await each([SystemExit(3), KeyboardInterrupt(), GeneratorExit()], attempt)


async def test_a_handler_that_hangs_blocks_its_own_partition_only(new_world: NewWorld) -> None:
    world = new_world(max_batch=1)
    await world.create()
    await world.send([Record.of("hangs", 0), *(Record.of(f"m{number}", number % 3) for number in range(12))])
    go = asyncio.Event()

    async def handler(batch: Batch[Any]) -> None:
        if batch[0].value["id"] == "hangs":
            await go.wait()
        world.ledger.ran([batch[0].value["id"]])

    member = world.join(handler)
    others = {f"m{number}" for number in range(12) if number % 3}
    await world.wait(lambda: others <= set(world.ledger.runs()), "the other partitions", [member])
    assert set(world.ledger.runs()) == others
    go.set()
    await finish(world, member)
    assert world.ledger.runs() == dict.fromkeys(["hangs", *(f"m{number}" for number in range(12))], 1)


async def _largest(world: World, limit: int) -> int:
    """Bytes of the largest value that the source takes, found by asking it."""
    producer = AIOKafkaProducer(bootstrap_servers=world.brokers, acks="all", max_request_size=2**31 - 1)
    await producer.start()
    try:
        for size in range(limit, 0, -1):
            try:
                await producer.send_and_wait(world.topic, bytes(size), partition=0)
            except MessageSizeTooLargeError:
                continue
            return size
    finally:
        await producer.stop()
    raise AssertionError(f"the source takes nothing below {limit} bytes")


async def test_the_largest_message_that_a_source_takes_is_sent_back_and_buried_whole(new_world: NewWorld) -> None:
    world = new_world(partitions=1, dedup=False, decode=raw, later={"max_reconsume_times": 1})
    await world.create(max_message_bytes=50_000)
    size = await _largest(world, 50_000)

    async def never(batch: Batch[Any]) -> None:
        raise ValueError("the test's handler takes nothing")

    await finish(world, world.join(never))
    assert await letters(world) == [(None, bytes(size), "max-reconsume-times")]


async def test_a_topic_that_can_not_hold_every_copy_is_refused_at_start(new_world: NewWorld) -> None:
    async def attempt(name: str) -> None:
        world = new_world()
        await world.create()
        await _alter(world, NewTopic(f"{world.group}.{name}", 3, 1, topic_configs={"max.message.bytes": "50000"}))
        with pytest.raises(ConfigurationError, match=f"{world.group}.{name}.*50000"):
            await world.join().task

    await each(["retry", "dlq", "delay"], attempt)


async def test_a_copy_that_is_refused_for_good_is_a_dead_letter_without_its_value(new_world: NewWorld) -> None:
    world = new_world(partitions=1)
    await world.create()
    await world.send([Record.of("m1", 0)])
    member = world.join()
    await member.tap.wait_for("store.complete-ok")
    await _alter(world, **{f"{world.group}.{name}": 10_000 for name in ("delay", "dlq")})
    await world.send([Record.of("big", 0, "later", times=1, padding="x" * 20_000), Record.of("m2", 0)])
    await finish(world, member)
    assert await letters(world) == [(None, None, "too-large")]
    assert world.ledger.runs() == {"m1": 1, "m2": 1}


async def _alter(world: World, *topics: NewTopic, **largest: int) -> None:
    """Make topics, and change what others allow as the largest message."""
    admin = AIOKafkaAdminClient(bootstrap_servers=world.brokers)
    await admin.start()
    try:
        if topics:
            await admin.create_topics(list(topics))
        for topic, size in largest.items():
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(size)})])
    finally:
        await admin.close()


async def test_a_full_disk_for_events_holds_everything_until_there_is_room(new_world: NewWorld) -> None:
    world = new_world(partitions=1, dedup=False)
    await world.create()
    ids = [f"m{number}" for number in range(600)]
    await world.send(Record.of(id, 0) for id in ids[:1])
    # One message at a time: of a busy machine's large batches the log has too little to fill the disk.
    process = start_process(world, dedup=False, partitions=1, max_batch=1)
    try:
        await world.wait(lambda: bool(world.ledger.runs()), "the first message")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        await world.send(Record.of(id, 0) for id in ids[1:])
        await world.wait(lambda: "the event log can't be written" in process.said(), "the full disk")  # for a mark, or for what is settled
        assert len(world.ledger.runs()) < len(ids)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await world.wait_until_committed()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        await process.gone()
    await world.judge()
    assert world.ledger.runs() == dict.fromkeys(ids, 1)


async def test_a_locked_claim_store_holds_everything_until_it_is_free(new_world: NewWorld) -> None:
    world = new_world(store_timeout=0.2)
    await world.create()
    await world.send(Record.of(f"before{partition}", partition) for partition in range(3))
    member = world.join()
    await world.wait(lambda: len(world.ledger.runs()) == 3, "the first messages", [member])
    blocker = sqlite3.connect(world.folder / f"{world.group}.db", isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        await world.send(mixed_messages())
        await member.tap.wait_for("store.claim", member.tap.calls["store.claim"] + 9)
        assert len(world.ledger.runs()) == 3
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()
    await finish(world, member)
    runs, _ = expected(world.sent)
    assert world.ledger.runs() == dict.fromkeys(runs, 1)
