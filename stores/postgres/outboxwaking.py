"""`Waking`: relays of other processes learn of commits, by a notification that is sent beside the business transaction, if one is idle.

A NOTIFY in the business transaction would hold a lock of the whole database to the end of each commit. So it is sent on a connection of
ours, at most every 50 ms, and only if a relay has said that it waits: what it waits for has `idle_until` in its row until then.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import asyncpg

from ackwise.middleware.errors import AckwiseError
from ackwise.stores.protocol.outboxwaking import Wakes
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.outbox.dialect import Dialect

if TYPE_CHECKING:
    from asyncpg import Pool
    from asyncpg.pool import PoolConnectionProxy

_EVERY: Final = 0.05
"""Seconds between two notifications."""


_NOTIFY: Final = """
WITH idle AS (UPDATE {relays} SET idle_until = NULL WHERE idle_until > {now} RETURNING owner)
SELECT pg_notify(:channel, '') FROM (SELECT FROM idle LIMIT 1) AS somebody
"""
_SAY_IDLE: Final = "UPDATE {relays} SET idle_until = {later at_most} WHERE owner = :owner"
_NEWEST: Final = "SELECT max(id) FROM {rows} WHERE state = {LOCAL_COMMIT} AND NOT behind"


def channel_of(rows: str) -> str:
    """Return the channel of the notifications about a table: a name of any length would be cut."""
    return f"ackwise_outbox_{hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()}"


def notify(sql: Dialect, channel: str) -> Steps[None]:
    """Notify relays of other processes, if one waits."""
    yield [sql.say(_NOTIFY, channel=channel)]


def say_idle(sql: Dialect, owner: str, at_most: float) -> Steps[int | None]:
    """Say that `owner` waits; return the highest id of a row to be sent."""
    _, newest = yield sql.say_all((_SAY_IDLE, _NEWEST), owner=owner, at_most=at_most)
    found: int | None = newest.rows[0][0]
    return found


class Waking:
    """The side of those who commit: `soon` returns at once, and what it begins ends with `close`."""

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.sent = 0  #: how often the database was asked to notify

    def soon(self) -> None:
        """There was a commit. To be called in the event loop of the outbox."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._notify_relays(), name="ackwise wakes relays")

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _notify_relays(self) -> None:
        while self._again:
            self._again = False
            self.sent += 1
            with suppress(AckwiseError):  # a relay looks by itself, too
                await self._notify()
            await asyncio.sleep(_EVERY)


class Listening:
    """The side of a relay: a connection of its own that turns notifications into wakes of this process."""

    def __init__(self, channel: str, wakes: Wakes) -> None:
        self._channel, self._wakes = channel, wakes
        self._connection: PoolConnectionProxy | None = None
        self._pool: Pool | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nobody listens."""
        try:
            return self._connection is None or self._connection.is_closed()
        except asyncpg.InterfaceError:  # the pool has taken it back, since it broke
            return True

    async def ensure(self, pool: Pool, timeout: float) -> None:
        """Listen, if that is not so already. Raises what asyncpg raises."""
        if not self.is_lost:
            return
        await self.close()
        self._pool = pool
        self._connection = await pool.acquire(timeout=timeout)
        await self._connection.add_listener(self._channel, self._notified)

    async def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pool is not None:
            with suppress(asyncpg.InterfaceError):
                connection.terminate()
            with suppress(asyncpg.InterfaceError, OSError):
                await self._pool.release(connection)

    def _notified(self, *_: object) -> None:
        self._wakes.wake()
