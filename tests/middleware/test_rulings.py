"""From what a handler did to one disposition per message; the rows A.. are RocketMQ's, with offsets from 100."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.results import ERROR, RESULTS, Back, Handler, handler
from tests.tables import each

from ackwise.middleware.errors import InvalidRuling
from ackwise.middleware.message import raising
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, CONSUME_SUCCESS, DONE, Dead, Delayed, Disposition, Done, Reason
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.pipeline.rulings import dispositions_of
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.progress.watermark import Watermark
from ackwise.middleware.usercode import STOPS, Raised, Returned, stops


def batch_of(size: int) -> Batch[bytes]:
    return Batch([Message(Delivery("orders", 0, 100 + i, 0, None, b"", (), Origin("orders", 0, 100 + i, 0)), b"") for i in range(size)])


def result_of(handler: Handler, batch: Batch[bytes]) -> Returned[Any] | Raised:
    try:
        return Returned(handler(batch))
    except BaseException as error:  # noqa: BLE001  # the handler stands for user code
        return Raised(error)


def ruled(size: int, handler: Handler, *, keep_ack_index_on_error: bool = False) -> list[Disposition]:
    batch = batch_of(size)
    return dispositions_of(batch, result_of(handler, batch), handler="charge", keep_ack_index_on_error=keep_ack_index_on_error)


def sent_back(dispositions: list[Disposition]) -> Back:
    """Offset and level of what comes back later."""
    return [(100 + index, ruling.delay_level) for index, ruling in enumerate(dispositions) if isinstance(ruling, Delayed)]


@each(("size", "handle", "back"), RESULTS)
def test_what_comes_back_and_the_watermark_passes_the_whole_batch(size: int, handle: Handler, back: Back) -> None:
    dispositions = ruled(size, handle)
    assert sent_back(dispositions) == back
    assert [ruling for ruling in dispositions if not isinstance(ruling, Delayed)] == [DONE] * (size - len(back))
    watermark = Watermark()
    for index in range(size):
        watermark.track(100 + index)
    for index in range(size):
        watermark.finish(100 + index)
    assert watermark.commit == 100 + size


def test_an_empty_batch_has_no_rulings() -> None:
    assert ruled(0, handler()) == ruled(0, handler(ERROR)) == []


@each("ack_index", [pytest.param(-2, id="A07"), pytest.param(-3, id="A08")])
def test_an_ack_index_below_none_is_refused_where_it_is_set(ack_index: int) -> None:
    with pytest.raises(InvalidRuling):
        batch_of(5).ack_index = ack_index


@each(("level", "decision"), [pytest.param(-1, Dead(Reason.NEGATIVE_DELAY_LEVEL), id="A16")])
def test_a_negative_level_is_a_dead_letter(level: int, decision: Dead) -> None:
    first = ruled(2, handler(CONSUME_LATER, delay_level=level))[0]
    assert isinstance(first, Delayed)
    assert ConsumeLater().decide(first, 0) == decision


def test_a_result_that_is_no_status_names_the_handler_and_the_type() -> None:
    first = ruled(1, handler({"ok": True}))[0]
    assert isinstance(first, Delayed)
    assert first.failure is not None
    assert first.failure.error == "InvalidHandlerResult"
    assert first.failure.message == "handler 'charge' returned a dict; it must return None, CONSUME_SUCCESS or CONSUME_LATER"


def test_a_failure_carries_what_was_raised() -> None:
    first = ruled(1, handler(ERROR))[0]
    assert isinstance(first, Delayed)
    assert first.failure is not None
    assert (first.failure.error, first.failure.message) == ("ValueError", "bad amount")


@each(
    ("handle", "back"),
    [
        pytest.param(handler(ERROR, ack_index=1), [(102, 0)], id="A15-kept"),
        pytest.param(handler(ERROR, ack_index=-1), [(100, 0), (101, 0), (102, 0)], id="A15-none"),
        pytest.param(handler(ERROR), [(100, 0), (101, 0), (102, 0)], id="A15-untouched-is-not-all"),
        pytest.param(handler(CONSUME_LATER, ack_index=1), [(100, 0), (101, 0), (102, 0)], id="A15-only-on-errors"),
    ],
)
def test_a_prefix_that_was_set_survives_an_exception_if_that_is_asked_for(handle: Handler, back: Back) -> None:
    assert sent_back(ruled(3, handle, keep_ack_index_on_error=True)) == back


@each("result", [None, CONSUME_LATER, "no status", ERROR, Reject("all")], ids=str)
def test_a_ruling_on_one_message_wins_over_prefix_and_result(result: object) -> None:
    def handle(batch: Batch[bytes]) -> object:
        batch.ack_index = 0
        batch.later(batch[0], delay=30)
        batch.done(batch[1])
        batch.dead(batch[2], "no such customer")
        return handler(result)(batch)

    assert ruled(3, handle) == [Delayed(delay=30.0), DONE, Dead("no such customer")]


def test_a_rejected_batch_is_dead_but_for_what_was_ruled() -> None:
    def handle(batch: Batch[bytes]) -> None:
        batch.done(batch[0])
        raise Reject("no such currency")

    first, second = ruled(2, handle)
    assert first == DONE
    assert isinstance(second, Dead)
    assert (second.reason, second.failure and second.failure.message) == (Reason.REJECTED, "no such currency")


@each(
    ("error", "level", "delay"),
    [
        (raising.Later(), 5, None),
        (raising.Later(level=3), 3, None),
        (raising.Later(level=0), 0, None),
        (raising.Later(level=-1), -1, None),
        (raising.Later("30s"), 0, 30.0),
        (raising.Later(0), 0, 0.0),
    ],
    ids=str,
)
def test_a_raised_later_beats_the_level_of_the_batch_if_it_has_one(error: raising.Later, level: int, delay: float | None) -> None:
    first = ruled(1, handler(error, delay_level=5))[0]
    assert isinstance(first, Delayed)
    assert (first.delay_level, first.delay) == (level, delay)


@each("error", [ConsumeLater(30), ConsumeLater(), ExceptionGroup("both", [ConsumeLater(), ValueError()])], ids=str)
def test_a_policy_that_is_raised_fails_the_messages_with_what_to_raise(error: Exception) -> None:
    first = ruled(1, handler(error, delay_level=5))[0]
    assert isinstance(first, Delayed)
    assert (first.delay_level, first.delay, first.failure and first.failure.error) == (5, None, "InvalidHandlerResult")
    assert first.failure is not None
    assert first.failure.message.endswith(
        'raised ConsumeLater, which is a policy for app.use; raise Later("30s"), Later(level=3) or Reject("why")'
    )


@each("asked", [raising.Later("30s"), Reject("no")])
def test_what_is_to_be_raised_and_is_returned_fails_the_messages(asked: Exception) -> None:
    (first,) = dispositions_of(batch_of(1), Returned(asked), handler="bill")
    assert isinstance(first, Delayed)
    assert first.failure is not None
    assert first.failure.message.endswith(f"returned a {type(asked).__name__}; raise it")


def test_what_stops_the_app_is_listed_once() -> None:
    assert set(STOPS) == {SystemExit, KeyboardInterrupt, GeneratorExit}


results = st.sampled_from([None, CONSUME_SUCCESS, CONSUME_LATER, True, ERROR, Reject("all"), raising.Later(1)])


@given(st.integers(0, 8), results, st.none() | st.integers(-1, 10), st.booleans(), st.dictionaries(st.integers(0, 7), st.booleans()))
def test_every_message_gets_one_ruling_and_only_success_makes_it_done(
    size: int, result: object, ack_index: int | None, keep: bool, single: dict[int, bool]
) -> None:
    def handle(batch: Batch[bytes]) -> object:
        for index, done in single.items():
            if index < size:
                (batch.done if done else batch.dead)(batch[index])
        return handler(result, ack_index=ack_index)(batch)

    dispositions = ruled(size, handle, keep_ack_index_on_error=keep)
    assert len(dispositions) == size
    prefix = -1
    if result is None or result is CONSUME_SUCCESS:
        prefix = size - 1 if ack_index is None else ack_index
    elif isinstance(result, BaseException) and keep and ack_index is not None:
        prefix = ack_index
    for index, ruling in enumerate(dispositions):
        assert isinstance(ruling, Done) == single.get(index, index <= prefix)


@each("level_first", [True, False])
def test_a_message_that_is_ruled_later_alone_comes_at_the_level_of_the_batch(level_first: bool) -> None:
    batch = batch_of(2)
    if level_first:
        batch.delay_level = 4
    batch.later(batch[1])
    batch.delay_level = 4
    assert batch.ruling(1) is batch.rulings[1]
    assert dispositions_of(batch, Returned(None), handler="bill") == [DONE, Delayed(4)]


def test_a_message_with_a_level_of_its_own_keeps_it_and_0_lets_the_policy_decide() -> None:
    batch = batch_of(2)
    batch.delay_level = 4
    batch.later(batch[0], delay_level=0)
    batch.later(batch[1], delay="5m")
    assert dispositions_of(batch, Returned(None), handler="bill") == [Delayed(0), Delayed(0, 300.0)]


def said(*errors: Exception) -> Disposition:
    batch = batch_of(1)
    batch.delay_level = 2
    (disposition,) = dispositions_of(batch, Raised(ExceptionGroup("several tasks failed", [*errors])), handler="bill")
    return disposition


def test_a_group_of_exceptions_that_all_say_the_same_means_that() -> None:
    nested = ExceptionGroup("more", [raising.Later(level=3), raising.Later(level=3)])
    assert isinstance(rejected := said(Reject("a"), Reject("b")), Dead)
    assert rejected.reason == Reason.REJECTED
    for errors, level, delay in (
        ([raising.Later(level=3), nested], 3, None),
        ([raising.Later("5m"), raising.Later(300)], 0, 300.0),
        ([raising.Later(), raising.Later()], 2, None),
    ):
        assert isinstance(later := said(*errors), Delayed)
        assert (later.delay_level, later.delay) == (level, delay)


@each("errors", [[Reject("a"), ValueError()], [raising.Later(level=3), raising.Later(level=4)], [raising.Later(), Reject("a")]])
def test_a_group_that_does_not_agree_has_failed_as_any_other_exception(errors: list[Exception]) -> None:
    disposition = said(*errors)
    assert isinstance(disposition, Delayed)
    assert (disposition.delay_level, disposition.failure and disposition.failure.error) == (2, "ExceptionGroup")


def test_a_group_of_what_stops_a_program_stops_the_app() -> None:
    assert stops(BaseExceptionGroup("all", [SystemExit(), KeyboardInterrupt()]))
    assert not stops(BaseExceptionGroup("some", [SystemExit(), ValueError()]))
