"""User code: whatever an object of the user's does when it is called or looked at, its message fails and the next one runs."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

import pytest
from tests.hostileobjects import KINDS, contained, hostile_error, hostile_value
from tests.tables import each

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.flow.breaker import Breaker
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.message import Message
from ackwise.middleware.message.raising import Later, Reject
from ackwise.middleware.pipeline.pipeline import HandlerStopped
from ackwise.middleware.policies.retry import ConsumeLater, RetryInPlace
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.usercode import Raised, Returned, Stops, awaited, called, class_name, shown, where_raised

STOPS = (SystemExit, KeyboardInterrupt, GeneratorExit)

LATER, DEAD = "billing.delay.10s", "billing.dlq"


def raising(error: BaseException) -> Any:
    def function(*_: object) -> Any:
        raise error

    return function


# Calls and looks


@each("kind", KINDS)
@contained
async def test_a_call_comes_to_a_value_or_to_what_was_raised_and_to_nothing_else(kind: type[BaseException]) -> None:
    async def handler(_: object) -> Any:
        await asyncio.sleep(0)
        raise kind

    expected = Stops if kind in STOPS else Raised
    assert type(called(raising(kind()))) is expected
    assert type(await awaited(handler, 1)) is expected
    assert type(called(raising(hostile_error(kind)))) is Raised
    value = hostile_value(kind)
    returned = called(lambda: value)
    assert isinstance(returned, Returned)
    assert returned.value is value


@each("kind", KINDS)
@contained
def test_what_raises_when_it_is_looked_at_is_named_and_printed_all_the_same(kind: type[BaseException]) -> None:
    for base in (Exception, BaseException, ExceptionGroup, Reject, Later, ConsumeLater):
        error = hostile_error(kind, base)
        outcome = called(raising(error))
        assert isinstance(outcome, Raised)
        failure = Failure.of(outcome.error)
        assert (failure.error, failure.message) == ("HostileError", "<unprintable>")
        assert (class_name(error), shown(error), said(error)) == ("HostileError", "<unprintable>", "HostileError: <unprintable>")
        assert where_raised(error) is not None


@contained
def test_a_text_of_a_class_of_the_users_is_a_plain_text() -> None:
    assert type(shown(hostile_value(ValueError, str), lambda text: text)) is str


@contained
def test_exceptions_in_many_groups_are_looked_at_once_each() -> None:
    error: Any = ValueError()
    for _ in range(60):
        error = BaseExceptionGroup("both", [error, error])
    assert type(called(raising(error))) is Raised
    assert Failure.of(error).traceback == "<unprintable>"


def test_exceptions_that_caused_each_other_are_printed() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "second" in Failure.of(first).traceback


def test_a_text_that_is_none_stands_for_itself() -> None:
    class Odd(Exception):
        def __str__(self) -> Any:
            return 7

    failure = Failure.of(Odd())
    assert (failure.error, failure.message) == ("Odd", "<unprintable>")


@contained
def test_a_log_with_what_was_raised_is_written_though_it_can_not_be_printed(caplog: pytest.LogCaptureFixture) -> None:
    printed: list[str] = []

    class Printing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            printed.append(self.format(record))

    logger = logging.getLogger("ackwise.unprintable")
    logger.addHandler(handler := Printing())
    logger.setLevel(logging.DEBUG)
    try:
        for kind in KINDS:
            Log("ackwise.unprintable").debug("what the handler raised", handler="bill", raised=hostile_error(kind))
    finally:
        logger.removeHandler(handler)
    assert len(printed) == len(KINDS)


@contained
async def test_a_task_that_is_given_up_ends_though_its_handler_waits() -> None:
    async def handler(_: object) -> None:
        await asyncio.Event().wait()

    async def call() -> None:
        await awaited(handler, 1)

    coroutine = call()
    coroutine.send(None)
    coroutine.close()


# What a handler returns and raises


@each("kind", ["batch", "message"])
@contained
async def test_a_handler_may_return_any_object_and_its_message_comes_back(make_spine: Any, kind: Any) -> None:
    for error in KINDS:
        values = iter([hostile_value(error), None])

        async def handler(_: object, values: Any = values) -> Any:
            return next(values)

        spine = make_spine(handler, kind=kind, dedup=True)
        await spine.run(spine.entries(1))
        await spine.run(spine.entries(1, start=101))
        assert (spine.sent(), spine.watermark.commit) == ([(LATER, b"v100")], 102)


@each("kind", ["batch", "message"])
@contained
async def test_a_handler_may_raise_any_exception_and_its_message_comes_back_or_is_dead(make_spine: Any, kind: Any) -> None:
    for error in KINDS:
        for base, topic in ((Exception, LATER), (ExceptionGroup, LATER), (Later, LATER), (ConsumeLater, LATER), (Reject, DEAD)):
            raised = iter([hostile_error(error, base)])

            async def handler(_: object, raised: Any = raised) -> None:
                for each_error in raised:
                    raise each_error

            spine = make_spine(handler, kind=kind, later=ConsumeLater(16, retry_by_error={OSError: RetryInPlaceLess()}, no_retry=KeyError))
            await spine.run(spine.entries(1))
            await spine.run(spine.entries(1, start=101))
            assert (spine.sent(), spine.watermark.commit) == ([(topic, b"v100")], 102)


class RetryInPlaceLess:
    """A retry policy of a minute."""

    def delay(self, attempt: int) -> float:
        return 60.0


@contained
async def test_a_wish_of_a_class_with_an_init_of_its_own_is_one_to_consume_later(make_spine: Any) -> None:
    class TryLater(Later):
        def __init__(self, why: str) -> None:
            self.why = why

    async def handler(batch: Batch[bytes]) -> None:
        raise TryLater("busy")

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    assert spine.sent() == [(LATER, b"v100")]


@contained
async def test_texts_and_numbers_of_classes_of_the_users_are_plain_in_rulings(make_spine: Any) -> None:
    class Reason(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise KeyboardInterrupt

        def __getitem__(self, _: Any) -> str:
            raise KeyboardInterrupt

    class Level(int):
        def __lt__(self, _: object) -> bool:
            raise KeyboardInterrupt

        __gt__ = __eq__ = __lt__
        __hash__ = int.__hash__

    async def handler(batch: Batch[bytes]) -> None:
        batch.dead(batch[0], Reason("broken"))
        batch.later(batch[1], delay_level=Level(2))
        batch.ack_index = Level(1)
        batch.delay_level = Level(4)

    spine = make_spine(handler)
    await spine.run(spine.entries(3))
    assert spine.sent() == [("billing.dlq", b"v100"), ("billing.delay.5s", b"v101"), ("billing.delay.30s", b"v102")]


@each("kind", KINDS)
@contained
async def test_what_a_handler_gives_to_its_batch_is_refused_by_a_ruling_that_it_can_catch(
    make_spine: Any, kind: type[BaseException]
) -> None:
    refused: list[str] = []

    async def handler(batch: Batch[Any]) -> None:
        given = hostile_value(kind)
        for rule in (
            lambda: batch.done(given),
            lambda: batch.later(given),
            lambda: batch.dead(batch[0], given),
            lambda: batch.later(batch[0], delay=given),
            lambda: batch.later(batch[0], delay_level=given),
            lambda: setattr(batch, "ack_index", given),
            lambda: setattr(batch, "delay_level", given),
            lambda: batch[0].extend(given),
            lambda: Later(given),
            lambda: Later(level=given),
        ):
            try:
                rule()
            except AckwiseError as error:
                refused.append(str(error))

    spine = make_spine(handler)
    await spine.run(spine.entries(2))
    assert (len(refused), spine.sent(), spine.watermark.commit) == (10, [], 102)


# Functions beside the handler


def keys_of(kind: type[BaseException]) -> list[Any]:
    """What a key function may do, but for what stops the app."""
    return [lambda _: hostile_value(kind), lambda _: [], lambda _: 0.5, raising(hostile_error(kind)), lambda _: hostile_value(kind, str)]


@each("kind", KINDS)
@contained
async def test_a_key_function_may_return_or_raise_anything_and_its_message_comes_back(
    make_spine: Any, succeed: Any, kind: type[BaseException]
) -> None:
    for key in keys_of(kind):
        spine = make_spine(succeed, dedup={"key": lambda message, key=key: key(message) if message.offset == 100 else "k"})
        await spine.run(spine.entries(2))
        assert (spine.sent(), spine.watermark.commit) == ([(LATER, b"v100")], 102)


@each("kind", KINDS)
@contained
async def test_a_rate_of_keys_that_raise_costs_no_attempt(make_spine: Any, succeed: Any, kind: type[BaseException]) -> None:
    for key in keys_of(kind):
        spine = limited(make_spine, succeed, RateLimit("100/s", key=key))
        await spine.run(spine.entries(2))
        assert (spine.sent(), spine.watermark.commit) == ([], 102)


def limited(make_spine: Any, handler: Any, policy: RateLimit) -> Any:
    spine = make_spine(handler)
    worker = spine.worker
    facts = {name: getattr(worker, name) for name in worker.__slots__ if name != "flow"}
    spine.worker = type(worker)(**facts, flow=FlowControl(rate_limit=policy, clock=spine.clock))
    spine.pipeline = type(spine.pipeline)(spine.agent, spine.worker)
    return spine


@each("kind", STOPS)
@contained
async def test_what_stops_a_program_stops_it_from_each_function_and_rules_on_nothing(
    make_spine: Any, succeed: Any, kind: type[BaseException]
) -> None:
    spines = [
        make_spine(succeed, dedup={"key": raising(kind())}),
        limited(make_spine, succeed, RateLimit("1/s", key=raising(kind()))),
        make_spine(succeed, decode=raising(kind())),
    ]
    for spine in spines:
        with pytest.raises(HandlerStopped) as stopped:
            await spine.run(spine.entries(2))
        assert (type(stopped.value.error), spine.sent(), spine.watermark.commit) == (kind, [], 100)


class Policy:
    """A retry policy that does what it is told."""

    def __init__(self, act: Any) -> None:
        self.delay = act


@each("kind", KINDS)
@contained
async def test_a_retry_policy_may_return_or_raise_anything_and_its_message_comes_back_by_level(
    make_spine: Any, kind: type[BaseException]
) -> None:
    async def handler(message: Message[bytes]) -> None:
        raise ValueError

    for act in (raising(hostile_error(kind)), lambda _: hostile_value(kind), lambda _: "soon", lambda _: None):
        spine = make_spine(handler, kind="message", later=ConsumeLater(16, retry=Policy(act)))
        await spine.run(spine.entries(1))
        assert (spine.sent(), spine.watermark.commit) == ([(LATER, b"v100")], 101)


@each("kind", STOPS)
@contained
async def test_a_retry_policy_that_stops_the_app_does_so_once_its_message_is_settled(make_spine: Any, kind: type[BaseException]) -> None:
    async def handler(message: Message[bytes]) -> None:
        raise ValueError

    spine = make_spine(handler, kind="message", later=ConsumeLater(16, retry=Policy(raising(kind()))))
    with pytest.raises(HandlerStopped) as stopped:
        await spine.run(spine.entries(1))
    assert (type(stopped.value.error), spine.sent(), spine.watermark.commit) == (kind, [(LATER, b"v100")], 101)


class Meta(type):
    """A class that raises when something is asked of it."""

    def __instancecheck__(cls, _: object) -> bool:
        raise KeyboardInterrupt

    def __subclasscheck__(cls, _: object) -> bool:
        raise Odd

    def __hash__(cls) -> int:
        return 7


class Odd(BaseException): ...


class Refused(Exception, metaclass=Meta): ...


@each("in_place", [None, RetryInPlace(3)])
@contained
async def test_classes_of_exceptions_that_raise_when_they_are_compared_fail_no_other_message(make_spine: Any, in_place: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        raise ValueError

    spine = make_spine(handler, kind="message")
    spine.worker.later.no_retry = (Refused,)
    object.__setattr__(spine.agent, "in_place", in_place)
    entries = spine.entries(1)
    await spine.run(entries)
    assert spine.sent() == ([(LATER, b"v100")] if in_place is None else [])
    assert in_place is None or entries[0].in_place == 1


@contained
async def test_a_breaker_whose_classes_raise_counts_nothing() -> None:
    async def handler(_: object) -> None:
        raise ValueError("failed")

    breaker = Breaker()
    object.__setattr__(breaker, "errors", (Refused,))
    with pytest.raises(ValueError, match="failed"):
        await FlowControl(breaker=breaker).guarded("bill", handler)(1)


# Decoders


@each("error", [MemoryError(), RecursionError(), ExceptionGroup("both", [MemoryError(), RecursionError()])])
@contained
async def test_a_decoder_without_memory_or_stack_fails_its_message_which_comes_back(make_spine: Any, succeed: Any, error: Any) -> None:
    def decode(raw: bytes) -> bytes:
        if raw == b"v100":
            raise error
        return raw

    spine = make_spine(succeed, dedup=True, decode=decode)
    await spine.run([spine.together(3)])
    assert (spine.sent(), spine.watermark.commit) == ([(LATER, b"v100")], 103)


@each("kind", KINDS)
@contained
async def test_a_decoder_may_return_or_raise_anything(make_spine: Any, kind: type[BaseException]) -> None:
    handled: list[object] = []

    async def handler(message: Message[Any]) -> None:
        handled.append(message)

    def decode(raw: bytes) -> object:
        if raw == b"v101":
            raise hostile_error(kind)
        return hostile_value(kind)

    spine = make_spine(handler, kind="message", dedup=True, decode=decode)
    await spine.run([spine.together(3)])
    assert (spine.sent(), spine.watermark.commit, len(handled)) == ([(DEAD, b"v101")], 103, 2)


def decoding(make_spine: Any, handler: Any, decode: Any) -> Any:
    spine = make_spine(handler, kind="message", decode=decode)
    spine.agent = type(spine.agent)("bill", ("orders",), "message", handler, decode, decodes_async=True, decodes_own=True)
    spine.pipeline = type(spine.pipeline)(spine.agent, spine.worker)
    return spine


@contained
async def test_a_decoder_that_leaves_a_cancellation_behind_meets_no_other_message(make_spine: Any, succeed: Any) -> None:
    async def decode(raw: bytes) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        task.cancel()
        if raw == b"v100":  # it takes the cancellation, and never says so to its task
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)
        return raw

    spine = decoding(make_spine, succeed, decode)
    assert await spine.run(spine.entries(3)) == [Stage.SETTLED] * 3
    assert (spine.sent(), spine.watermark.commit) == ([], 103)


@contained
async def test_a_decoder_that_is_called_off_is_cancelled_with_its_pipeline(make_spine: Any, succeed: Any) -> None:
    ended: list[str] = []

    async def decode(raw: bytes) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("decoder")
        return raw

    spine = decoding(make_spine, succeed, decode)
    task = asyncio.create_task(spine.run(spine.entries(1)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), ended, spine.watermark.commit) == (True, ["decoder"], 100)


# What one call leaves behind


@each("kind", ["batch", "message"])
@contained
async def test_a_handler_that_leaves_a_cancellation_behind_meets_no_other_message(make_spine: Any, kind: Any) -> None:
    met: list[int] = []

    async def handler(_: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        met.append(task.cancelling())
        await asyncio.sleep(0)
        task.cancel()

    spine = make_spine(handler, kind=kind, dedup=True)
    await spine.run(spine.entries(3))
    assert (spine.sent(), spine.watermark.commit, set(met)) == ([], 103, {0})


@contained
async def test_a_handler_that_takes_a_cancellation_and_ends_meets_no_other_message(make_spine: Any) -> None:
    met: list[int] = []

    async def handler(message: Message[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        met.append(task.cancelling())
        if message.offset == 101:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)
            raise ValueError

    spine = make_spine(handler, kind="message", dedup=True)
    await spine.run(spine.entries(3))
    assert (spine.sent(), spine.watermark.commit, met) == ([(LATER, b"v101")], 103, [0, 0, 0])


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@each("kind", ["batch", "message"])
@contained
async def test_a_variable_that_a_call_sets_is_seen_by_no_other(make_spine: Any, kind: Any) -> None:
    seen: list[str] = []

    async def handler(work: Any) -> None:
        seen.append(tenant.get())
        tenant.set("ann")
        await asyncio.sleep(0)
        assert tenant.get() == "ann"
        tenant.set("bob")
        if kind == "batch" and len(work) > 1:
            raise ValueError  # the last time with others: it runs again in halves

    def key(message: Message[bytes]) -> str:
        seen.append(tenant.get())
        tenant.set("key")
        return str(message.offset)

    spine = make_spine(handler, kind=kind, dedup={"key": key})
    await spine.run(spine.entries(4, attempt=17))
    assert (set(seen), spine.watermark.commit, tenant.get()) == ({"nobody"}, 104, "nobody")


@contained
async def test_a_variable_that_a_decoder_of_the_users_sets_is_seen_by_no_other_message(make_spine: Any, succeed: Any) -> None:
    seen: list[str] = []

    def decode(raw: bytes) -> bytes:
        seen.append(tenant.get())
        tenant.set("ann")
        return raw

    spine = make_spine(succeed, decode=decode)
    spine.agent = type(spine.agent)("bill", ("orders",), "batch", succeed, decode, decodes_own=True)
    spine.pipeline = type(spine.pipeline)(spine.agent, spine.worker)
    await spine.run([spine.together(3)])
    assert (seen, tenant.get()) == (["nobody"] * 3, "nobody")
