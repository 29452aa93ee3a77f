"""Lets a watcher see what is executed on a connection of SQLAlchemy before it is sent, whether the session asks for it or it is text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from ackwise.stores.sql.watching import MARIADB, POSTGRES, SQLITE, Effect, Watched, Watcher

_GRAMMARS: Final = {"postgresql": POSTGRES, "mysql": MARIADB, "mariadb": MARIADB, "sqlite": SQLITE}


@contextmanager
def watched(session: Session, connection: Connection, watcher: Watcher[None]) -> Iterator[None]:
    """Let `watcher` see what is executed on `connection`, which is that of `session`, until the block ends.

    The watcher does itself what has to be done before; it is told at once, as nobody is called once a statement was executed.
    """
    seen = Watched[None](_GRAMMARS[connection.dialect.name])

    def see(*effects: Effect) -> None:
        if effects:
            for _ in seen.steps(effects):
                pass
            seen.done(effects)

    def before_cursor_execute(_c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        see(*seen.effects(statement))

    def commit(_c: Connection) -> None:
        see(Effect.COMMITS)

    def rollback(_c: Connection) -> None:
        seen.done((Effect.ROLLS_BACK,))  # the session also rolls back by itself, after an error: nobody can refuse that

    def after_transaction_create(_s: Session, transaction: SessionTransaction) -> None:
        # The session would execute SAVEPOINT with its next statement, and what was added by then would seem to be from before it.
        if transaction.nested:
            see(Effect.SAVEPOINT)
            session.connection()

    listeners: list[tuple[Any, Any]] = [(connection, before_cursor_execute), (connection, commit), (connection, rollback)]
    listeners.append((session, after_transaction_create))
    for target, listener in listeners:
        event.listen(target, listener.__name__, listener)
    try:
        with seen.by(watcher):
            yield
    finally:
        for target, listener in listeners:
            event.remove(target, listener.__name__, listener)
