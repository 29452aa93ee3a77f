"""Handler functions on Faust: what they are given, who calls them, what wraps them, and what is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import faust
import pytest
from pydantic import BaseModel
from tests.faust.desk import desk
from tests.waiting import PATIENCE, turns

from ackwise import CONSUME_LATER, CONSUME_SUCCESS, Batch, Dedup, Message
from ackwise.errors import ConfigurationError
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.runs.run import Run
from ackwise.plugin.faust import App, current_batch, handler
from ackwise.plugin.faust.faustapp import _call
from ackwise.plugin.faust.work import Work
from ackwise.plugin.handlers.usermiddleware import CallNext, inspect_middleware, wrap


class Order(BaseModel):
    id: str


class Payment(faust.Record):
    id: str


A, B, C = b'{"id": "a"}', b'{"id": "b"}', b'{"id": "c"}'


def declaring(function: Callable[..., Any], *topics: str, **options: Any) -> Callable[[faust.App], object]:
    return lambda app: handler(app, *(topics or ("orders",)), **options)(function)


def new_app(*things: Any) -> faust.App:
    app: Any = faust.App("billing", broker="kafka://nowhere:1")
    app.use(*things)
    return cast(faust.App, app)


async def test_a_batch_has_the_decoded_values_and_what_can_not_be_decoded_is_dead_and_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def bill(batch: Batch[Order]) -> None:
        seen.append([(message.value, message.key, message.topic, message.partition, message.offset) for message in batch])

    async with desk(monkeypatch, declaring(bill)) as here:
        here.fetch(A, b"\xff", B)
        await here.until_passed(103)
        assert seen == [[(Order(id="a"), b"k", "orders", 3, 100), (Order(id="b"), b"k", "orders", 3, 102)]]
        assert here.sent() == [("billing.dlq", b"\xff")]
        assert dict(here.publisher.sent[0].headers)["ackwise-reason"] == b"undecodable"


async def test_messages_and_values_come_one_by_one_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def declare(app: faust.App) -> None:
        @handler(app, "orders", model=Order)
        async def bill(message: Message[Any]) -> None:
            seen.append(message.value.id)

        @handler(app, "orders")
        async def ship(order: Order) -> None:
            seen.append(order)

    async with desk(monkeypatch, declare) as here:
        here.fetch(A, B, C)
        await here.until_passed(103)
    assert [id for id in seen if isinstance(id, str)] == ["a", "b", "c"]
    assert [order.id for order in seen if isinstance(order, Order)] == ["a", "b", "c"]


async def test_a_topic_with_a_type_says_how_values_are_decoded_and_one_without_leaves_that_to_the_annotation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def declare(app: faust.App) -> None:
        @handler(app, app.topic("orders", value_type=Payment))
        async def bill(batch: Batch[Payment]) -> None:
            seen.extend(message.value for message in batch)

        @handler(app, app.topic("refunds"))
        async def pay_back(order: Order) -> None:
            seen.append(order)

    async with desk(monkeypatch, declare) as here:
        here.fetch(A, b'{"name": "nobody"}', b"\xff")
        await here.until_passed(103)
        assert seen == [Payment(id="a")]
        assert here.sent() == [("billing.dlq", b'{"name": "nobody"}'), ("billing.dlq", b"\xff")]
        await here.assign("refunds")
        here.fetch(A, topic="refunds")
        await here.until_passed(101, "refunds")
    assert seen == [Payment(id="a"), Order(id="a")]


async def test_a_batch_is_of_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    async def bill(batch: Batch[bytes]) -> None:
        seen.append({message.topic for message in batch})

    async with desk(monkeypatch, declaring(bill, "orders", "refunds")) as here:
        await here.assign("refunds")
        for start in (100, 110):
            here.fetch(*[b"v"] * 10, start=start)
            here.fetch(*[b"v"] * 10, topic="refunds", start=start)
        await here.until_passed(120)
        await here.until_passed(120, "refunds")
        assert set[str]().union(*seen) == {"orders", "refunds"}
        assert all(len(topics) == 1 for topics in seen)


async def test_a_batch_waits_for_max_wait_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def bill(batch: Batch[bytes]) -> None:
        seen.append(len(batch))

    async with desk(monkeypatch, declaring(bill, max_batch=4, max_wait="1m")) as here:
        here.fetch(b"v", b"v")
        await turns(20)
        assert seen == []
        here.fetch(b"v", b"v", start=102)
        await here.until_passed(104)
        assert seen == [4]


async def test_a_message_has_the_fencing_token_of_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[int | None] = []

    async def bill(message: Message[bytes]) -> Any:
        tokens.append(message.fencing_token)
        return CONSUME_LATER if len(tokens) == 1 else None

    async with desk(monkeypatch, declaring(bill), Dedup("memory://")) as here:
        here.fetch(b"v")
        await here.until_passed(101)
        here.bring_back(here.publisher.sent[0])
        await here.until_passed(101, "billing.retry")
    assert tokens[0] is not None
    assert tokens[1] is not None
    assert tokens[1] > tokens[0]


async def test_current_batch_is_the_one_of_the_handler_and_faust_knows_the_event_so_that_tables_find_their_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    async def bill(batch: Batch[bytes]) -> None:
        event = cast(Any, faust.current_event())
        seen.append((current_batch() is batch, event.message.topic, event.message.partition))

    async with desk(monkeypatch, declaring(bill)) as here:
        here.fetch(b"v", b"v")
        await here.until_passed(102)
    assert seen == [(True, "orders", 3)]


async def test_it_is_returned_unchanged_and_called_by_an_agent_of_its_name() -> None:
    app: Any = new_app()

    async def bill(order: Order) -> None:
        """Bill an order."""

    assert app.handler("orders")(bill) is bill
    (agent,) = app.agents.values()
    assert (agent.name.rpartition(".")[2], agent.help, list(agent.channel.topics)) == ("bill", "Bill an order.", ["orders"])


async def test_what_is_sent_through_its_agent_goes_to_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bill(order: Order) -> None: ...

    async with desk(monkeypatch, declaring(bill)) as here:
        await cast(Any, here.app.agents["bill"]).cast({"id": "a"})
        assert here.client.sent == [b'{"id":"a"}']


async def test_both_kinds_of_apps_have_it_and_one_that_uses_nothing_gets_what_is_on_by_itself() -> None:
    stock: Any = faust.App("billing", broker="kafka://nowhere:1")
    stock.handler("orders")(nothing)
    assert stock.ackwise.slots.later.max_reconsume_times == 16
    typed = App("billing", broker="kafka://nowhere:1")
    typed.handler("orders", model=Order, max_batch=7)(nothing)
    (declared,) = typed.ackwise.declared().agents
    assert (declared.name, declared.kind, declared.topics, declared.max_batch) == ("nothing", "batch", ("orders",), 7)


async def test_what_is_sent_in_a_handler_is_acknowledged_before_its_message_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[asyncio.Future[Any]] = []

    def declare(app: faust.App) -> None:
        invoices = app.topic("invoices", value_serializer="raw")

        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> None:
            await invoices.send(value=message.value)

    async with desk(monkeypatch, declare) as here:
        here.client.answer = reports.append
        here.fetch(b"v")
        await here.until(lambda: len(reports) == 1, "the send")
        (lane,) = here.lanes()
        assert lane.watermark.commit == 100
        reports[0].set_result(None)
        await here.until_passed(101)
        assert here.sent() == []


async def test_a_send_that_fails_fails_its_message_whatever_was_ruled(monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(app: faust.App) -> None:
        invoices = app.topic("invoices", value_serializer="raw")

        @handler(app, "orders", max_batch=1)
        async def bill(batch: Batch[bytes]) -> None:
            await invoices.send(value=b"invoice")
            if batch[0].value != b"nothing":
                batch.done(batch[0])
            if batch[0].value == b"raised":
                raise ValueError

    async with desk(monkeypatch, declare) as here:
        # Faust keeps its own future for what is sent, which nobody ever asks; asyncio would say so in the midst of another test.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        here.client.answer = lambda report: report.set_exception(ConnectionError("no broker"))
        here.fetch(b"nothing", b"done", b"raised")
        await here.until_passed(103)
        assert here.sent() == [("billing.delay.10s", ruled) for ruled in (b"nothing", b"done", b"raised")]


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), BaseExceptionGroup("all", [KeyboardInterrupt(), GeneratorExit()])],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["handler", "loop"])
async def test_what_stops_a_program_rules_on_nothing_begins_nothing_more_and_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, kind: str, error: BaseException
) -> None:
    seen: list[int] = []

    def bill(message: Message[Any]) -> None:
        seen.append(message.offset)
        if message.offset == 101:
            raise error

    def declare(app: faust.App) -> None:
        if kind == "handler":

            @handler(app, "orders")
            async def bill_one(message: Message[bytes]) -> None:
                bill(message)

        else:

            @app.agent(app.topic("orders", value_serializer="raw"))
            async def bill_all(orders: Any) -> None:
                async for _ in orders:
                    bill(current_batch()[0])

    async with desk(monkeypatch, declare, Dedup("memory://")) as here:
        here.fetch(b"v", b"v", b"v")
        await here.until(lambda: here.fatal is not None, "the end of the worker")
        assert here.fatal is error
        assert await here.committed() == 101
    assert (seen, here.sent()) == ([100, 101], [])


async def test_a_handler_that_is_cancelled_with_its_worker_rules_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, events = asyncio.Event(), list[Event]()

    def observe(event: Event) -> None:
        events.append(event)

    async def bill(batch: Batch[bytes]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            batch.ack_index = 0

    async with desk(monkeypatch, declaring(bill), Dedup("memory://"), observe) as here:
        here.fetch(b"v")
        await begun.wait()
    assert here.sent() == []
    assert {commit[here.orders] for commit in here.broker.commits if here.orders in commit} == {100}
    assert [event.code for event in events if event.exec_id is not None] == [EventCode.CLAIMED, EventCode.RELEASED]


async def test_a_handler_that_is_cancelled_with_its_actor_decides_nothing_and_lets_the_actor_end() -> None:
    begun = asyncio.Event()

    async def bill(batch: Batch[bytes]) -> None:
        begun.set()
        await asyncio.Event().wait()

    delivery = Delivery("orders", 3, 100, 0, None, b"v", (), Origin("orders", 3, 100, 0))
    member = InFlight(Run.of(delivery), Message(delivery, b"v"), 1)
    member.take(0.0)
    actor = asyncio.create_task(_call(Handler("bill", ("orders",), "batch", bill, lambda value: value), Work([member], "bill")))
    await begun.wait()
    actor.cancel()
    with pytest.raises(asyncio.CancelledError):
        await actor
    assert (member.where, member.disposition) == (Where.TAKEN, None)


async def test_a_middleware_that_tries_again_begins_nothing_after_the_cut_off_and_no_attempt_is_counted() -> None:
    partition = Partition()
    saw: list[int] = []

    async def bill(batch: Batch[bytes]) -> None:
        saw.append(len(batch))
        partition.cut_off = True
        raise ConnectionError

    async def again(batch: Batch[bytes], call_next: CallNext) -> object:
        try:
            return await call_next(batch)
        except ConnectionError:
            return await call_next(batch)

    delivery = Delivery("orders", 3, 100, 0, None, b"v", (), Origin("orders", 3, 100, 0))
    member = InFlight(Run.of(delivery), Message(delivery, b"v"), 1, assignment=partition)
    member.take(0.0)
    call = wrap(bill, [inspect_middleware(again)])
    await _call(Handler("bill", ("orders",), "batch", call, lambda value: value), Work([member], "bill"))
    assert (saw, member.where, member.disposition) == ([1], Where.BACK, None)


class Partition:
    """A partition that may be cut off."""

    cut_off = is_stopping = False

    def pass_settled(self, runs: Iterable[Run]) -> None: ...


async def test_a_handler_that_swallows_its_cancellation_keeps_no_worker_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def bill(batch: Batch[bytes]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async with asyncio.timeout(PATIENCE):
        async with desk(monkeypatch, declaring(bill)) as here:
            here.fetch(b"v")
            await begun.wait()


async def test_middleware_wraps_the_handlers_of_its_kind_and_the_first_is_the_outermost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    shipped: list[Batch[bytes]] = []

    async def around_all(work: Batch[Any] | Message[Any], call_next: CallNext) -> object:
        seen.append("Batch" if isinstance(work, Batch) else "Message")
        return await call_next(work)

    async def outer(message: Message[Any], call_next: CallNext) -> object:
        seen.append("outer")
        return await call_next(message)

    async def inner(message: Message[Any], call_next: CallNext) -> object:
        seen.append("inner")
        await call_next(message)
        return CONSUME_SUCCESS

    async def around_batches(batch: Batch[Any], call_next: CallNext) -> None:
        seen.append(batch)
        await call_next(batch)

    def declare(app: faust.App) -> None:
        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> Any:
            seen.append("bill")
            return CONSUME_LATER

        @handler(app, "orders", name="ship")
        async def ship_all(batch: Batch[bytes]) -> Any:
            seen.append("ship")
            shipped.append(batch)
            return CONSUME_LATER

    async with desk(monkeypatch, declare, around_all, outer, inner, around_batches) as here:
        here.fetch(b"v")
        await here.until_passed(101)
        assert [copy.headers for copy in here.publisher.sent if ("ackwise-handler", b"ship") in copy.headers]
        assert len(here.publisher.sent) == 1
    (of_ship,) = shipped
    (of_bill,) = [said for said in seen if isinstance(said, Batch) and said is not of_ship]
    of_messages, of_batches = [of_bill, "Message", "outer", "inner", "bill"], ["Batch", of_ship, "ship"]
    assert [said for said in seen if said in of_messages] == of_messages
    assert [said for said in seen if said in of_batches] == of_batches


anything: Any = handler  # what no type checker would let pass


async def nothing(batch: Batch[Any]) -> None: ...


async def test_a_handler_that_can_not_work_is_refused_where_it_is_declared() -> None:
    cases: list[tuple[Callable[[Any], object], str]] = [
        (lambda app: handler(app)(nothing), "has no topic"),
        (lambda app: anything(app, nothing), 'names no topic; write @app.handler("orders")'),
        (lambda app: handler(app, "orders", "orders")(nothing), "names topic 'orders' twice"),
        (lambda app: handler(app, "orders", max_batch=0)(nothing), "max_batch of agent 'nothing' is 0"),
        (lambda app: handler(app, "refunds", app.topic("orders"))(nothing), "reads several topics, not all of them by name"),
        (lambda app: handler(app, app.topic(pattern="orders.*"))(nothing), "by a pattern or without acks"),
        (lambda app: handler(app, app.topic("orders", value_type=Payment), model=Order)(nothing), "leave out one of them"),
        (lambda app: anything(app, "orders")(print), "is not an `async def`"),
        (lambda app: [handler(app, topic)(nothing) for topic in ("orders", "refunds")], "two agents are called 'nothing'"),
    ]
    for declare, sentence in cases:
        with pytest.raises(ConfigurationError, match=re.escape(sentence)):
            declare(new_app())


async def test_a_handler_that_reads_what_its_group_writes_is_refused_at_the_start() -> None:
    app: Any = new_app()
    app.handler("billing.dlq")(nothing)
    with pytest.raises(ConfigurationError, match=r"reads 'billing.dlq', a topic that group 'billing' writes itself"):
        app.ackwise.declared()


async def test_middleware_that_would_never_run_or_comes_after_a_handler_is_refused() -> None:
    async def around(message: Message[Any], call_next: CallNext) -> object:
        return await call_next(message)

    app: Any = new_app(around)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="'around' takes a message, and no handler function of this app does"):
            app.ackwise.check()
        app = new_app(around)
        app.handler("orders")(nothing)
    with pytest.raises(ConfigurationError, match="after agent 'nothing' was declared"):
        app.use(around)


async def test_the_environment_sets_what_it_sets_of_an_agent_on_the_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKWISE_AGENTS__NOTHING__MAX_WAIT", "5s")
    app: Any = new_app()
    app.handler("orders")(nothing)
    assert app.ackwise.declared().agents[0].max_wait == 5.0
