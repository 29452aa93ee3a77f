"""Sees savepoints, commits and rollbacks on a connection of SQLAlchemy, whether they come from the session or are executed as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

__all__ = ["Watcher", "watched"]

_GAP: Final = r"(?:\s|--[^\n]*\n|/\*(?!!).*?\*/|\()*"
_READ_OR_WRITE: Final = r"(?:select|insert|update|delete|replace|merge|with|values|table|show|explain|describe|desc|do)\b"

#: Statements that neither open a savepoint nor end a transaction. All others are taken for some that may.
_PLAIN: Final = re.compile(rf"^{_GAP}{_READ_OR_WRITE}", re.IGNORECASE | re.DOTALL)
_ANOTHER: Final = re.compile(rf";{_GAP}(?!{_READ_OR_WRITE})[\w/]", re.IGNORECASE | re.DOTALL)
_ROLLBACK: Final = re.compile(rf"^{_GAP}rollback\b", re.IGNORECASE | re.DOTALL)


class Watcher(Protocol):
    """Whoever has rows for the transaction that is open on a connection."""

    def write(self, connection: Connection) -> None:
        """Write them: a savepoint, or what may end the transaction, comes next."""
        ...

    def drop(self) -> None:
        """Forget them: what they belong to is rolled back."""
        ...

    def end(self) -> None:
        """The transaction ends inside the block."""
        ...


@contextmanager
def watched(session: Session, connection: Connection, watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of savepoints and ends until the block ends; `connection` is that of `session`."""
    is_ours = False  # a statement of the watcher's own

    def write() -> None:
        nonlocal is_ours
        is_ours = True
        try:
            watcher.write(connection)
        finally:
            is_ours = False

    def before_cursor_execute(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        if is_ours or (_PLAIN.match(statement) and (";" not in statement or not _ANOTHER.search(statement))):
            return
        if _ROLLBACK.match(statement):
            watcher.drop()
        else:
            write()

    def commit(_c: Connection) -> None:
        write()
        watcher.end()

    def rollback(_c: Connection) -> None:
        watcher.drop()
        watcher.end()

    def after_transaction_create(_s: Session, transaction: SessionTransaction) -> None:
        # The session would execute SAVEPOINT with its next statement, and what was added by then would seem to be from before it.
        if transaction.nested:
            write()
            session.connection()

    listeners: list[tuple[Any, Any]] = [(connection, before_cursor_execute), (connection, commit), (connection, rollback)]
    listeners.append((session, after_transaction_create))
    for target, listener in listeners:
        event.listen(target, listener.__name__, listener)
    try:
        yield
    finally:
        for target, listener in listeners:
            event.remove(target, listener.__name__, listener)
