"""Objects of the user's on Faust: whatever they do, the agent lives, and the next message runs."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import faust
import pytest
from tests.faust.desk import desk
from tests.hostileobjects import KINDS, Odd, contained, hostile_error, hostile_value
from tests.tables import each

from ackwise import Batch, ConsumeLater, Dedup, Message
from ackwise.plugin.faust import handler

LATER = "billing.delay.10s"

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def of_messages(act: Any) -> Any:
    async def bill(message: Message[bytes]) -> Any:
        return await act(message)

    return lambda app: handler(app, "orders")(bill)


def of_batches(act: Any) -> Any:
    async def bill(batch: Batch[bytes]) -> Any:
        return await act(batch[0])

    return lambda app: handler(app, "orders", max_batch=1)(bill)


def a_loop(act: Any) -> Any:
    async def bill(stream: Any) -> None:
        async for event in stream.events():
            await act(event.message)

    def declare(app: faust.App) -> None:
        app.agent(app.topic("orders", value_serializer="raw"), name="bill")(bill)

    return declare


@each("kind", KINDS)
@contained
async def test_a_handler_may_return_any_object(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    for declare in (of_messages, of_batches):

        async def act(message: Any) -> Any:
            return hostile_value(kind) if message.offset == 100 else None

        async with desk(monkeypatch, declare(act), Dedup("memory://", key=lambda message: str(message.offset))) as here:
            here.fetch(b"a", b"b")
            await here.until_passed(102)
            assert here.sent() == [(LATER, b"a")]


@each("kind", [ValueError, Odd, SystemExit])
@contained
async def test_a_handler_and_an_agent_may_raise_any_exception(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    for declare in (of_messages, of_batches, a_loop):
        for base in (Exception, ExceptionGroup, ConsumeLater):

            async def act(message: Any, base: Any = base) -> None:
                if message.offset == 100:
                    raise hostile_error(kind, base)

            async with desk(monkeypatch, declare(act)) as here:
                here.fetch(b"a", b"b")
                await here.until_passed(102)
                assert here.sent() == [(LATER, b"a")]


@each("kind", [ValueError, Odd, SystemExit])
@contained
async def test_an_agent_goes_on_whatever_its_on_error_raises(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    async def on_error(*_: object) -> None:
        raise hostile_error(kind)

    async def bill(stream: Any) -> None:
        async for value in stream:
            if value == b"a":
                raise ValueError

    def declare(app: faust.App) -> None:
        agent: Any = app.agent(app.topic("orders", value_serializer="raw"), name="bill")(bill)
        agent._on_error = on_error

    async with desk(monkeypatch, declare) as here:
        here.fetch(b"a", b"b")
        await here.until_passed(102)
        assert here.sent() == [(LATER, b"a")]


@contained
async def test_what_a_call_leaves_of_a_cancellation_meets_no_other_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for declare in (of_messages, of_batches):
        met: list[int] = []

        async def act(message: Any, met: list[int] = met) -> None:
            task = asyncio.current_task()
            assert task is not None
            met.append(task.cancelling())
            task.cancel()
            if message.offset == 101:
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(0)

        async with desk(monkeypatch, declare(act)) as here:
            here.fetch(b"a", b"b", b"c")
            await here.until_passed(103)
            assert (here.sent(), met) == ([], [0, 0, 0])


@contained
async def test_a_cancellation_that_an_agent_raises_fails_its_message_whatever_it_took_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(message: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message.offset == 100:
            task.cancel()  # it takes the cancellation, and never says so to its task
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)
        if message.offset == 101:
            raise asyncio.CancelledError

    async with desk(monkeypatch, a_loop(act)) as here:
        here.fetch(b"a", b"b", b"c")
        await here.until_passed(103)
        assert here.sent() == [(LATER, b"b")]


@contained
async def test_a_variable_that_a_handler_sets_is_seen_by_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    async def act(message: Any) -> None:
        seen.append(tenant.get())
        tenant.set("ann")

    for declare in (of_messages, of_batches):
        async with desk(monkeypatch, declare(act)) as here:
            here.fetch(b"a", b"b")
            await here.until_passed(102)
    assert seen == ["nobody"] * 4
