"""Lets a watcher see what is executed on a connection of sqlite3 before it is.

SQLite asks an authorizer about each statement that it is about to prepare, those that sqlite3 makes by itself among them: by `commit`, at
the end of `with connection:`, before a script, and where `isolation_level` or `autocommit` is set. What was prepared before is prepared
again once there is an authorizer. It may refuse a statement, and nothing else.
"""

from __future__ import annotations

import gc
import sqlite3
from types import ModuleType
from typing import Final

from ackwise.stores.sql.watching import SQLITE, Effect, Watch, Watched, Watcher

# A transaction begins where there is none.
_TRANSACTIONS: Final = {
    (sqlite3.SQLITE_TRANSACTION, "BEGIN"): Effect.COMMITS_BY_ITSELF,
    (sqlite3.SQLITE_TRANSACTION, "COMMIT"): Effect.COMMITS,
    (sqlite3.SQLITE_TRANSACTION, "ROLLBACK"): Effect.ROLLS_BACK,
    (sqlite3.SQLITE_SAVEPOINT, "BEGIN"): Effect.SAVEPOINT,
    (sqlite3.SQLITE_SAVEPOINT, "ROLLBACK"): Effect.UNDOES,
}

#: What changes nothing in the file, or belongs to a transaction itself.
_HARMLESS: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_PRAGMA,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
    }
)

_WATCHED: Final[dict[sqlite3.Connection, Watched[None]]] = {}


def is_free(connection: sqlite3.Connection) -> bool:
    """Return whether `connection` has no callback of its user's, as an authorizer would be lost. One may be a tracer, nothing tells."""
    return connection in _WATCHED or ModuleType not in map(type, gc.get_referents(connection))


class watched(Watch[None]):
    """Lets `watcher` see what is executed on `connection` until the block ends. It can't execute anything itself meanwhile.

    A change outside of a transaction is one that commits by itself. What is refused raises `DatabaseError` where it is executed, and what
    the watcher has raised once that leaves the block. An authorizer that was there before is gone, see `is_free`.
    """

    def __init__(self, connection: sqlite3.Connection, watcher: Watcher[None]) -> None:
        super().__init__(_WATCHED.get(connection) or Watched(SQLITE), watcher)
        self._connection = connection
        self._refusals = list[Exception]()

    def hook(self) -> None:
        _WATCHED[self._connection] = self.watched
        self._connection.set_authorizer(self._authorize)

    def unhook(self) -> None:
        del _WATCHED[self._connection]
        self._connection.set_authorizer(None)

    def __exit__(self, *raised: object) -> None:
        self.stop()
        _, error, _ = raised
        if self._refusals and isinstance(error, sqlite3.DatabaseError) and "not authorized" in str(error):
            raise self._refusals[-1] from error

    def _authorize(self, action: int, first: str | None, *_: object) -> int:
        if action not in _HARMLESS and not self._connection.in_transaction:
            effect: Effect | None = Effect.COMMITS_BY_ITSELF
        else:
            effect = _TRANSACTIONS.get((action, first or ""))
        try:
            return sqlite3.SQLITE_OK if effect is None else _asked(self.watched, effect)
        except Exception as error:  # noqa: BLE001  # a watcher's, which sqlite3 would not let through
            self._refusals.append(error)
            return sqlite3.SQLITE_DENY


def _asked(seen: Watched[None], effect: Effect) -> int:
    for _ in seen.steps((effect,)):
        pass
    seen.done((effect,))
    return sqlite3.SQLITE_OK
