"""Lets watchers see what is executed on an asyncmy connection before it is sent.

Nothing of asyncmy tells of a statement. So while it is watched, the connection's class is a subclass of its own, whose `query`, `commit`,
`rollback`, `begin`, `autocommit`, `select_db` and `prepare` look first. Nothing else of asyncmy is touched, and nothing stays.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.watching import MARIADB, PREPARED, Watch, Watched, Watcher, execute

if TYPE_CHECKING:
    from asyncmy.connection import Connection

_SEEN: Final = "ackwise_watched"


class watched(Watch[Awaitable[object]]):
    """Lets `watcher` see what is executed on `connection`."""

    def __init__(self, connection: Connection, watcher: Watcher[Awaitable[object]]) -> None:
        super().__init__(vars(connection).get(_SEEN) or _Watched(MARIADB), watcher)
        self._connection: Any = connection

    def hook(self) -> None:
        vars(self._connection)[_SEEN] = self.watched
        self._connection.__class__ = _watching(self._connection.__class__)

    def unhook(self) -> None:
        self._connection.__class__ = self._connection.__class__.__mro__[1]
        del vars(self._connection)[_SEEN]


class _Watched(Watched[Awaitable[object]]):
    has_failed = False  #: a statement since we know that the transaction is open


@functools.cache
def _watching(kind: Any) -> type:
    """The subclass of a class of connections that looks at statements first; it has its name and nothing more in it."""

    async def prepare(self: Any, sql: str | bytes) -> Any:
        if vars(self)[_SEEN].effects(sql):
            raise ConfigurationError(PREPARED)
        return await kind.prepare(self, sql)

    methods: dict[str, Callable[..., Awaitable[Any]]] = {
        "query": lambda self, sql, unbuffered=False: _look(self, sql, lambda: kind.query(self, sql, unbuffered)),
        "prepare": prepare,
        "commit": lambda self: _look(self, "COMMIT", lambda: kind.commit(self)),
        "rollback": lambda self: _look(self, "ROLLBACK", lambda: kind.rollback(self)),
        "begin": lambda self: _look(self, "BEGIN", lambda: kind.begin(self)),
        "select_db": lambda self, db: _look(self, "USE db", lambda: kind.select_db(self, db)),
        "autocommit": lambda self, value: _look(self, f"SET autocommit = {int(bool(value))}", lambda: kind.autocommit(self, value)),
    }
    return type(kind.__name__, (kind,), {**methods, "__slots__": ()})


async def _look(connection: Any, packet: str | bytes, send: Callable[[], Awaitable[Any]]) -> Any:
    watched: _Watched = vars(connection)[_SEEN]
    is_alone = False
    if watched.has_failed and not watched.is_ours:
        # A deadlock undoes the transaction, and nothing of its error says so. An answer does.
        await connection.ping(reconnect=False)
        watched.has_failed = is_alone = not connection.get_transaction_status()
    try:
        return await (send() if watched.is_ours else execute(watched, packet, send, is_alone=is_alone))
    except MySQLError:
        watched.has_failed = True
        raise
