"""RocketMQ's rows (A, W, S of `docs/semantics.md`) on Faust: with handler functions, and with agents that know nothing of Ackwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
import pytest
from tests.conformance.results import ERROR, RESULTS, Back, Handler
from tests.conformance.results import handler as doing
from tests.faust.desk import Desk, desk

from ackwise import CONSUME_LATER, Batch, ConsumeLater, Dedup, Later, Message, Reject
from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.faust import current_batch, handler

Declare = Callable[[faust.App], object]

#: Where what comes back at a level goes, after the first delivery.
TOPICS = {0: "billing.delay.10s", 5: "billing.delay.1m", -1: "billing.dlq"}

#: Rows of what a handler returns; a loop returns nothing.
RETURNED = ("A12", "A13")


def batch_handler(handle: Handler, *, max_batch: int = 200, keep_ack_index_on_error: bool = False) -> Declare:
    """A handler function of batches."""

    async def bill(batch: Batch[bytes]) -> Any:
        return handle(batch)

    return lambda app: handler(app, "orders", max_batch=max_batch, keep_ack_index_on_error=keep_ack_index_on_error)(bill)


def message_handler(handle: Callable[[Message[bytes]], object]) -> Declare:
    """A handler function of messages."""

    async def bill(message: Message[bytes]) -> Any:
        return handle(message)

    return lambda app: handler(app, "orders")(bill)


def loop_over_batches(handle: Handler, *, max_batch: int = 200) -> Declare:
    """A stock agent that takes batches and rules on them."""

    async def bill(orders: Any) -> None:
        async for _ in orders.take(max_batch, within=0.01):
            if handle(current_batch()) is CONSUME_LATER:
                raise Later

    return agent(bill)


def loop_over_messages(handle: Callable[[Message[bytes]], object]) -> Declare:
    """A stock agent that takes one message at a time."""

    async def bill(orders: Any) -> None:
        async for _ in orders:
            if handle(current_batch()[0]) is CONSUME_LATER:
                raise Later

    return agent(bill)


def agent(loop: Callable[[Any], Any]) -> Declare:
    return lambda app: app.agent(app.topic("orders", value_serializer="raw"), name="bill")(loop)


async def hold(monkeypatch: pytest.MonkeyPatch, declare: Declare, size: int, back: Back, row: str = "") -> None:
    """`size` messages go through what `declare` declares: those of `back` come back, and the offset passes all of them."""
    async with desk(monkeypatch, declare) as here:
        here.fetch(*(b"v%d" % (100 + index) for index in range(size)))
        await here.until_passed(100 + size)
        assert here.sent() == [(TOPICS[level], b"v%d" % offset) for offset, level in back], row
        assert await here.committed() == 100 + size


BY_BATCH = pytest.mark.parametrize("kind", [batch_handler, loop_over_batches])


@BY_BATCH
async def test_what_is_done_with_a_batch_has_rocketmqs_result(monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]) -> None:
    for row in RESULTS:
        if kind is batch_handler or not str(row.id).startswith(RETURNED):
            size, handle, back = row.values
            await hold(monkeypatch, kind(handle), size, back, str(row.id))


async def test_A15_a_prefix_survives_an_exception_of_a_handler_function_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = doing(ERROR, ack_index=1)
    await hold(monkeypatch, batch_handler(prefix, keep_ack_index_on_error=True), 3, [(102, 0)])
    await hold(monkeypatch, batch_handler(prefix), 3, [(100, 0), (101, 0), (102, 0)])


@BY_BATCH
@pytest.mark.parametrize("refused", [pytest.param({b"v101"}, id="A18"), pytest.param({b"v100", b"v101", b"v102"}, id="A19")])
async def test_a_copy_that_is_not_acknowledged_holds_the_commit_and_only_its_publish_is_repeated(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare], refused: set[bytes]
) -> None:
    monkeypatch.setattr("ackwise.middleware.pipeline.settlement.PUBLISH_AGAIN", 0.0)
    refused = set(refused)
    lowest = min(refused)
    runs: list[int] = []
    attempts: list[bytes | None] = []

    def handle(batch: Batch[bytes]) -> object:
        runs.append(len(batch))
        return CONSUME_LATER

    def answer(copy: Copy) -> PublishUnavailable | None:
        attempts.append(copy.value)
        return PublishUnavailable("no broker") if copy.value in refused else None

    async with desk(monkeypatch, kind(handle)) as here:
        here.publisher.answer = answer
        here.fetch(b"v100", b"v101", b"v102")
        await here.until(lambda: attempts.count(lowest) > 2, "a publish that is repeated")
        assert await here.committed() == int(lowest[1:])
        refused.clear()
        await here.until_passed(103)
        assert runs == [3]
        assert sorted(here.sent()) == [("billing.delay.10s", b"v%d" % offset) for offset in (100, 101, 102)]


@BY_BATCH
async def test_A27_A28_a_fetch_is_cut_into_batches(monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]) -> None:
    for fetched, max_batch, sizes in ((10, 4, [4, 4, 2]), (32, 100, [32])):
        seen: list[int] = []
        async with desk(monkeypatch, kind(lambda batch, seen=seen: seen.append(len(batch)), max_batch=max_batch)) as here:
            here.fetch(*(b"v%d" % index for index in range(fetched)))
            await here.until_passed(100 + fetched)
            assert seen == sizes


def slow(events: tuple[asyncio.Event, asyncio.Event], error: Exception | None) -> Callable[[], Any]:
    """Says that it has started, and waits for the test."""

    async def work() -> None:
        events[0].set()
        await events[1].wait()
        if error is not None:
            raise error

    return work


def slow_handler(events: tuple[asyncio.Event, asyncio.Event], error: Exception | None = None) -> Declare:
    work = slow(events, error)

    async def bill(batch: Batch[bytes]) -> None:
        await work()

    return lambda app: handler(app, "orders", max_batch=1)(bill)


def slow_loop(events: tuple[asyncio.Event, asyncio.Event], error: Exception | None = None) -> Declare:
    work = slow(events, error)

    async def bill(orders: Any) -> None:
        async for _ in orders:
            await work()

    return agent(bill)


SLOW = pytest.mark.parametrize("kind", [slow_handler, slow_loop])


@SLOW
@pytest.mark.parametrize("error", [pytest.param(None, id="A23"), pytest.param(ERROR, id="A24")])
async def test_what_ends_after_the_drain_publishes_and_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare], error: Exception | None
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with desk(monkeypatch, kind((begun, go_on), error), revoke_timeout=0.01) as here:
        here.fetch(b"v100", b"v101")
        await begun.wait()
        lanes = here.lanes()
        await here.revoke()
        go_on.set()
        await here.until(lambda: all(lane.task is not None and lane.task.done() for lane in lanes), "the end of the lane")
        assert here.sent() == []
        assert [offsets for offsets in here.broker.commits if offsets.get(here.orders, 100) != 100] == []


@SLOW
async def test_A25_what_waits_behind_a_slow_message_is_not_begun_once_its_partition_is_revoked(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with desk(monkeypatch, kind((begun, go_on))) as here:
        here.fetch(b"v100", b"v101", b"v102")
        await begun.wait()
        (lane,) = here.lanes()
        revoked = asyncio.create_task(here.revoke())
        await asyncio.sleep(0)  # it runs as far as it waits for what was started
        go_on.set()
        await revoked
        assert [entry.delivery.offset for entry in lane.unsettled()] == [101, 102]
        assert here.broker.commits[-1][here.orders] == 101


async def test_W01_to_W05_the_commit_is_the_smallest_offset_that_an_agent_has_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []

    async def bill(orders: Any) -> None:
        async for event in orders.noack().events():
            events.append(event)  # noqa: PERF401  # the loop is what a user writes

    async with desk(monkeypatch, agent(bill)) as here:
        here.fetch(*(b"v%d" % index for index in range(10)))
        await here.until(lambda: len(events) == 10, "ten messages in the agent")
        (lane,), left = here.lanes(), 10
        for finished, commit in (([105], 100), ([100, 101, 102, 103], 104), ([104, 106, 107, 108, 109], 110), ([109, 100], 110)):
            left -= sum(not events[offset - 100].message.acked for offset in finished)
            for offset in finished:
                events[offset - 100].ack()
            await here.until(lambda left=left: lane.watermark.count == left, "settling")  # type: ignore[misc]
            assert await here.committed() == commit


async def test_W07_what_is_fetched_twice_is_held_and_handed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    async with desk(monkeypatch, message_handler(lambda message: seen.append(message.value))) as here:
        here.fetch(b"a", b"b", b"c")
        here.fetch(b"a", b"b", b"c")
        (lane,) = here.lanes()
        assert (lane.watermark.count, lane.watermark.span) == (3, 2)
        await here.until_passed(103)
        assert seen == [b"a", b"b", b"c"]


async def test_W08_W14_everything_done_commits_the_offset_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, loop_over_messages(lambda message: None)) as here:
        for count, commit in ((1, 101), (4, 105)):
            here.fetch(*[b"v"] * count, start=commit - count)
            await here.until_passed(commit)
            assert await here.committed() == commit


def raising(error: Exception, message: Message[bytes]) -> object:
    raise error


failing = partial(raising, ERROR)


BY_MESSAGE = pytest.mark.parametrize("kind", [message_handler, loop_over_messages])


@BY_MESSAGE
async def test_K17_the_messages_behind_one_that_fails_are_not_stopped_by_it(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]
) -> None:
    async with desk(monkeypatch, kind(lambda message: failing(message) if message.offset == 101 else None)) as here:
        here.fetch(b"v100", b"v101", b"v102")
        await here.until_passed(103)
        assert here.sent() == [("billing.delay.10s", b"v101")]


@BY_MESSAGE
async def test_where_a_message_goes_that_fails(monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]) -> None:
    for row, error, policy, topic in (
        ("S01", ERROR, ConsumeLater(), "billing.delay.10s"),
        ("S06", Later(level=-1), ConsumeLater(), "billing.dlq"),
        ("S07", Later(level=2), ConsumeLater(), "billing.delay.5s"),
        ("S09", Later(level=99), ConsumeLater(), "billing.delay.1h"),
        ("S11", ERROR, ConsumeLater(0), "billing.dlq"),
        ("reject", Reject("no price"), ConsumeLater(), "billing.dlq"),
    ):
        async with desk(monkeypatch, kind(partial(raising, error)), policy) as here:
            here.fetch(b"v100")
            await here.until_passed(101)
            assert here.sent() == [(topic, b"v100")], row
            assert row != "S09" or round(here.publisher.waits[0] - 0.5) == 7200, "two hours, whose first rung is one"


async def fail_until_dead(here: Desk) -> list[Copy]:
    """One message fails and comes back until it is a dead letter; returns what was sent."""
    here.fetch(b"v100", headers=(("trace", b"t"),))
    await here.until_passed(101)
    while (last := here.publisher.sent[-1]).topic != "billing.dlq":
        returned = len(here.publisher.sent) - 1
        here.bring_back(last, offset=100 + returned)
        await here.until_passed(101 + returned, "billing.retry")
    return here.publisher.sent


@BY_MESSAGE
async def test_S17_a_message_that_always_fails_is_delivered_seventeen_times_then_dead(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]
) -> None:
    runs: list[tuple[str, int, int]] = []

    def handle(message: Message[bytes]) -> object:
        runs.append((message.topic, message.offset, message.reconsume_times))
        raise ERROR

    async with desk(monkeypatch, kind(handle)) as here:
        await fail_until_dead(here)
        waits = [round(wait - 0.5) for wait in here.publisher.waits if wait]
        assert runs == [("orders", 100, times) for times in range(17)]
        assert sum(waits) == 17140


@BY_MESSAGE
async def test_S13_a_second_failure_keeps_the_origin_and_the_first_sight(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]
) -> None:
    async with desk(monkeypatch, kind(failing), ConsumeLater(2)) as here:
        first, second, _ = (dict(copy.headers) for copy in await fail_until_dead(here))
        same = ("trace", "ackwise-origin-topic", "ackwise-origin-partition", "ackwise-origin-offset", "ackwise-first-seen")
        assert [first[name] for name in same] == [second[name] for name in same]


@BY_MESSAGE
async def test_S14_a_dead_letter_that_can_not_be_published_stays_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]
) -> None:
    monkeypatch.setattr("ackwise.middleware.pipeline.settlement.PUBLISH_AGAIN", 0.0)
    tried: list[str] = []

    def answer(copy: Copy) -> PublishUnavailable | None:
        tried.append(copy.topic)
        return PublishUnavailable("no broker") if len(tried) < 3 else None

    async with desk(monkeypatch, kind(partial(raising, Reject("no price")))) as here:
        here.publisher.answer = answer
        here.fetch(b"v100")
        await here.until_passed(101)
        assert tried == ["billing.dlq"] * 3


@BY_MESSAGE
async def test_S16_a_second_copy_of_the_same_failure_is_recognised(monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Declare]) -> None:
    runs: list[int] = []

    def handle(message: Message[bytes]) -> object:
        runs.append(message.reconsume_times)
        return CONSUME_LATER if len(runs) == 1 else None

    async with desk(monkeypatch, kind(handle), Dedup("memory://")) as here:
        here.fetch(b"v100")
        await here.until_passed(101)
        (copy,) = here.publisher.sent
        here.bring_back(copy, offset=100)
        here.bring_back(copy, offset=101)
        await here.until_passed(102, "billing.retry")
        assert runs == [0, 1]
