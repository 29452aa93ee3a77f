"""Connecting to MariaDB without a server: what asyncmy passes over, and what it leaves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from ackwise.stores.mysql.driver import _closed, _connected


class Connection:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_a_connection_that_passes_over_a_cancellation_is_cancelled_until_it_ends() -> None:
    async def connect() -> Any:
        with suppress(asyncio.CancelledError):  # as `wait_for` may
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await _connected(connect(), _closed)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_connection_that_is_made_although_its_caller_has_gone_is_closed() -> None:
    connection = Connection()

    async def connect() -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return cast(Any, connection)

    task = asyncio.create_task(_connected(connect(), _closed))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.is_closed


async def test_a_connection_that_came_too_late_is_given_back_to_its_pool() -> None:
    given_back = list[object]()

    async def connect() -> Any:
        return cast(Any, connection)

    async def undo(late: object) -> None:
        given_back.append(late)

    connection = Connection()
    task = asyncio.create_task(_connected(connect(), undo))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is there, and its caller does not know yet
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert given_back == [connection]
