"""What `group_by` and `through` do with a message that can't be passed on: a key function that raises ends no forwarding."""

from __future__ import annotations

import asyncio
from typing import Any

import faust
import pytest
from tests.faust.desk import desk


def grouping(raised: dict[bytes, BaseException]) -> Any:
    """Declares an agent whose key function raises what is `raised` for a value."""

    def key_of(value: bytes) -> bytes:
        if value in raised:
            raise raised[value]
        return value

    def declare(app: faust.App) -> None:
        @app.agent(app.topic("orders", value_serializer="raw"), name="bill")
        async def bill(orders: Any) -> None:
            async for _ in orders.group_by(key_of, name="value"):
                pass

    return declare


@pytest.mark.parametrize("error", [ValueError("no key"), asyncio.CancelledError("of something else")], ids=["raised", "cancelled"])
async def test_a_key_function_that_raises_fails_its_own_message_and_the_others_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async with desk(monkeypatch, grouping({b"b": error})) as here:
        here.fetch(b"a", b"b", b"c")
        await here.until_passed(103)
        assert here.client.sent == [b"a", b"c"]
        assert here.sent() == [("billing.delay.10s", b"b")]


async def test_a_key_function_that_stops_the_program_stops_the_worker_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    crashed: list[BaseException] = []

    async def crash(self: object, error: BaseException) -> None:
        crashed.append(error)

    monkeypatch.setattr(faust.App, "crash", crash)
    async with desk(monkeypatch, grouping({b"b": SystemExit(3)})) as here:
        here.fetch(b"a", b"b", b"c")
        await here.until(lambda: bool(crashed), "the end of the worker")
        assert isinstance(here.fatal, SystemExit)
        assert here.sent() == []
        assert await here.committed() == 101
