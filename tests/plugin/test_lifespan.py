"""Lifespans: what handlers get, when it is opened and closed, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import pytest
from tests.tables import each
from tests.waiting import until

from ackwise import App, Batch, Dedup, Message
from ackwise.errors import StoreUnavailable
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.storage.claimstore import ColumnExchange, ColumnResult
from ackwise.plugin.handlers.lifespan import Lifespans
from ackwise.plugin.settings.config import Config
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka, TestApp


@pytest.fixture
async def memory_kafka() -> AsyncIterator[MemoryKafka]:
    async with MemoryKafka() as kafka:
        yield kafka


class Pool:
    """A resource."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log


class Both(NamedTuple):
    """A resource of two."""

    pool: Pool
    number: int


class Small(Pool):
    """A resource that is a `Pool`, too."""


def app_with(*yielded: object, log: list[str] | None = None, brokers: str = "nowhere:1") -> App:
    app = App("billing", brokers=brokers, config=Config(), start="earliest")
    told = [] if log is None else log

    for number, one in enumerate(yielded):

        def made(number: int = number, one: object = one) -> Any:
            async def lifespan() -> AsyncIterator[object]:
                told.append(f"open {number}")
                yield one
                told.append(f"close {number}")

            return lifespan

        app.lifespan(made())
    return app


# What handlers get


async def test_handlers_of_every_kind_get_what_lifespans_yield_by_type() -> None:
    pool, got = Pool(), list[object]()
    app = app_with(pool, (7, None))

    @app.agent("values")
    async def value(order: bytes, pool: Pool) -> None:
        got.append((order, pool))

    @app.agent("messages")
    async def message(message: Message[bytes], *, number: int, limit: int = 3) -> None:
        got.append((message.value, number, limit))

    @app.agent("batches")
    async def batch(batch: Batch[bytes], pool: Pool, number: int) -> None:
        got.append((len(batch), pool, number))

    @app.agent("threads")
    def thread(order: bytes, pool: Pool) -> None:
        got.append((order, pool))

    async with TestApp(app) as worker:
        for topic in ("values", "messages", "batches", "threads"):
            assert (await worker.deliver(topic, topic)).kind == "done"
    assert got == [(b"values", pool), (b"messages", 7, 3), (1, pool, 7), (b"threads", pool)]


async def test_a_middleware_around_a_handler_with_resources_sees_its_message_alone() -> None:
    app, seen = app_with(Pool()), list[object]()

    async def around(message: Message[Any], call_next: Any) -> None:
        seen.append(message.value)
        await call_next(message)

    app.use(around)

    @app.agent("orders")
    async def bill(message: Message[bytes], pool: Pool) -> None:
        seen.append(pool)

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"1")
    assert [type(each) for each in seen] == [bytes, Pool]


async def test_of_several_that_fit_the_one_of_the_very_class_is_taken() -> None:
    got, app = list[object](), app_with(Small(), Pool(), Both(Pool(), 1))

    @app.agent("orders")
    async def bill(order: bytes, pool: Pool, both: Both) -> None:
        got.extend([type(pool), type(both)])

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"1")
    assert got == [Pool, Both]


async def test_one_app_in_two_workers_has_resources_of_its_own_in_each() -> None:
    app, got = App("billing", config=Config()), list[Pool]()

    @app.lifespan
    async def pools() -> AsyncIterator[Pool]:
        yield Pool()

    @app.agent("orders")
    async def bill(order: bytes, pool: Pool) -> None:
        got.append(pool)

    async with TestApp(app) as one, TestApp(app) as two:
        for worker in (one, two, one):
            await worker.deliver("orders", b"1")
    assert got[0] is got[2] is not got[1]


@each(
    ("yielded", "sentence"),
    [
        ((), r"handler 'bill' takes pool: Pool, and no lifespan yields one \(they yield nothing\)"),
        ((3, "text"), r"no lifespan yields one \(they yield int, str\); yield it from a function under @app.lifespan"),
        ((Pool(), Pool()), "lifespans yield 2 of them; give each its own class"),
        ((Small(), Small()), "lifespans yield 2 of them"),
    ],
)
async def test_a_resource_that_can_not_be_found_is_told_at_the_start(yielded: tuple[object, ...], sentence: str) -> None:
    log: list[str] = []
    app = app_with(*yielded, log=log)

    @app.agent("orders")
    async def bill(order: bytes, pool: Pool) -> None: ...

    with pytest.raises(ConfigurationError, match=sentence):
        async with TestApp(app):
            pass
    numbers = range(len(yielded))
    assert log == [*(f"open {number}" for number in numbers), *(f"close {number}" for number in reversed(numbers))]


class Unchecked(Protocol):
    """Nobody can tell whether something is one."""

    def name(self) -> str: ...


async def without(order: bytes, pool) -> None: ...  # type: ignore[no-untyped-def]
async def anything(order: bytes, pool: Any) -> None: ...
async def objects(order: bytes, pool: object) -> None: ...
async def unions(order: bytes, pool: Pool | None) -> None: ...
async def unchecked(order: bytes, pool: Unchecked) -> None: ...
async def unknown(order: bytes, pool: Elsewhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@each(
    ("handler", "sentence"),
    [
        (without, "has the parameter 'pool' without an annotation; beside its message a handler gets what lifespans yield"),
        (anything, "has the parameter 'pool' annotated with"),
        (objects, "has the parameter 'pool' annotated with"),
        (unions, "has the parameter 'pool' annotated with"),
        (unchecked, "has the parameter 'pool' annotated with"),
        (unknown, "annotates 'pool' with 'Elsewhere', which can't be resolved"),
    ],
)
def test_a_parameter_without_a_class_is_refused(handler: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        App("billing", config=Config()).agent("orders")(handler)


async def plain() -> None: ...
async def with_parameter(app: App) -> AsyncIterator[None]:
    yield


@each(
    ("function", "sentence"),
    [
        (plain, "lifespan 'plain' is no async generator; write `async def plain"),
        (with_parameter, "lifespan 'with_parameter' has parameters, and is called with none"),
        (Pool, "@app.lifespan takes a function"),
        (3, "@app.lifespan takes a function, and was given 3"),
    ],
)
def test_what_is_no_lifespan_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        App("billing", config=Config()).lifespan(function)


async def test_a_function_that_returns_a_context_manager_is_a_lifespan() -> None:
    app, got = App("billing", config=Config()), list[object]()
    pool = Pool()

    @app.lifespan
    def given() -> AbstractAsyncContextManager[Pool]:
        return nullcontext(pool)

    @app.agent("orders")
    async def bill(order: bytes, pool: Pool) -> None:
        got.append(pool)

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"1")
    assert got == [pool]


# Order, and failure


async def test_they_are_open_from_before_the_first_message_until_the_drain_is_over() -> None:
    log: list[str] = []
    app = app_with(1, "two", log=log)

    @app.agent("orders")
    async def bill(order: bytes) -> None:
        log.append("begin")
        await asyncio.sleep(0)
        log.append("end")

    async with TestApp(app) as worker:
        await worker.deliver("orders", b"1")
    assert log == ["open 0", "open 1", "begin", "end", "close 1", "close 0"]


async def test_one_that_fails_lets_no_worker_start_and_closes_what_was_open(
    memory_kafka: MemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ackwise")
    log: list[str] = []
    app = app_with(1, log=log, brokers=memory_kafka.bootstrap)

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        raise OSError("secret")
        yield

    @app.agent("orders")
    async def bill(order: bytes) -> None: ...

    with pytest.raises(
        AckwiseError, match=r"lifespan 'broken' failed \(OSError at .*test_lifespan.py:\d+\), so the worker does not"
    ) as raised:
        await app.serve(asyncio.Event())
    assert (log, "secret" in str(raised.value)) == (["open 0", "close 0"], False)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG and "secret" in record.getMessage()]


async def test_a_stop_calls_off_a_lifespan_that_is_being_entered() -> None:
    log, stop, begun = list[str](), asyncio.Event(), asyncio.Event()
    app = app_with(1, log=log)

    @app.lifespan
    async def slow() -> AsyncIterator[None]:
        begun.set()
        await asyncio.Event().wait()
        yield

    @app.agent("orders")
    async def bill(order: bytes) -> None: ...

    serving = asyncio.create_task(app.serve(stop))
    await begun.wait()
    stop.set()
    await serving
    assert log == ["open 0", "close 0"]


async def test_one_that_can_not_be_left_is_told_and_hides_nothing(memory_kafka: MemoryKafka, caplog: pytest.LogCaptureFixture) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.produce("orders", b"1")
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest")

    @app.lifespan
    async def greedy() -> AsyncIterator[None]:
        try:
            yield
        except BaseException:  # noqa: BLE001  # it would hide what ends the worker
            return
        raise ValueError("as it closes")

    @app.agent("orders")
    async def bill(order: bytes) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await app.serve(asyncio.Event())
    assert [record.fields["error"] for record in caplog.records if record.message.startswith("a lifespan")] == ["ValueError"]  # type: ignore[attr-defined]


# Beside other work


def orders_app(kafka: MemoryKafka, got: list[bytes]) -> App:
    kafka.create_topic("orders")
    app = App("billing", brokers=kafka.bootstrap, config=Config(), start="earliest", commit_interval=0.1, drain_timeout=0.5)

    @app.agent("orders")
    async def bill(order: bytes) -> None:
        got.append(order)

    return app


async def test_an_app_runs_beside_a_block_and_is_ready_once_it_has_joined(memory_kafka: MemoryKafka) -> None:
    got = list[bytes]()
    app = orders_app(memory_kafka, got)
    async with app.running() as worker:
        assert not worker.is_ready
        await worker.ready()
        assert worker.is_ready
        memory_kafka.produce("orders", b"1")
        await until(lambda: got)
    assert (worker.is_ready, worker.error, got) == (False, None, [b"1"])


async def test_an_app_may_be_started_again_and_goes_on_where_it_stopped(memory_kafka: MemoryKafka) -> None:
    got = list[bytes]()
    app = orders_app(memory_kafka, got)
    for number in range(3):
        async with app.running():
            memory_kafka.produce("orders", b"%d" % number)
            await until(lambda: len(got) > number)  # noqa: B023
    assert got == [b"0", b"1", b"2"]


class Forgetful(MemoryStore):
    """Takes no completion while it is `deaf`, and stays what it is when it is closed."""

    deaf = True

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        if self.deaf and exchange.completes:
            raise StoreUnavailable("it is deaf")
        return await super().exchange_columns(exchange)

    async def close(self) -> None:
        pass


@pytest.mark.slow  # runs a worker twice
async def test_a_success_that_the_store_was_not_told_of_is_remembered_over_a_restart(memory_kafka: MemoryKafka) -> None:
    got, store = list[bytes](), Forgetful()
    app = orders_app(memory_kafka, got)
    app.use(Dedup(store, key=lambda message: message.value))
    async with app.running():
        memory_kafka.produce("orders", b"1")
        await until(lambda: got)
    assert memory_kafka.committed("billing")["orders", 0].offset == 0
    store.deaf = False
    async with app.running():
        await until(lambda: memory_kafka.committed("billing")["orders", 0].offset == 1)
    assert got == [b"1"]


async def test_an_app_runs_once_at_a_time(memory_kafka: MemoryKafka) -> None:
    app = orders_app(memory_kafka, [])
    async with app.running():
        with pytest.raises(ConfigurationError, match="runs already"):
            await app.serve(asyncio.Event())


async def test_an_error_of_the_block_lets_the_worker_drain(memory_kafka: MemoryKafka) -> None:
    app = orders_app(memory_kafka, [])
    with pytest.raises(KeyError):  # noqa: PT012
        async with app.running() as worker:
            await worker.ready()
            raise KeyError
    assert memory_kafka.committed("billing")["orders", 0].offset == 0


async def test_a_worker_that_fails_is_told_by_ready_by_ended_and_at_the_end_of_the_block(memory_kafka: MemoryKafka) -> None:
    app = orders_app(memory_kafka, [])

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        raise OSError
        yield

    with pytest.raises(AckwiseError, match="lifespan 'broken' failed"):  # noqa: PT012
        async with app.running() as worker:
            for told in (worker.ready, worker.ended):
                with pytest.raises(AckwiseError, match="lifespan 'broken' failed"):
                    await told()
            assert isinstance(worker.error, AckwiseError)


async def test_what_shows_without_a_connection_is_raised_before_the_block() -> None:
    with pytest.raises(ConfigurationError, match="has no agents"):
        async with App("billing", config=Config()).running():
            raise AssertionError("the block was entered")


@pytest.mark.slow  # waits the four seconds that a stop grants a call it has cut off
async def test_it_is_not_started_again_while_a_call_of_a_handler_is_left(memory_kafka: MemoryKafka) -> None:
    memory_kafka.create_topic("orders")
    memory_kafka.produce("orders", b"1")
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", drain_timeout=0.1)
    begun, end = asyncio.Event(), asyncio.Event()

    @app.agent("orders")
    async def bill(order: bytes) -> None:
        begun.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with app.running():
        await begun.wait()
    with pytest.raises(AckwiseError, match="a call of handler 'bill' still runs since the app was stopped"):
        await app.serve(asyncio.Event())
    end.set()
    await asyncio.sleep(0)
    await until(lambda: not app._host.left_running)  # type: ignore[union-attr]
    async with app.running() as worker:
        await worker.ready()


@pytest.mark.slow  # waits the five seconds that a lifespan has to end
async def test_one_that_hangs_as_it_is_left_keeps_no_other_open_and_the_worker_ends(memory_kafka: MemoryKafka) -> None:
    log: list[str] = []
    app = App("billing", brokers=memory_kafka.bootstrap, config=Config(), start="earliest", drain_timeout=0.1)
    memory_kafka.create_topic("orders")

    def lifespan(name: str) -> Any:
        async def entered() -> AsyncIterator[None]:
            yield
            log.append(f"leave {name}")
            await asyncio.Event().wait()

        return entered

    app.lifespan(lifespan("outer"))
    app.lifespan(lifespan("inner"))

    @app.agent("orders")
    async def bill(order: bytes) -> None:
        raise SystemExit(3)

    memory_kafka.produce("orders", b"1")
    with pytest.raises(SystemExit):
        await app.serve(asyncio.Event())
    assert log == ["leave inner", "leave outer"]


async def test_they_may_be_left_in_another_task_than_they_were_entered_in(caplog: pytest.LogCaptureFixture) -> None:
    lifespans = Lifespans()
    opened = lifespans.opened("billing", asyncio.Event(), time_to_leave=lambda: 1.0)
    await asyncio.create_task(opened.__aenter__())
    await asyncio.create_task(opened.__aexit__(None, None, None))
    assert not caplog.records
