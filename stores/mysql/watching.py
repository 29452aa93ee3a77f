"""Lets watchers see what is executed on an asyncmy connection before it is sent.

Nothing of asyncmy tells of a statement. So while it is watched, that connection's own `query`, `commit`, `rollback`, `begin`, `autocommit`,
`select_db` and `prepare` look first; nothing of the class is touched, and nothing stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.watching import MARIADB, PREPARED, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncmy.connection import Connection

_METHODS: Final = ("query", "commit", "rollback", "begin", "autocommit", "select_db", "prepare")

_WATCHED: Final[WeakKeyDictionary[Any, Watched[Awaitable[object]]]] = WeakKeyDictionary()


@contextmanager
def watched(connection: Connection, watcher: Watcher[Awaitable[object]]) -> Iterator[None]:
    """Let `watcher` see what is executed on `connection` until the block ends."""
    seen = _WATCHED.setdefault(connection, Watched(MARIADB))
    if seen.by_none:
        vars(connection).update(_looking(connection, seen))
    try:
        with seen.by(watcher):
            yield
    finally:
        if seen.by_none:
            for name in _METHODS:
                vars(connection).pop(name, None)


def unwatched(connection: Connection) -> AbstractContextManager[None]:
    """What is executed in the block is ours: nobody is asked about it."""
    seen = _WATCHED.get(connection)
    return nullcontext() if seen is None else seen.ours()


def _looking(connection: Any, seen: Watched[Awaitable[object]]) -> dict[str, Callable[..., Awaitable[Any]]]:
    """The methods of `connection` that look first."""
    its = {name: getattr(connection, name) for name in _METHODS}
    has_failed = False  # a statement since we know that the transaction is open

    async def see(packet: str | bytes, send: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal has_failed
        is_alone = False
        if has_failed and not seen.is_ours:
            # A deadlock undoes the transaction, and nothing of its error says so. An answer does.
            await connection.ping(reconnect=False)
            has_failed = is_alone = not connection.get_transaction_status()
        try:
            return await execute(seen, packet, send, is_alone=is_alone)
        except MySQLError:
            has_failed = True
            raise

    async def prepare(sql: str | bytes) -> Any:
        if seen.effects(sql):
            raise ConfigurationError(PREPARED)
        return await its["prepare"](sql)

    return {
        "query": lambda sql, unbuffered=False: see(sql, lambda: its["query"](sql, unbuffered)),
        "prepare": prepare,
        "commit": lambda: see("COMMIT", its["commit"]),
        "rollback": lambda: see("ROLLBACK", its["rollback"]),
        "begin": lambda: see("BEGIN", its["begin"]),
        "select_db": lambda db: see("USE db", lambda: its["select_db"](db)),
        "autocommit": lambda value: see(f"SET autocommit = {int(bool(value))}", lambda: its["autocommit"](value)),
    }
