"""A batch middleware around handler functions of single messages on Faust: the same as on the other host."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import faust
import pytest
from tests.faust.desk import desk
from tests.tables import each
from tests.waiting import until

from ackwise import CONSUME_LATER, CONSUME_SUCCESS, Batch, CallNext, ConsumeLater, Dedup, Message
from ackwise.plugin.faust import current_batch, handler

VALUES = (b"0", b"1", b"2", b"3")


def failing(handled: list[bytes]) -> Callable[[faust.App], object]:
    """Declares a handler that fails for values above `1`."""

    def declare(app: faust.App) -> None:
        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> None:
            handled.append(message.value)
            assert current_batch().messages == (message,)
            if message.value > b"1":
                raise ValueError(message.value)

    return declare


async def sent(monkeypatch: pytest.MonkeyPatch, *used: Any, values: tuple[bytes, ...] = VALUES) -> tuple[list[bytes], list[Any]]:
    """What was handled, and what was published."""
    handled: list[bytes] = []
    async with desk(monkeypatch, failing(handled), *used) as here:
        here.fetch(*values)
        await here.until_passed(100 + len(values))
        return handled, here.sent()


async def test_it_sees_what_became_of_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def timed(batch: Batch[Any], call_next: CallNext) -> object:
        assert current_batch() is batch
        seen.append([message.value for message in batch])
        said = await call_next(batch)
        assert current_batch() is batch
        seen.extend([said, [type(ruling).__name__ for _, ruling in sorted(batch.rulings.items())]])
        return said

    handled, published = await sent(monkeypatch, timed)
    assert seen == [[*VALUES], CONSUME_LATER, ["Done", "Done", "Delayed", "Delayed"]]
    assert (handled, published) == ([*VALUES], [("billing.delay.10s", b"2"), ("billing.delay.10s", b"3")])


async def test_it_rules_before_on_what_is_not_handled_and_after_on_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ruling(batch: Batch[Any], call_next: CallNext) -> None:
        batch.dead(batch[0], "never")
        await call_next(batch)
        batch.later(batch[1])
        batch.done(batch[2])
        batch.delay_level = 5

    handled, published = await sent(monkeypatch, ruling)
    assert (handled, published) == ([b"1", b"2", b"3"], [("billing.dlq", b"0"), ("billing.delay.1m", b"3")])


async def test_an_ack_index_is_about_what_the_handler_has_not_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopping(batch: Batch[Any], call_next: CallNext) -> object:
        for index, message in enumerate(batch):
            if await call_next(Batch([message])) is CONSUME_LATER:
                batch.ack_index = index - 1
                break
        return CONSUME_SUCCESS

    handled, published = await sent(monkeypatch, stopping)
    assert (handled, [value for _, value in published]) == ([b"0", b"1", b"2"], [b"2", b"3"])


async def test_what_it_raises_is_about_messages_without_a_result_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raising(batch: Batch[Any], call_next: CallNext) -> object:
        await call_next(Batch(batch[1:3]))
        raise KeyError("mine")

    handled, published = await sent(monkeypatch, raising, ConsumeLater(16, no_retry=(ValueError,)))
    assert handled == [b"1", b"2"]
    assert sorted(published) == [("billing.delay.10s", b"0"), ("billing.delay.10s", b"3"), ("billing.dlq", b"2")]


@each(("returned", "number"), [(None, 4), (CONSUME_SUCCESS, 0), (CONSUME_LATER, 4)])
async def test_without_call_next_it_decides_and_nothing_is_no_success(returned: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaving_out(batch: Batch[Any], call_next: CallNext) -> object:
        return returned

    handled, published = await sent(monkeypatch, leaving_out)
    assert (handled, len(published)) == ([], number)


async def test_it_may_call_the_handler_again_for_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def again(batch: Batch[Any], call_next: CallNext) -> object:
        await call_next(batch)
        return await call_next(batch)

    handled, published = await sent(monkeypatch, again)
    assert (handled, [value for _, value in published]) == ([*VALUES, b"2", b"3"], [b"2", b"3"])


async def test_what_would_be_dead_together_runs_again_in_halves_until_the_culprit_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    async def checking(batch: Batch[Any], call_next: CallNext) -> object:
        sizes.append(len(batch))
        if any(message.value == b"1" for message in batch):
            raise KeyError
        return await call_next(batch)

    _, published = await sent(monkeypatch, checking, ConsumeLater(16, no_retry=(KeyError,)), values=(b"0", b"1", b"00", b"01"))
    assert published == [("billing.dlq", b"1")]
    assert sizes[0] == 4
    assert max(sizes[1:]) == 2


async def test_what_it_has_is_given_back_when_the_partition_goes_and_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    handled: list[bytes] = []

    async def waiting(batch: Batch[Any], call_next: CallNext) -> object:
        begun.set()
        await go.wait()
        return await call_next(batch)

    async with desk(monkeypatch, failing(handled), waiting, Dedup("memory://")) as here:
        lanes = here.lanes
        here.fetch(b"0", b"1")
        await begun.wait()
        (lane,) = lanes()
        await here.revoke()
        assert lane.watermark.commit == 100
        go.set()
    assert (handled, here.publisher.sent) == ([], [])


async def test_a_middleware_that_is_cancelled_with_its_actor_leaves_no_message_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()
    cancelled: list[str] = []

    async def around(batch: Batch[Any], call_next: CallNext) -> object:
        try:
            return await call_next(batch)
        except asyncio.CancelledError:
            cancelled.append("middleware")
            raise

    def declare(app: faust.App) -> None:
        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> None:
            if message.value == b"0":
                return
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append("handler")

    async with desk(monkeypatch, declare, around) as here:
        here.fetch(b"0", b"1", b"2")
        await begun.wait()
        await until(lambda: here.lanes()[0].watermark.commit == 101)
        (lane,) = here.lanes()
    assert cancelled == ["handler", "middleware"]
    assert (here.publisher.sent, lane.watermark.commit) == ([], 101)


async def test_a_message_has_failed_if_what_the_middleware_sent_before_it_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[asyncio.Future[Any]] = []

    def declare(app: faust.App) -> None:
        @handler(app, "orders")
        async def bill(message: Message[bytes]) -> None: ...

    async def sending(batch: Batch[Any], call_next: CallNext) -> object:
        await here.app.topic("seen").send(value=b"v")
        return await call_next(batch)

    async with desk(monkeypatch, declare, sending) as here:
        here.client.answer = reports.append
        here.fetch(b"0")
        await until(lambda: reports)
        assert here.lanes()[0].watermark.commit == 100
        reports[0].set_exception(ConnectionError())
        await here.until_passed(101)
        assert here.sent() == [("billing.delay.10s", b"0")]


HOOKS = """
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ackwise import Batch, CallNext, Message

seen: list[str] = []


async def timed(batch: Batch[Any], call_next: CallNext) -> object:
    seen.append("timed")
    return await call_next(batch)


async def each(message: Message[Any], call_next: CallNext) -> object:
    seen.append("each")
    return await call_next(message)
"""


@each("by", ["a variable", "an installed distribution"])
async def test_middleware_that_the_code_does_not_name_wraps_handlers_on_faust(
    by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fausthooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fausthooks", raising=False)
    names = ("fausthooks:timed", "fausthooks:each")
    if by == "a variable":
        monkeypatch.setenv("ACKWISE_MIDDLEWARE", ", ".join(names))
    else:
        monkeypatch.delenv("ACKWISE_MIDDLEWARE", raising=False)
        installed = [EntryPoint(name, name, "ackwise.middleware") for name in names]
        monkeypatch.setattr("ackwise.plugin.registry.announced", lambda group: installed if group == "ackwise.middleware" else [])
    handled, published = await sent(monkeypatch, values=VALUES[:2])
    assert (handled, published) == ([*VALUES[:2]], [])
    assert sys.modules["fausthooks"].seen == ["timed", "each", "each"]
