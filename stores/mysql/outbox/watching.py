"""Sees savepoints, commits and rollbacks on an asyncmy connection, whoever executes them.

Nothing of asyncmy tells of a savepoint. So while an outbox has a transaction on a connection, that connection's own `query`, `commit`,
`rollback`, `begin`, `autocommit` and `prepare` look first; nothing of the class is touched, and nothing stays.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from ackwise.middleware.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["Watcher", "watched"]

_GAP: Final = r"(?:\s|--[^\n]*\n|#[^\n]*\n|/\*(?!!).*?\*/|\()*"
_READ_OR_WRITE: Final = r"(?:select|insert|update|delete|replace|with|values|table|show|explain|describe|desc|do)\b"

#: Statements that neither open a savepoint nor end a transaction, in the whole packet. All others are taken for some that may: many of
#: MySQL's end the transaction that is open, and a procedure can do anything.
_PLAIN: Final = re.compile(rf"^{_GAP}{_READ_OR_WRITE}", re.IGNORECASE | re.DOTALL)
_AND_ANOTHER: Final = re.compile(rf";{_GAP}(?!{_READ_OR_WRITE})[\w/]", re.IGNORECASE | re.DOTALL)
_ROLLBACK: Final = re.compile(rf"^{_GAP}rollback(?:\s+work)?(\s+to\b)?", re.IGNORECASE | re.DOTALL)
_COMMIT: Final = re.compile(rf"^{_GAP}commit\b", re.IGNORECASE | re.DOTALL)


class Watcher(Protocol):
    """Whoever has rows for the transaction that is open on a connection."""

    async def flush(self) -> None:
        """Write them: a savepoint, or what may end the transaction, comes next."""
        ...

    async def complete(self) -> None:
        """Write them for good: the commit comes next."""
        ...

    def drop(self, *, ended: bool) -> None:
        """Forget them: what they belong to was rolled back, and with `ended` the whole transaction."""
        ...


_WATCHERS: Final[WeakKeyDictionary[Any, list[Watcher]]] = WeakKeyDictionary()


@contextmanager
def watched(connection: Connection, watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of savepoints and ends until the block ends."""
    watchers = _WATCHERS.setdefault(connection, [])
    if not watchers:
        vars(connection).update(_looking(connection, watchers))
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)
        if not watchers:
            for name in _METHODS:
                vars(connection).pop(name, None)


_METHODS: Final = ("query", "commit", "rollback", "begin", "autocommit", "prepare")


def _is_plain(statement: str) -> bool:
    return _PLAIN.match(statement) is not None and (";" not in statement or not _AND_ANOTHER.search(statement))


def _looking(connection: Any, watchers: list[Watcher]) -> dict[str, Callable[..., Awaitable[Any]]]:
    """The methods of `connection` that look first."""
    its = {name: getattr(connection, name) for name in _METHODS}
    is_ours = False  # a statement of the watchers' own

    async def seen(statement: str, execute: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal is_ours
        if is_ours or _is_plain(statement):
            return await execute()
        rollback = _ROLLBACK.match(statement)
        is_ours = True
        try:
            for watcher in () if rollback else watchers[::-1]:
                await (watcher.complete() if _COMMIT.match(statement) else watcher.flush())
        finally:
            is_ours = False
        answer = await execute()
        for watcher in [*watchers] if rollback else []:
            watcher.drop(ended=rollback is not None and rollback[1] is None)
        return answer

    async def query(sql: str | bytes, unbuffered: bool = False) -> Any:
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        return await seen(text, lambda: its["query"](sql, unbuffered))

    async def prepare(sql: str | bytes) -> Any:
        if not _is_plain(sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")):
            raise ConfigurationError(
                "a savepoint, or what may end a transaction, can't be a prepared statement inside outbox.transaction; execute it"
            )
        return await its["prepare"](sql)

    return {
        "query": query,
        "prepare": prepare,
        "commit": lambda: seen("COMMIT", its["commit"]),
        "rollback": lambda: seen("ROLLBACK", its["rollback"]),
        "begin": lambda: seen("BEGIN", its["begin"]),
        "autocommit": lambda value: seen("SET autocommit", lambda: its["autocommit"](value)),
    }
