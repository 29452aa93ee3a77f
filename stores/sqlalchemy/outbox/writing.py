"""Rows of an outbox in a session of SQLAlchemy, in the transaction of the business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, AsyncSessionTransaction
from sqlalchemy.orm import Session, SessionTransaction

from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.sql.operation import Answer, Packet, Statement, Steps
from ackwise.stores.sql.outbox.transaction import Business
from ackwise.stores.sql.outbox.writing import Writes
from ackwise.stores.sqlalchemy.outbox.failures import as_error, failing
from ackwise.stores.sqlalchemy.outbox.statements import Statements
from ackwise.stores.sqlalchemy.session import begin_as_writer
from ackwise.stores.sqlalchemy.watching import watched

__all__ = ["business", "once_ended"]

#: Seconds for a rollback; a connection that takes longer is given up, which rolls back as well.
_TIMEOUT: Final = 5.0


def _insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
    yield [*before, Statement("INSERT", rows)]


def business(session: AsyncSession, statements: Statements) -> Business:
    """Return how rows get to `session`, which begins, commits and makes savepoints itself."""
    runner = _Runner(session, statements)
    return Business(
        Writes(_insert),
        runner,
        is_open=session.in_transaction,
        watched=lambda block: watched(session.sync_session, runner.connection, block),
        close=session.invalidate,  # it gives its connection up
        as_error=as_error,
        timeout=_TIMEOUT,
        now=_Listening(runner),
    )


class _Runner:
    connection: Connection  #: while a block is open

    def __init__(self, session: AsyncSession, statements: Statements) -> None:
        self._session, self.statements = session, statements
        self._savepoint: AsyncSessionTransaction | None = None

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        with failing():
            for statement in packet:
                await self._do(statement)
        return [Answer()] * len(packet)

    async def _do(self, statement: Statement) -> None:
        match statement.text.split():
            case ["INSERT"]:
                # What the session has not flushed goes first: its locks give the rows of a key their order.
                await self._session.flush()
                await (await self._session.connection()).run_sync(self.statements.insert, statement.values)
            case ["BEGIN"]:
                await self._session.begin()
            case ["SAVEPOINT", _]:
                connection = await self._session.connection()
                if self.statements.dialect_of(_sync(connection)) == "sqlite":
                    await begin_as_writer(connection)
                self._savepoint = await self._session.begin_nested()
                self.connection = _sync(await self._session.connection())
            case ["ROLLBACK", "TO", *_] if self._savepoint is not None:
                await self._savepoint.rollback()
                self._savepoint = None
            case ["RELEASE", *_] if self._savepoint is not None:
                await self._savepoint.commit()
            case ["COMMIT"]:
                await self._session.commit()
            case ["ROLLBACK"]:
                await self._session.rollback()


class _Listening:
    """Writes rows while SQLAlchemy is about to send a statement. The session releases its savepoints itself."""

    def __init__(self, runner: _Runner) -> None:
        self._runner = runner

    def send(self, packet: Packet) -> Sequence[Answer]:
        """See `SyncRunner.send`."""
        with failing():
            for text, rows in packet:
                if text == "INSERT":
                    self._runner.statements.insert(self._runner.connection, rows)
        return [Answer()] * len(packet)


def once_ended(session: Session, wake: Callable[[], None]) -> None:
    """Call `wake` when the transaction that is open in `session` has ended, savepoints apart."""

    def ended(_session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            wake()
            # Those who listen are being told, and can't be changed meanwhile.
            asyncio.get_running_loop().call_soon(_forget, session, ended)

    event.listen(session, "after_transaction_end", ended)


def _forget(session: Session, listener: Callable[..., None]) -> None:
    if event.contains(session, "after_transaction_end", listener):
        event.remove(session, "after_transaction_end", listener)


def _sync(connection: AsyncConnection) -> Connection:
    """Return what is behind a connection that is open."""
    assert connection.sync_connection is not None
    return connection.sync_connection
