"""Cancellations that user code left behind in the task of an actor: nothing of them is taken for the actor's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import faust
import pytest
from tests.faust.desk import desk
from tests.tables import each


async def leave_a_cancellation() -> None:
    """As a time-out does that cancels the task and forgets to take it back."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling()


async def await_what_was_cancelled() -> None:
    """Raises the cancellation of something else."""
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


class Billing:
    """What agents do with a message: each leaves a cancellation, and those named `bad` fail by that of something else."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.actors = 0  #: how often an actor was started

    async def bill(self, value: bytes) -> None:
        self.seen.append(value)
        await leave_a_cancellation()
        if value == b"bad":
            await await_what_was_cancelled()

    async def values(self, stream: Any) -> None:
        self.actors += 1
        async for value in stream:
            await self.bill(value)

    async def takes(self, stream: Any) -> None:
        self.actors += 1
        async for values in stream.take(1, within=0):
            await self.bill(values[0])

    async def yields(self, stream: Any) -> AsyncIterator[bytes]:
        self.actors += 1
        async for value in stream:
            await self.bill(value)
            yield value

    async def processes(self, stream: Any) -> None:
        self.actors += 1
        stream.add_processor(self._process)
        async for _ in stream:
            pass

    async def _process(self, value: bytes) -> bytes:
        await self.bill(value)
        return value


@each("style", [Billing.values, Billing.takes, Billing.yields, Billing.processes])
async def test_what_fails_beside_a_leftover_cancellation_comes_later_and_its_actor_goes_on(style: Callable[..., Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        billing = Billing()

        def declare(app: faust.App) -> None:
            async def bill(stream: Any) -> None:
                await style(billing, stream)

            fun = (lambda stream: style(billing, stream)) if style is Billing.yields else bill
            app.agent(app.topic("orders", value_serializer="raw"), name="bill")(fun)

        async with desk(patch, declare) as scene:
            started = asyncio.get_running_loop().time()
            scene.fetch(b"a", b"bad", b"bad", b"b")
            await scene.until_passed(104)
            assert [value for _, value in scene.sent()] == [b"bad", b"bad"]
            assert sorted(billing.seen) == [b"a", b"b", b"bad", b"bad"]
            assert asyncio.get_running_loop().time() - started < 3, "no actor waited for its supervisor"


async def test_what_can_not_be_forwarded_beside_a_leftover_cancellation_comes_later_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    billing = Billing()

    async def key(value: bytes) -> bytes:
        await billing.bill(value)
        return b"k"

    def declare(app: faust.App) -> None:
        @app.agent(app.topic("orders", value_serializer="raw"), name="bill")
        async def bill(stream: Any) -> None:
            async for _ in stream.group_by(key, name="billed"):
                pass

    async with desk(monkeypatch, declare) as scene:
        scene.fetch(b"a", b"bad", b"b")
        await scene.until_passed(103)
        assert [value for _, value in scene.sent()] == [b"bad"]
        assert billing.seen == [b"a", b"bad", b"b"]
