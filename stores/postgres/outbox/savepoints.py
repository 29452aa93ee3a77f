"""Sees savepoints, commits and rollbacks on an asyncpg connection, whoever executes them.

`connection.transaction()` inside of another is a savepoint that nothing public tells of before it opens: query loggers are called
afterwards, and later than the next line of the caller. So while an outbox has a transaction on a connection, the connection's class is a
subclass of its own, whose `execute` and `fetch…` look at the statement first. Nothing else of asyncpg is touched, and nothing stays.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from ackwise.middleware.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["Watcher", "watched"]

_GAP: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_FIRST_WRITE: Final = re.compile(rf"(?:^|;){_GAP}(?:savepoint|commit|end)\b|;{_GAP}(?:rollback|abort)\b", re.IGNORECASE | re.DOTALL)
_ROLLS_BACK: Final = re.compile(rf"^{_GAP}(?:rollback|abort)\b", re.IGNORECASE | re.DOTALL)

_METHODS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval")


class Watcher(Protocol):
    """Whoever has rows for the transaction that is open on a connection."""

    async def flush(self) -> None:
        """Write them: a savepoint or the end of the transaction comes next."""
        ...

    def drop(self) -> None:
        """Forget them: what they belong to was rolled back."""
        ...


_WATCHERS: Final[WeakKeyDictionary[Any, list[Watcher]]] = WeakKeyDictionary()


@contextmanager
def watched(connection: Connection | PoolConnectionProxy, watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of savepoints until the block ends."""
    raw = getattr(connection, "_con", None) or connection  # a pool's proxy calls the methods of the class of what it stands for
    watchers = _WATCHERS.setdefault(raw, [])
    if not watchers:
        raw.__class__ = _watching(raw.__class__)
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)
        if not watchers:
            raw.__class__ = raw.__class__.__mro__[1]


@functools.cache
def _watching(kind: type) -> type:
    """The subclass of a class of connections that looks at statements first; it has its name and nothing more in it."""
    methods: dict[str, Any] = {name: _looking(getattr(kind, name)) for name in _METHODS}
    return type(kind)(kind.__name__, (kind,), {**methods, "prepare": _refusing(kind.prepare), "__slots__": ()})  # type: ignore[attr-defined]


def _looking(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def look(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        rolls_back = _ROLLS_BACK.search(statement) is not None
        if not rolls_back and _FIRST_WRITE.search(statement):
            for watcher in [*_WATCHERS.get(self, ())]:
                await watcher.flush()
        answer = await method(self, statement, *args, **kwargs)
        if rolls_back:
            for watcher in _WATCHERS.get(self, ()):
                watcher.drop()
        return answer

    return look


def _refusing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A prepared statement is executed past the connection."""

    @functools.wraps(method)
    async def prepare(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        if _ROLLS_BACK.search(statement) or _FIRST_WRITE.search(statement):
            raise ConfigurationError(
                "a savepoint, a commit or a rollback can't be a prepared statement inside outbox.transaction; "
                "use `async with connection.transaction():`, or execute it"
            )
        return await method(self, statement, *args, **kwargs)

    return prepare
