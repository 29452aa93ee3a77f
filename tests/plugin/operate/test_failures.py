"""What the table of failures says is what the pipeline does: each row is played on the spine that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from tests.fakes import FULL_DISK
from tests.middleware.conftest import Spine
from tests.tables import each

from ackwise import (
    CONSUME_LATER,
    App,
    Batch,
    ConsumeLater,
    ConsumeStatus,
    Dedup,
    Events,
    Exponential,
    Fixed,
    Later,
    Message,
    Reject,
    RetryInPlace,
    Transactional,
)
from ackwise.middleware.errors import PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.message.disposition import Reason
from ackwise.middleware.runs.run import Stage
from ackwise.plugin.handlers.usermiddleware import inspect_middleware, wrap
from ackwise.plugin.operate.explanation import Explanation
from ackwise.plugin.operate.failurepaths import FailurePath
from ackwise.plugin.settings.config import Config


class BadOrderError(Exception):
    def __init__(self, order: str) -> None: ...


def key(message: object) -> str:
    return "one"


LATER = ConsumeLater(3, retry=Exponential(7), retry_by_error={OSError: Fixed("2s")}, no_retry=BadOrderError)


async def through(batch: Batch[Any], call_next: Any) -> object:
    return await call_next(batch)


async def bill(batch: Batch[bytes]) -> None: ...


def explained(*, mode: Literal["before_settle", "async"] = "before_settle") -> Explanation:
    app = App("billing", config=Config())
    app.use(LATER, through, Dedup("memory://", key=key), Events("out", mode=mode))
    app.agent("orders", keep_ack_index_on_error=True)(bill)
    return app.explain()


ROWS: Mapping[str, FailurePath] = {failure.when: failure for failure in explained().failures}


def raising(error: BaseException) -> Any:
    async def handler(batch: Batch[Any]) -> None:
        raise error

    return handler


def returning(value: object) -> Any:
    async def handler(batch: Batch[Any]) -> object:
        return value

    return handler


async def none_done(batch: Batch[Any]) -> None:
    batch.ack_index = -1


async def one_later(batch: Batch[Any]) -> None:
    batch.later(batch[0], delay=30)


async def one_dead(batch: Batch[Any]) -> None:
    batch.dead(batch[0], "why")


async def breaking(batch: Batch[Any], call_next: Any) -> ConsumeStatus | None:
    raise KeyError


async def absent(batch: Batch[Any], call_next: Any) -> None: ...


def around(middleware: Any) -> Any:
    return wrap(returning(None), [inspect_middleware(middleware)])


def fails(_: object) -> Any:
    raise ValueError


def too_large(copy: Any) -> PublishRefused | None:
    return None if copy.topic == "billing.dlq" else PublishRefused("too large")


PLAYS: dict[str, Callable[[], Spine]] = {
    "the handler raises": lambda: Spine(raising(KeyError()), later=LATER),
    "the handler raises OSError": lambda: Spine(raising(TimeoutError()), later=LATER),
    "the handler raises BadOrderError": lambda: Spine(raising(BadOrderError("x")), later=LATER),
    "the handler returns CONSUME_LATER": lambda: Spine(returning(CONSUME_LATER), later=LATER),
    "the handler returns anything but None or a status": lambda: Spine(returning(1), later=LATER),
    "the handler raises Later(…)": lambda: Spine(raising(Later(30)), later=LATER),
    "the handler asks for a level below 0": lambda: Spine(raising(Later(level=-1)), later=LATER),
    "the handler raises Reject": lambda: Spine(raising(Reject("no")), later=LATER),
    "a message above batch.ack_index = i": lambda: Spine(none_done, later=LATER),
    "batch.later(message, delay=…)": lambda: Spine(one_later, later=LATER),
    "batch.dead(message, why)": lambda: Spine(one_dead, later=LATER),
    "a middleware raises": lambda: Spine(around(breaking), later=LATER),
    "a middleware neither calls the handler nor returns": lambda: Spine(around(absent), later=LATER),
    "the value can't be decoded": lambda: Spine(returning(None), later=LATER, decode=fails),
    "the key function raises": lambda: Spine(returning(None), later=LATER, dedup={"key": fails}),
}


async def travel(spine: Spine) -> tuple[tuple[float, ...], int, str]:
    """The delays, the deliveries and the end of the first message, as the pipeline has them."""
    entry, delays = spine.entries(1)[0], list[float]()
    while True:
        await spine.run([entry])
        assert entry.stage is Stage.SETTLED, "its offset is passed once the copy is acknowledged"
        copy = spine.publisher.sent[-1]
        if copy.topic == "billing.dlq":
            return tuple(delays), len(delays) + 1, f"billing.dlq, {dict(copy.headers)['ackwise-reason'].decode()}"  # type: ignore[union-attr]  # a text
        assert entry.send_back is not None
        delays.append(entry.send_back.delay)
        entry = spine.returned(copy)


@each("when", PLAYS)
async def test_a_message_travels_as_its_row_says(when: str) -> None:
    row = ROWS[when]
    delays, deliveries, end = await travel(PLAYS[when]())
    assert (delays, end) == (row.delays, row.ends)
    assert row.attempts in (deliveries, None)


async def test_a_copy_that_is_too_large_becomes_the_dead_letter_of_its_row() -> None:
    spine = Spine(raising(KeyError()), later=LATER)
    spine.publisher.answer = too_large
    assert (await travel(spine))[1:] == (1, ROWS["a copy that the brokers refuse as too large"].ends)


@each(
    ("when", "wait"),
    [
        ("the brokers do not acknowledge a copy or dead letter", "every 5s"),
        ("the store is down before the handler runs", "100ms, doubling to 5s"),
        ("the store is down after it ran", "100ms, doubling to 5s"),
        ("the disk of the event log fails", "100ms, doubling to 5s"),
    ],
)
async def test_a_message_is_held_as_its_row_says(when: str, wait: str) -> None:
    runs: list[int] = []

    async def handler(batch: Batch[Any]) -> ConsumeStatus | None:
        runs.append(1)
        return CONSUME_LATER if "brokers" in when else None

    spine = Spine(handler, later=LATER, dedup=True)
    spine.sink.error = FULL_DISK if "disk" in when else None
    spine.store.fail = lambda exchange: ("before" in when and bool(exchange.claims)) or ("after" in when and bool(exchange.completes))
    if "brokers" in when:
        spine.publisher.answer = lambda copy: PublishUnavailable("nobody answers")
    entry = spine.entries(1)[0]
    waits: list[float] = []
    for _ in range(8):
        assert await spine.run([entry]) != [Stage.SETTLED]
        waits.append(entry.not_before - spine.clock.now)
        spine.clock.now = entry.not_before
    assert ROWS[when].after == wait
    assert [round(each, 3) for each in (waits[0], waits[-1])] == ([5, 5] if "brokers" in when else [0.1, 5])
    assert len(runs) == ("before" not in when)
    assert spine.watermark.commit == 100


async def test_a_duplicate_is_not_run_and_its_offset_passes_at_once() -> None:
    spine = Spine(returning(None), dedup={"key": key})
    first, second = spine.entries(2)
    await spine.run([first])
    assert await spine.run([second]) == [Stage.SETTLED]
    assert (ROWS["a duplicate of a finished message"].then, ROWS["a duplicate of a finished message"].offset) == ("not run", "at once")
    assert spine.watermark.commit == 102


def row_of(when: str, on_store_down: Literal["block", "fail_open", "fail_closed"]) -> FailurePath:
    app = App("billing", config=Config())
    app.use(Dedup("memory://", on_store_down=on_store_down))
    app.agent("orders")(bill)
    return next(failure for failure in app.explain().failures if failure.when == when)


@each(
    ("when", "then", "offset"),
    [
        (
            "the store is down before the handler runs",
            "run without a claim, maybe a second time; the store is updated later",
            "as otherwise",
        ),
        ("the store is down after it ran", "settled; the store is updated later", "at once"),
    ],
)
async def test_with_fail_open_a_message_runs_and_its_offset_passes_while_the_store_is_down(when: str, then: str, offset: str) -> None:
    spine = Spine(returning(None), dedup={"on_store_down": "fail_open"})
    spine.store.fail = lambda exchange: "before" in when or not exchange.claims
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    row = row_of(when, "fail_open")
    assert (row.then, row.offset) == (then, offset)


async def test_with_fail_closed_nothing_is_run_and_the_worker_stops_while_the_store_is_down() -> None:
    spine = Spine(raising(AssertionError()), dedup={"on_store_down": "fail_closed"})
    spine.store.fail = lambda exchange: True
    with pytest.raises(StoreUnavailable):
        await spine.run(spine.entries(1))
    assert spine.watermark.commit == 100
    assert row_of("the store is down before the handler runs", "fail_closed").then == "not run; the worker stops"


def test_every_reason_for_a_dead_letter_has_a_row() -> None:
    reasons = {value for name, value in vars(Reason).items() if name.isupper()}
    app = App("billing", config=Config())
    app.agent("entries", order="key", in_place=RetryInPlace(1), max_age="1d")(bill)
    writer = App("billing", config=Config())
    writer.use(Transactional("sqlite:///shop.db"))
    writer.agent("payments")(bill)
    rows = [*ROWS.values(), *app.explain().failures, *writer.explain().failures]
    assert reasons == {row.ends.removeprefix("billing.dlq, ") for row in rows if row.ends} - {"why"}


async def test_a_message_that_waits_in_place_can_be_buried_and_without_an_order_none_does() -> None:
    assert "ackwise inplace bury names a message that waits in place" not in ROWS


def test_rows_of_what_an_app_does_not_have_are_left_out() -> None:
    app = App("billing", config=Config())

    async def ship(message: Message[bytes]) -> None: ...

    app.agent("orders")(ship)
    text = " ".join(failure.when for failure in app.explain().failures)
    assert not [word for word in ("batch.", "middleware", "key function", "store", "event log", "claim") if word in text]


class StubbornError(BaseException):
    def __new__(cls, order: str) -> StubbornError:
        return super().__new__(cls)


@each("kind", [StubbornError, ExceptionGroup, UnicodeDecodeError, TimeoutError])
def test_any_class_of_exception_has_its_row(kind: type[BaseException]) -> None:
    app = App("billing", config=Config())
    app.use(ConsumeLater(2, retry_by_error={kind: Fixed(7)}))
    app.agent("orders")(bill)
    rows = {failure.when: failure.delays for failure in app.explain().failures}
    assert rows[f"the handler raises {kind.__name__}"] == (7, 7)


def test_what_stops_the_worker_has_no_row_of_a_failure() -> None:
    app = App("billing", config=Config())
    app.use(ConsumeLater(2, retry_by_error={SystemExit: Fixed(7)}))
    app.agent("orders")(bill)
    assert "the handler raises SystemExit" not in {failure.when for failure in app.explain().failures}


def test_events_that_are_written_behind_do_not_hold_a_message() -> None:
    row = next(failure for failure in explained(mode="async").failures if failure.when == "the disk of the event log fails")
    assert row.then.startswith("goes on")
