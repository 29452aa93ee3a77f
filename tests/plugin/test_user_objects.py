"""Objects of the user's through a whole worker: whatever they do, it lives, and the next message runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.hostileobjects import KINDS, Odd, contained, hostile_error, hostile_value
from tests.plugin.modes.share.desk import Desk
from tests.plugin.simpleconsumer.conftest import TOPIC, World
from tests.tables import each

from ackwise import Answer, App, Batch, ConsumeLater, Dedup, Events, Exponential, Later, Message, RateLimit, RetryInPlace, Transactional
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.usercode import Raised, Returned, awaited
from ackwise.plugin.loopbatch import LoopBatch
from ackwise.plugin.outbox.cdcroutes import MappedRows
from ackwise.plugin.settings.config import Config
from ackwise.testing import MemoryKafka, TestApp


class Order(BaseModel):
    id: int
    amount: int = 100


def app_of(handler: Any, *things: Any, **options: Any) -> App:
    app = App("billing", config=Config())
    app.use(*things)
    app.agent("orders", **options)(handler)
    return app


async def kinds_of(app: App, first: object = {"id": 1}, second: object = {"id": 2}) -> tuple[str, str]:  # they stay as they are
    """What becomes of a message that something is wrong with, and of the next one."""
    async with TestApp(app) as worker:
        fates = [await worker.deliver("orders", order) for order in (first, second)]
    return fates[0].kind, fates[1].kind


@pytest.mark.slow  # starts nine workers
@each("kind", [ValueError, Odd, SystemExit], side_by_side=True)
@contained
async def test_a_worker_lives_through_whatever_a_handler_returns_or_raises(kind: type[BaseException]) -> None:
    async def returns(order: Order) -> Any:
        return hostile_value(kind) if order.id == 1 else None

    async def raises(batch: Batch[Order]) -> None:
        if batch[0].value.id == 1:
            raise hostile_error(kind)

    def in_a_thread(order: Order) -> Any:
        if order.id == 1:
            raise hostile_error(kind, Later)

    for handler in (returns, raises, in_a_thread):
        assert await kinds_of(app_of(handler)) == ("later", "done")


@pytest.mark.slow  # starts fifteen workers
@each("kind", [ValueError, Odd, SystemExit], side_by_side=True)
@contained
async def test_a_worker_lives_through_whatever_functions_beside_the_handler_find(kind: type[BaseException]) -> None:
    async def handler(order: Order) -> None: ...

    async def fails(order: Order) -> None:
        if order.id == 1:
            raise ValueError

    def find(message: Message[Order]) -> Any:
        return hostile_value(kind) if message.value.id == 1 else "key"

    class Policy:
        def delay(self, attempt: int) -> Any:
            return hostile_value(kind)

    class Middle:
        async def __call__(self, message: Message[Any], call_next: Any) -> Any:
            await call_next(message)
            return hostile_value(kind) if message.value.id == 1 else None

    by_key: dict[str, Any] = {"order": "key", "order_by": find, "in_place": RetryInPlace(0)}
    assert await kinds_of(app_of(handler, Dedup("memory://", key=find))) == ("later", "done")
    assert await kinds_of(app_of(handler, RateLimit("100/s", key=find))) == ("done", "done")
    assert await kinds_of(app_of(handler, **by_key)) == ("dead", "done")
    assert await kinds_of(app_of(fails, ConsumeLater(3, retry=Policy()))) == ("later", "done")
    assert await kinds_of(app_of(handler, Middle())) == ("later", "done")


@each("kind", [ValueError, Odd, SystemExit], side_by_side=True)
@contained
async def test_what_a_handler_publishes_is_refused_by_an_error_that_it_can_catch(kind: type[BaseException]) -> None:
    app = App("billing", config=Config())
    given, refused = hostile_value(kind), list[str]()

    @app.agent("orders")
    async def handler(order: Order) -> None:
        things: list[dict[str, Any]] = [{"value": given}, *({"value": b"", name: given} for name in ("key", "headers", "message_id"))]
        things += [{"value": b"", "partition": given}, {"value": {"a": given}}]
        for thing in things:
            try:
                await app.publish("paid", **thing)
            except ConfigurationError as error:
                refused.append(str(error))

    async with TestApp(app) as worker:
        assert (await worker.deliver("orders", {"id": 1})).kind == "done"
    assert len(refused) == 6


@contained
async def test_a_message_whose_handler_always_returns_what_raises_is_a_dead_letter_in_the_end() -> None:
    async def handler(order: Order) -> Any:
        return hostile_value(SystemExit)

    async with TestApp(app_of(handler, ConsumeLater(1))) as worker:
        fate = await worker.deliver("orders", {"id": 1})
        assert (await worker.redeliver(fate)).kind == "dead"
        assert len(worker.dead_letters) == 1


@contained
async def test_a_decoder_that_leaves_a_cancellation_behind_and_a_handler_that_does_stop_nobody() -> None:
    async def decode(raw: bytes) -> Order:
        cancel_and_take_it()
        return Order.model_validate_json(raw)

    async def handler(order: Order) -> None:
        cancel_and_take_it()

    def cancel_and_take_it() -> None:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        task.cancel()

    async with TestApp(app_of(handler, decode=decode, concurrency=2)) as worker:
        fates = await worker.deliver_batch("orders", [{"id": number} for number in range(5)])
    assert [fate.kind for fate in fates] == ["done"] * 5


@contained
async def test_an_attempt_in_place_has_the_order_that_was_written() -> None:
    posted: list[int] = []

    async def handler(order: Order) -> None:
        posted.append(order.amount)
        order.amount = 0
        if len(posted) < 3:
            raise ValueError

    in_place = RetryInPlace(3, delay="10ms")
    async with TestApp(app_of(handler, order="partition", in_place=in_place)) as worker:
        assert (await worker.deliver("orders", {"id": 1})).kind == "done"
    assert posted == [100, 100, 100]


@pytest.mark.slow  # starts two workers with a database
@each("mode", ["inbox", "offsets"])
async def test_the_halves_of_a_transaction_have_the_orders_that_were_written(tmp_path: Path, mode: Any) -> None:
    seen: list[tuple[int, int]] = []

    async def handler(batch: Batch[Order]) -> None:
        for message in batch:
            seen.append((message.value.id, message.value.amount))
            message.value.amount = 0
        if any(message.value.id == 2 for message in batch):
            raise ValueError

    async with TestApp(app_of(handler, Transactional(f"sqlite:///{tmp_path / mode}.db", mode=mode))) as worker:
        fates = await worker.deliver_batch("orders", [{"id": number} for number in (1, 2, 3, 4)])
    assert [fate.kind for fate in fates] == ["done", "later", "done", "done"]
    assert {amount for _, amount in seen} == {100}
    assert len(seen) > 4


# Through the other hosts


@each("kind", KINDS)
@contained
async def test_a_loop_goes_on_whatever_its_body_raises_or_its_handler_returns(kind: type[BaseException]) -> None:
    body, run = LoopBatch[bytes]([]), LoopBatch[bytes]([])
    value = hostile_value(kind)

    async def handler(batch: Batch[bytes]) -> Any:
        return value

    async with body:
        raise hostile_error(kind)
    await run.run(handler)
    assert isinstance(await awaited(body.decision), Raised)
    returned = await awaited(run.decision)
    assert isinstance(returned, Returned)
    assert returned.value is value


@each("kind", KINDS)
@contained
async def test_a_record_of_a_share_group_is_accepted_whatever_its_handler_returns(kind: type[BaseException]) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return hostile_value(kind) if batch[0].offset == 3 else None

    desk = Desk(handler, max_batch=1)
    await desk.deliver(3, 4)
    assert ([(topic, value) for topic, value, *_ in desk.copies()], desk.accepted()) == ([("billing.delay.10s", b"v3")], [3, 4])


@pytest.mark.slow  # starts three consumers
@each("kind", [ValueError, Odd, SystemExit])
@contained
async def test_a_message_is_received_whatever_the_key_of_the_one_before_it_is(kind: type[BaseException]) -> None:
    def key(message: Message[bytes]) -> Any:
        return hostile_value(kind) if message.raw == b"a" else "key"

    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic(TOPIC)
        world = World(kafka)
        kafka.produce(TOPIC, b"a", b"b")
        async with world.consumer(Dedup(world.store, key=key)) as consumer:
            (received,) = await consumer.receive(2, invisible="1m", wait=10)
            assert (received.value, await consumer.ack(received)) == (b"b", Answer.ACKED)


# What is refused where it is declared


async def waits(message: Message[Any]) -> str:
    return ""


def yields(message: Message[Any]) -> Any:
    yield ""


def a_dict(message: Message[Any]) -> dict[str, str]:
    return {}


class Waits:
    async def __call__(self, message: Message[Any]) -> str:
        return ""

    async def delay(self, attempt: int) -> float:
        return 1.0

    async def record(self, event: object) -> None: ...


@each("key", [waits, yields, a_dict, Waits()])
@contained
def test_what_can_find_no_key_is_refused_where_it_is_declared(key: Any) -> None:
    async def handler(order: Order) -> None: ...

    declarations: list[Any] = [
        lambda: Dedup("memory://", key=key),
        lambda: RateLimit("1/s", key=key),
        lambda: app_of(handler, order="key", order_by=key, in_place=RetryInPlace(1)),
    ]
    for declare in declarations:
        refused = "key|order_by"
        with_raises(declare, refused)


def with_raises(declare: Any, refused: str) -> None:
    with pytest.raises(ConfigurationError, match=refused):
        declare()


@contained
def test_what_would_have_to_be_awaited_is_refused_where_it_is_declared() -> None:
    policy: Any = Waits()
    draw: Any = policy.delay
    with_raises(lambda: Exponential(draw=draw), "is not awaited")
    with_raises(lambda: Events(policy), "is not awaited")
    with_raises(lambda: MappedRows(draw), "is not awaited")
    with_raises(lambda: ConsumeLater(3, retry=policy), "is not awaited")
    with_raises(lambda: ConsumeLater(3, retry_by_error={ValueError: policy}), "is not awaited")
