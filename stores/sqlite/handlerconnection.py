"""`HandlerConnection`: the connection of a SQLite inbox, on which a handler can neither end its transaction nor go on without it.

Its cursors check each statement before it runs. SQLite asks an authorizer about each statement that it prepares, including those that
sqlite3 runs by itself: at `commit`, the end of `with connection:`, a script, or a new `isolation_level` or `autocommit`. An authorizer
can only refuse a statement. Earlier statements are prepared again once it is set.
"""

from __future__ import annotations

import functools
import gc
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, cast

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.stores.sql.inbox import ENDED, REFUSED
from ackwise.stores.sql.watching import ENDING, SQLITE, Effect, Watch, Watched, Watcher

# A transaction starts where there is none.
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

    A change or a savepoint outside of a transaction is one that commits by itself. What is refused raises `DatabaseError` where it is
    executed, and what the watcher has raised once that leaves the block. An authorizer that was there before is gone, see `is_free`.
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
        effect = _TRANSACTIONS.get((action, first or ""))
        # Also a savepoint: outside of a transaction it is one, which its RELEASE commits.
        is_change = action not in _HARMLESS or effect is Effect.SAVEPOINT
        if is_change and not self._connection.in_transaction:
            effect = Effect.COMMITS_BY_ITSELF
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


_COMMITTING: Final = frozenset({"isolation_level", "autocommit"})
"""Attributes that commit what is open when they are set."""

_STAYS: Final = re.compile(r"\b(?:pragma|attach|detach|temp|temporary)\b", re.IGNORECASE)
"""Words of statements that may leave state on their connection."""


class HandlerConnection(sqlite3.Connection):
    """An `sqlite3.Connection` that is as every other, except while it is `guarded`."""

    _is_guarded = False
    is_used_up = False
    """True if it may have state that a later handler must not see."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A handler has the connection, in a transaction that is open, until the block ends."""
        self._is_guarded = True
        try:
            yield
        finally:
            self._is_guarded = False

    def look(self, statement: str) -> None:
        """Raise `TransactionAborted` for a statement that would end the transaction, and for any once it has ended."""
        if not self._is_guarded:
            return
        self._require_transaction()
        if not ENDING.isdisjoint(SQLITE.effects(statement)):
            raise TransactionAborted(REFUSED)
        self.is_used_up = self.is_used_up or _STAYS.search(statement) is not None

    def refuse(self) -> None:
        """Raise `TransactionAborted`: what comes next ends a transaction."""
        if self._is_guarded:
            raise TransactionAborted(REFUSED)

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        """As `sqlite3` does, except that the cursor looks at statements."""
        if not isinstance(factory, type):
            raise ConfigurationError("the connection of a SQLiteInbox makes cursors of a class; give cursor() a subclass of sqlite3.Cursor")
        return super().cursor(_looking(factory))

    def execute(self, statement: str, *values: Any) -> Any:
        """As `sqlite3` does, through a cursor that looks."""
        return self.cursor().execute(statement, *values)

    def executemany(self, statement: str, *values: Any) -> Any:
        """As `sqlite3` does, through a cursor that looks."""
        return self.cursor().executemany(statement, *values)

    def executescript(self, script: str) -> Any:
        """As `sqlite3` does, through a cursor that looks."""
        return self.cursor().executescript(script)

    def commit(self) -> None:
        """As `sqlite3` does, outside of our transaction."""
        self.refuse()
        super().commit()

    def rollback(self) -> None:
        """As `sqlite3` does, outside of our transaction."""
        self.refuse()
        super().rollback()

    def close(self) -> None:
        """As `sqlite3` does, outside of our transaction."""
        self.refuse()
        super().close()

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """As `sqlite3` does, in a transaction that is open."""
        if self._is_guarded:
            self._require_transaction()
        return super().blobopen(*args, **kwargs)

    def __enter__(self) -> HandlerConnection:
        self.refuse()
        return super().__enter__()

    def __setattr__(self, name: str, value: object) -> None:
        if name in _COMMITTING:
            self.refuse()
        super().__setattr__(name, value)

    def _require_transaction(self) -> None:
        if not self.in_transaction:
            raise TransactionAborted(ENDED)


class _Looking(sqlite3.Cursor):
    def execute(self, statement: str, *values: Any) -> Any:
        _connection_of(self).look(statement)
        return super().execute(statement, *values)

    def executemany(self, statement: str, *values: Any) -> Any:
        _connection_of(self).look(statement)
        return super().executemany(statement, *values)

    def executescript(self, script: str) -> Any:
        _connection_of(self).refuse()
        return super().executescript(script)


def _connection_of(cursor: sqlite3.Cursor) -> HandlerConnection:
    return cast(HandlerConnection, cursor.connection)


@functools.cache
def _looking(kind: type) -> type:
    """The class of cursors, as one that looks."""
    return _Looking if kind is sqlite3.Cursor else type(kind.__name__, (_Looking, kind), {})
