"""Lets watchers see what is executed on an asyncpg connection before it is sent.

`connection.transaction()` inside of another is a savepoint that nothing public tells of before it opens: query loggers are called
afterwards, and later than the next line of the caller. So while it is watched, the connection's class is a subclass of its own, whose
`execute` and `fetch…` look at the statement first. Nothing else of asyncpg is touched, and nothing stays.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.watching import POSTGRES, PREPARED, Watch, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

_METHODS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany")

_WATCHED: Final[WeakKeyDictionary[Any, Watched[Awaitable[object]]]] = WeakKeyDictionary()


class watched(Watch[Awaitable[object]]):
    """Lets `watcher` see what is executed on `connection`."""

    def __init__(self, connection: Connection | PoolConnectionProxy, watcher: Watcher[Awaitable[object]]) -> None:
        # A pool's proxy calls the methods of the class of what it stands for.
        self._raw: Any = getattr(connection, "_con", None) or connection
        super().__init__(_WATCHED.get(self._raw) or _WATCHED.setdefault(self._raw, Watched(POSTGRES)), watcher)

    def hook(self) -> None:
        self._raw.__class__ = _watching(self._raw.__class__)

    def unhook(self) -> None:
        self._raw.__class__ = self._raw.__class__.__mro__[1]


@functools.cache
def _watching(kind: type) -> type:
    """The subclass of a class of connections that looks at statements first; it has its name and nothing more in it."""
    methods: dict[str, Any] = {name: _looking(getattr(kind, name)) for name in _METHODS}
    return type(kind)(kind.__name__, (kind,), {**methods, "prepare": _refusing(kind.prepare), "__slots__": ()})  # type: ignore[attr-defined]


def _looking(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def look(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        return await execute(_WATCHED[self], statement, lambda: method(self, statement, *args, **kwargs))

    return look


def _refusing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A prepared statement is executed past the connection."""

    @functools.wraps(method)
    async def prepare(self: Any, statement: str, *args: Any, **kwargs: Any) -> Any:
        if _WATCHED[self].effects(statement):
            raise ConfigurationError(PREPARED)
        return await method(self, statement, *args, **kwargs)

    return prepare
