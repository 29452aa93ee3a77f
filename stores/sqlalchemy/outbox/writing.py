"""`SessionOutboxTransaction`: the rows of one business transaction, in the session of whoever calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, AsyncSessionTransaction
from sqlalchemy.orm import Session, SessionTransaction

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted
from ackwise.stores.protocol.outboxwriting import ENDED, Buffer
from ackwise.stores.sql.watching import Effect, Effects, undoes
from ackwise.stores.sqlalchemy.outbox.failures import ENDED_INSIDE, IN_DOUBT, refusing
from ackwise.stores.sqlalchemy.outbox.statements import Statements
from ackwise.stores.sqlalchemy.transaction import begin_as_writer

__all__ = ["Block", "SessionOutboxTransaction", "sync"]


class SessionOutboxTransaction(Buffer):
    """The rows of the transaction that is open in `session`."""

    def __init__(self, session: AsyncSession, statements: Statements) -> None:
        super().__init__()
        self._session, self._statements = session, statements

    async def flush(self) -> None:
        """See `OutboxTransaction.flush`. What the session has not flushed goes first: its locks give the rows of a key their order."""
        if not self.rows:
            return
        if not self._session.in_transaction():
            raise TransactionAborted(ENDED.format(count=len(self.rows)))
        await self._session.flush()
        connection = await self._session.connection()
        await connection.run_sync(self.write)

    def write(self, connection: Connection) -> None:
        """Write the rows with one statement. Raises `AckwiseError`."""
        if not self.rows:
            return
        count = len(self.rows)
        with refusing(count):
            self._statements.insert(connection, self.rows[:count])
        self.written(count)


class Block(SessionOutboxTransaction):
    """The same for the block of `outbox.transaction`: a savepoint, which is there as long as its transaction is."""

    _savepoint: AsyncSessionTransaction
    _connection: Connection

    def __init__(self, session: AsyncSession, statements: Statements) -> None:
        super().__init__(session, statements)
        self._is_joined = session.in_transaction()

    async def begin(self) -> Connection:
        """Begin the transaction, if none is open, and the savepoint; return their connection. Raises what SQLAlchemy raises."""
        if not self._is_joined:
            await self._session.begin()
        try:
            connection = await self._session.connection()
            if self._statements.dialect_of(sync(connection)) == "sqlite":
                await begin_as_writer(connection)
            self._savepoint = await self._session.begin_nested()
            self._connection = sync(await self._session.connection())
        except BaseException:
            if not self._is_joined:
                await self._session.rollback()
            raise
        return self._connection

    def before(self, effects: Effects) -> None:
        """See `Watcher.before`: what was added before a savepoint, or what may end the transaction, is written before it."""
        if not undoes(effects):
            self.write(self._connection)

    def after(self, effects: Effects) -> None:
        """See `Watcher.after`: what was not written belongs to what was rolled back."""
        if undoes(effects):
            self.rows.clear()
        self.is_closed = self.is_closed or effects[0] in (Effect.COMMITS, Effect.ROLLS_BACK)

    async def finish(self) -> None:
        """Write what is left, unless a commit or a rollback in the block has ended it; then nothing else may be open."""
        if self.is_closed:
            if self._session.in_transaction():
                raise TransactionAborted(ENDED_INSIDE.format(count=len(self.rows)))
            return
        await self.flush()

    async def commit(self, wake: Callable[[], None]) -> None:
        """Release the savepoint, and commit what `begin` began; `wake` is called once the transaction of the session has ended.

        Raises `StoreUnavailable` if it is not known whether it committed.
        """
        if self.is_closed:
            wake()
            return
        with refusing(len(self.rows)):
            await self._savepoint.commit()
        if not self._is_joined:
            await self._commit()
            wake()
        elif self.has_written:
            _once_ended(self._session.sync_session, wake)

    async def roll_back(self) -> None:
        """Undo the block, and nothing before it; a session where that does not work gives its connection up, which undoes it as well."""
        if not self._session.in_transaction():
            return
        try:
            await (self._savepoint.rollback() if self._is_joined else self._session.rollback())
        except (SQLAlchemyError, OSError):
            await self._session.invalidate()
        except BaseException:
            await self._session.invalidate()
            raise

    async def _commit(self) -> None:
        try:
            await self._session.commit()
        except DBAPIError as error:
            if isinstance(error, IntegrityError) and not error.connection_invalidated:
                raise  # a constraint that is looked at last: the database has refused
            raise StoreUnavailable(f"the database of the session failed in the commit; {IN_DOUBT}") from None


def sync(connection: AsyncConnection) -> Connection:
    """Return what is behind a connection that is open."""
    assert connection.sync_connection is not None
    return connection.sync_connection


def _once_ended(session: Session, wake: Callable[[], None]) -> None:
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
