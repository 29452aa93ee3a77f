"""Decoders of the user's: what they take and return, and that nothing is lost while what they need is unavailable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tables import each
from tests.waiting import until

from ackwise import App, Batch, Breaker, Dedup, Message, RetryInPlace, Share, Transactional
from ackwise.errors import CodecUnavailable
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.pipeline import decoding
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka, TestApp


def app_of(handler: Any, **options: Any) -> App:
    app = App("billing", config=Config())
    app.agent("orders", **options)(handler)
    return app


class Registry:
    """A schema registry that may be unavailable, and counts who asks it."""

    def __init__(self) -> None:
        self.is_away = False
        self.asked = 0

    def decode(self, raw: bytes) -> Any:
        self.asked += 1
        if self.is_away:
            raise CodecUnavailable("the registry is unavailable")
        return json.loads(raw)

    async def decode_async(self, raw: bytes) -> Any:
        await asyncio.sleep(0)
        return self.decode(raw)


# What they take


@pytest.mark.slow  # starts three workers, one after the other
async def test_a_decoder_makes_the_values_of_every_kind_of_handler() -> None:
    got: list[object] = []

    async def value(order: dict[str, int]) -> None:
        got.append(order)

    async def message(message: Message[int]) -> None:
        got.append(message.value)

    async def batch(batch: Batch[Any]) -> None:
        got.extend(message.value for message in batch)

    for handler in (value, message, batch):
        async with TestApp(app_of(handler, decode=json.loads)) as worker:
            assert (await worker.deliver("orders", b'{"a": 1}')).kind == "done"
    assert got == [{"a": 1}] * 3


async def by_header(message: Message[bytes]) -> str:
    await asyncio.sleep(0)
    return f"{message.header('kind')!r} {message.value!r} {message.topic}"


def by_key(message: Message[bytes]) -> str:
    return f"{message.key!r} {message.value!r}"


@each(("decode", "value"), [(by_header, "b'x' b'1' orders"), (by_key, "b'k' b'1'")])
async def test_a_decoder_that_takes_a_message_sees_its_headers_and_key(decode: Any, value: str) -> None:
    got: list[str] = []

    async def bill(order: str) -> None:
        got.append(order)

    async with TestApp(app_of(bill, decode=decode)) as worker:
        await worker.deliver("orders", b"1", key=b"k", headers=[("kind", b"x")])
    assert got == [value]


class Bound:
    """A method and an object that is called are decoders, too."""

    def of(self, raw: bytes) -> int:
        return len(raw)

    async def __call__(self, raw: bytes) -> int:
        return len(raw)


@each("decode", [Bound().of, Bound(), len, bytes.__len__], side_by_side=True)
async def test_methods_objects_and_functions_of_c_are_decoders(decode: Any) -> None:
    got: list[int] = []

    async def bill(order: int) -> None:
        got.append(order)

    async with TestApp(app_of(bill, decode=decode)) as worker:
        await worker.deliver("orders", b"123")
    assert got == [3]


@pytest.mark.slow  # starts two workers, one after the other
async def test_a_null_value_is_none_where_the_handler_admits_it_and_can_not_be_decoded_elsewhere() -> None:
    got: list[object] = []

    async def optional(order: int | None) -> None:
        got.append(order)

    async def strict(order: int) -> None:
        got.append(order)

    fates = []
    for handler in (optional, strict):
        async with TestApp(app_of(handler, decode=len)) as worker:
            fates.append(await worker.deliver("orders", None))
    assert ([fate.kind for fate in fates], got) == (["done", "dead"], [None])


class Struct(msgspec.Struct):
    """A payload of msgspec."""

    id: str
    amount: int


async def test_a_struct_of_msgspec_is_decoded_by_its_annotation() -> None:
    got: list[object] = []

    async def bill(order: Struct) -> None:
        got.append(order)

    async with TestApp(app_of(bill)) as worker:
        fates = [await worker.deliver("orders", value) for value in (b'{"id": "a", "amount": 3}', b'{"id": "a"}')]
    assert ([fate.kind for fate in fates], got) == (["done", "dead"], [Struct("a", 3)])


def takes_two(raw: bytes, more: bytes) -> None: ...


@each(
    ("options", "sentence"),
    [
        ({"decode": "json"}, "decode of handler 'bill' is 'json'; give a function from bytes"),
        ({"decode": takes_two}, r"decode of handler 'bill' has the parameters .* called with one argument"),
        ({"decode": len, "model": int}, "model=int and a decode; give one of them"),
        ({"decode": len, "order": "key", "in_place": RetryInPlace(3), "order_by": len}, "has order_by and decode"),
    ],
)
def test_a_decoder_that_can_not_work_is_refused(options: dict[str, Any], sentence: str) -> None:
    async def bill(order: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=sentence):
        app_of(bill, **options)


@each("error", [ValueError, StopIteration, TimeoutError, asyncio.CancelledError], side_by_side=True)
async def test_whatever_else_an_asynchronous_decoder_raises_its_value_can_not_be_decoded(error: type[BaseException]) -> None:
    async def decode(raw: bytes) -> bytes:
        if raw == b"bad":
            raise error
        return raw

    got: list[bytes] = []

    async def bill(order: bytes) -> None:
        got.append(order)

    async with TestApp(app_of(bill, decode=decode)) as worker:
        fates = await worker.deliver_batch("orders", [b"1", b"bad", b"2"])
    assert ([fate.kind for fate in fates], got) == (["done", "dead", "done"], [b"1", b"2"])


async def test_a_decoder_that_exits_ends_the_worker_and_nothing_is_committed() -> None:
    async def decode(raw: bytes) -> bytes:
        raise SystemExit(3)

    async def bill(order: bytes) -> None: ...

    worker = TestApp(app_of(bill, decode=decode))
    with pytest.raises(SystemExit):
        async with worker:
            await worker.deliver("orders", b"1")
    assert worker.kafka.committed("billing")["orders", 0].offset == 0


# What they need is unavailable


@pytest.fixture
async def memory_kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        yield kafka


def committed(kafka: MemoryKafka) -> int:
    found = kafka.committed("billing").get(("orders", 0))
    return 0 if found is None else found.offset


@pytest.mark.parametrize(
    ("mode", "name", "with_dedup"),
    [
        ({}, "decode", True),
        pytest.param({"order": "key", "in_place": RetryInPlace(3)}, "decode", True, marks=pytest.mark.slow),  # waits for its second turn
        ({}, "decode_async", False),
        pytest.param({"max_batch": 1}, "decode", True, marks=pytest.mark.nightly),
        pytest.param({"concurrency": 4}, "decode", True, marks=pytest.mark.nightly),
        pytest.param({"order": "partition", "in_place": RetryInPlace(3)}, "decode", True, marks=pytest.mark.nightly),
    ],
    ids=str,
)
async def test_messages_are_held_while_a_registry_is_away_and_lose_no_attempt(
    memory_kafka: MemoryKafka, mode: dict[str, Any], name: str, with_dedup: bool
) -> None:
    registry, got = Registry(), list[tuple[int, int]]()
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)
    if with_dedup:
        app.use(Dedup("memory://"))

    @app.agent("orders", decode=getattr(registry, name), **mode)
    async def bill(message: Message[int]) -> None:
        got.append((message.value, message.reconsume_times))

    memory_kafka.produce("orders", b"0", b"1", key=b"k")
    async with app.running():
        await until(lambda: committed(memory_kafka) == 2)
        registry.is_away, asked = True, registry.asked
        memory_kafka.produce("orders", b"2", b"3", key=b"k")
        await until(lambda: registry.asked > asked + 2)
        memory_kafka.produce("orders", b"4", b"bad", key=b"k")
        await until(lambda: registry.asked > asked + 4)
        assert (committed(memory_kafka), len(got)) == (2, 2)
        registry.is_away = False
        await until(lambda: committed(memory_kafka) == 6)
    assert (got if "order" in mode else sorted(got)) == [(number, 0) for number in range(5)]
    assert [letter.value for letter in memory_kafka.records("billing.dlq")] == [b"bad"]


@pytest.mark.slow  # waits until a decoder that is unavailable was asked again
async def test_what_stands_before_a_message_that_is_held_runs_and_what_is_behind_asks_nobody(memory_kafka: MemoryKafka) -> None:
    got, asked, is_away = list[bytes](), list[bytes](), True

    def decode(raw: bytes) -> bytes:
        asked.append(raw)
        if raw == b"2" and is_away:
            raise CodecUnavailable("away")
        return raw

    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", decode=decode)
    async def bill(order: bytes) -> None:
        got.append(order)

    memory_kafka.produce("orders", b"0", b"1", b"2", b"3")
    async with app.running():
        await until(lambda: committed(memory_kafka) == 2)
        await until(lambda: asked.count(b"2") > 2)
        assert (got, b"3" in asked) == ([b"0", b"1"], False)
        is_away = False
        await until(lambda: committed(memory_kafka) == 4)
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow  # waits until a decoder that hangs was called three times
async def test_an_asynchronous_decoder_that_hangs_counts_as_away(memory_kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DECODE_WITHIN", 0.01)
    hang, calls, got = True, 0, list[bytes]()

    async def decode(raw: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if hang:
            await asyncio.Event().wait()
        return raw

    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", decode=decode)
    async def bill(order: bytes) -> None:
        got.append(order)

    memory_kafka.produce("orders", b"1")
    async with app.running():
        await until(lambda: calls > 2)
        assert (committed(memory_kafka), got) == (0, [])
        hang = False
        await until(lambda: committed(memory_kafka) == 1)
    assert got == [b"1"]


@pytest.mark.slow  # waits the four seconds that a stop grants a call it has cut off
async def test_a_stop_does_not_wait_for_a_decoder_that_hangs(memory_kafka: MemoryKafka) -> None:
    begun = asyncio.Event()

    async def decode(raw: bytes) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return raw

    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", drain_timeout=0.1)

    @app.agent("orders", decode=decode)
    async def bill(order: bytes) -> None: ...

    memory_kafka.produce("orders", b"1")
    async with app.running():
        await begun.wait()
    assert committed(memory_kafka) == 0


@pytest.mark.slow  # waits until a decoder that is unavailable was asked sixty times
async def test_the_breaker_does_not_count_what_nobody_could_decode(memory_kafka: MemoryKafka) -> None:
    registry, got = Registry(), list[int]()
    registry.is_away = True
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", decode=registry.decode, max_batch=1)
    async def bill(order: int) -> None:
        got.append(order)

    memory_kafka.produce("orders", *(b"1" for _ in range(30)))
    async with app.running():
        await until(lambda: registry.asked > 60)
        registry.is_away = False
        await until(lambda: committed(memory_kafka) == 30)
    assert (len(got), memory_kafka.records("billing.dlq")) == (30, [])


async def test_a_group_of_nothing_but_unavailable_codecs_holds_and_a_mixed_one_does_not(memory_kafka: MemoryKafka) -> None:
    is_away, got = True, list[bytes]()

    async def decode(raw: bytes) -> bytes:
        if is_away and raw == b"held":
            raise ExceptionGroup("two schemas", [CodecUnavailable("a"), CodecUnavailable("b")])
        if raw == b"mixed":
            raise ExceptionGroup("both", [CodecUnavailable("a"), ValueError("b")])
        return raw

    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)
    app.use(Breaker(first_wait="100ms"))

    @app.agent("orders", decode=decode)
    async def bill(order: bytes) -> None:
        got.append(order)

    memory_kafka.produce("orders", b"mixed", b"held")
    async with app.running():
        await until(lambda: committed(memory_kafka) == 1)
        is_away = False
        await until(lambda: committed(memory_kafka) == 2)
    assert (got, [letter.value for letter in memory_kafka.records("billing.dlq")]) == ([b"held"], [b"mixed"])


@pytest.mark.slow  # waits until a decoder that is unavailable was asked four times
async def test_of_a_batch_of_single_runs_one_asks_what_is_away(memory_kafka: MemoryKafka) -> None:
    registry, asked = Registry(), list[bytes]()
    registry.is_away = True

    async def decode(raw: bytes) -> Any:
        asked.append(raw)
        return registry.decode(raw)

    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", decode=decode, order="key", in_place=RetryInPlace(3))
    async def bill(order: int) -> None: ...

    for number in range(5):  # a batch of runs of one
        memory_kafka.produce("orders", b"%d" % number, key=b"%d" % number)
    async with app.running():
        await until(lambda: len(asked) > 3)
        assert set(asked) == {b"0"}
        registry.is_away = False
        await until(lambda: committed(memory_kafka) == 5)


async def test_share_refuses_an_asynchronous_decoder() -> None:
    async def bill(order: bytes) -> None: ...

    async def decode(raw: bytes) -> bytes:
        return raw

    app = app_of(bill, decode=decode)
    app.use(Share())
    with pytest.raises(ConfigurationError, match="has an asynchronous decode, and Share locks records"):
        await app.serve(asyncio.Event())


async def test_under_transactional_nothing_of_an_ordered_partition_overtakes_what_waits_in_front(tmp_path: Path) -> None:
    got, is_first = list[bytes](), True

    def flaky(message: Message[bytes]) -> bytes:
        nonlocal is_first
        if message.value == b"1" and is_first:
            is_first = False
            raise RuntimeError
        return message.value

    app = App("billing", config=Config())
    app.use(Transactional(f"sqlite:///{tmp_path}/shop.db", key=flaky))

    @app.agent("orders", order="partition", in_place=RetryInPlace(5, delay=0.01))
    async def bill(order: bytes) -> None:
        got.append(order)

    async with TestApp(app) as worker:
        await worker.deliver_batch("orders", [b"1", b"2", b"3"])
    assert got == [b"1", b"2", b"3"]


@pytest.mark.slow  # waits until a decoder was asked again, and then for the breaker
async def test_what_nobody_could_decode_is_not_taken_for_good_by_the_breaker(
    memory_kafka: MemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    registry.is_away = True
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.05)

    @app.agent("orders", decode=registry.decode)
    async def bill(order: int) -> None: ...

    memory_kafka.produce("orders", *(b"no JSON" for _ in range(25)))
    async with app.running():
        await until(lambda: registry.asked > 2)
        registry.is_away = False
        await until(lambda: any("breaker stopped a handler" in record.message for record in caplog.records))
    assert memory_kafka.records("billing.dlq") == []
