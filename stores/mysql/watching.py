"""Lets watchers see what is executed on an asyncmy connection before it is sent.

Nothing of asyncmy tells of a statement. So while it is watched, that connection's own `query`, `commit`, `rollback`, `begin`, `autocommit`
and `prepare` look first; nothing of the class is touched, and nothing stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.watching import MARIADB, PREPARED, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["watched"]

_METHODS: Final = ("query", "commit", "rollback", "begin", "autocommit", "prepare")

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


def _looking(connection: Any, seen: Watched[Awaitable[object]]) -> dict[str, Callable[..., Awaitable[Any]]]:
    """The methods of `connection` that look first."""
    its = {name: getattr(connection, name) for name in _METHODS}

    async def prepare(sql: str | bytes) -> Any:
        if seen.effects(sql):
            raise ConfigurationError(PREPARED)
        return await its["prepare"](sql)

    return {
        "query": lambda sql, unbuffered=False: execute(seen, sql, lambda: its["query"](sql, unbuffered)),
        "prepare": prepare,
        "commit": lambda: execute(seen, "COMMIT", its["commit"]),
        "rollback": lambda: execute(seen, "ROLLBACK", its["rollback"]),
        "begin": lambda: execute(seen, "BEGIN", its["begin"]),
        "autocommit": lambda value: execute(seen, f"SET autocommit = {int(bool(value))}", lambda: its["autocommit"](value)),
    }
