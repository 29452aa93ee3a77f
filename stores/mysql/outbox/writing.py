"""`MySQLOutboxTransaction`: the rows of one business transaction, on the connection of whoever calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.failures import FAILURES, NO_SUCH_SAVEPOINT, as_store_error
from ackwise.stores.mysql.outbox.sql import require_room
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxliterals import inserts
from ackwise.stores.protocol.outboxwriting import ENDED, Buffer
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.sql.watching import Effect, Effects, undoes

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["Block", "MySQLOutboxTransaction"]

_LOST: Final = (
    "the transaction was ended inside the block of outbox.transaction: by a commit, a change of a table's definition, or by going on after "
    "a deadlock, which undoes all of it; {count} messages are not part of it: leave its end to the block, and let such an error pass"
)
_IN_DOUBT: Final = "it is not known whether the transaction committed: what it wrote and what it sends is there together, or none of it"

_NUMBERS: Final = itertools.count(1)


class MySQLOutboxTransaction(Buffer):
    """The rows of the transaction that is open on `connection`. The time that a statement may take is the connection's own."""

    def __init__(self, connection: Connection, tables: OutboxTables, address: str, timeout: float) -> None:
        super().__init__()
        self._connection = connection
        self._tables = tables
        self._address = address
        self._timeout = timeout

    async def flush(self) -> None:
        """See `OutboxTransaction.flush`. Asks the server first whether the transaction is still there."""
        if not self.rows:
            return
        try:
            # An error of the server says nothing of it, and one that was caught may have undone the transaction: outside of one, a row
            # would be committed by itself.
            await self._connection.ping(reconnect=False)
            if self._connection.get_autocommit() and not self._connection.get_transaction_status():
                raise TransactionAborted(ENDED.format(count=len(self.rows)))
            await self._write("")
        except FAILURES as error:
            raise self._as_our_error(error) from error

    async def _write(self, before: str) -> None:
        """Insert the rows; `before` is what the first packet begins with."""
        packets = list(inserts(self._tables.rows, self.rows))
        await require_room(self._connection, [packet for _, packet in packets], self.rows, self._address)
        if not packets and before:
            await rows_of(self._connection, before)
        for count, packet in packets:
            await rows_of(self._connection, before + packet)
            self.written(count)
            before = ""

    def _as_our_error(self, error: Exception) -> ConfigurationError | StoreUnavailable | TransactionAborted:
        if isinstance(error, MySQLError) and error.args and error.args[0] == NO_SUCH_SAVEPOINT:
            return TransactionAborted(_LOST.format(count=len(self.rows)))
        return as_store_error(error, self._address, self._timeout, OUTBOX.tables, OUTBOX.init)


class Block(MySQLOutboxTransaction):
    """The same for the block of `outbox.transaction`, which begins with a savepoint: that is there as long as the transaction is."""

    def __init__(self, connection: Connection, tables: OutboxTables, address: str, timeout: float) -> None:
        super().__init__(connection, tables, address, timeout)
        self._savepoint = f"ackwise_outbox_{next(_NUMBERS)}"
        self._is_joined = connection.get_transaction_status()
        self._has_ended = False  # inside the block

    async def begin(self) -> None:
        """Begin the transaction, if none is open. Raises what asyncmy raises."""
        begin = "" if self._is_joined else "START TRANSACTION; "
        await rows_of(self._connection, f"{begin}SAVEPOINT {self._savepoint}")

    async def complete(self) -> None:
        """Write what is left, together with the proof that the transaction is still the one that began. Nothing comes after it."""
        try:
            await self._write(f"RELEASE SAVEPOINT {self._savepoint}; ")
        except FAILURES as error:
            raise self._as_our_error(error) from error
        self.is_closed = True

    async def finish(self) -> None:
        """Complete it, unless a commit or a rollback in the block has ended it; then nothing else may be open."""
        if not self.is_closed:
            await self.complete()
        elif self._connection.get_transaction_status():
            raise TransactionAborted(_LOST.format(count=len(self.rows)))
        else:
            self._has_ended = True

    async def commit(self) -> bool:
        """Commit what `begin` began; returns whether rows may be there. Raises `StoreUnavailable` if that is not known."""
        if self._is_joined or self._has_ended:
            return self._has_ended
        try:
            await self._connection.commit()
        except FAILURES as error:
            self._connection.close()
            raise StoreUnavailable(f"{self._as_our_error(error)}; {_IN_DOUBT}") from error
        return True

    async def roll_back(self) -> None:
        """Undo the block, and nothing before it; a connection where that does not work is closed, which undoes it as well."""
        if self.is_closed and not self._connection.get_transaction_status():
            return
        undo = f"ROLLBACK TO SAVEPOINT {self._savepoint}; RELEASE SAVEPOINT {self._savepoint}" if self._is_joined else "ROLLBACK"
        try:
            async with asyncio.timeout(self._timeout):
                await rows_of(self._connection, undo)
        except FAILURES:
            self._connection.close()
        except BaseException:
            self._connection.close()
            raise

    def before(self, effects: Effects) -> Awaitable[None] | None:
        """See `Watcher.before`: what was added before a savepoint, or what may end the transaction, is written before it."""
        if undoes(effects):
            return None
        return self.complete() if Effect.COMMITS in effects else self.flush()

    def after(self, effects: Effects) -> None:
        """See `Watcher.after`: what was not written belongs to what was rolled back."""
        if undoes(effects):
            self.rows.clear()
            self.is_closed = self.is_closed or effects[0] is Effect.ROLLS_BACK
