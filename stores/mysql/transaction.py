"""One transaction of a `MySQLInbox`: four packets around the statements of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import Fenced, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Permit, Place, Taken, TransactionAnswer
from ackwise.stores.mysql import offsets
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.failures import FAILURES, NO_SUCH_SAVEPOINT, as_store_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncmy.connection import Connection

__all__ = ["OpenTransaction"]

_BEGIN = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; SAVEPOINT ackwise_began"

# Every key is locked, in their order, and then read as it is now. The server assigns from left to right and sees what it assigned
# before: what is asked about changes last.
_CLAIM = """
INSERT INTO {inbox} (k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until) VALUES {rows}
ON DUPLICATE KEY UPDATE
    next_attempt = IF(kept_until <= UTC_TIMESTAMP(6), 0, next_attempt),
    outcome = IF(kept_until <= UTC_TIMESTAMP(6), 0, outcome),
    kept_until = IF(outcome = 0, VALUES(kept_until), kept_until);
SELECT k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id FROM {inbox} WHERE k IN ({keys})
"""

_FINISH = """
INSERT INTO {inbox} (k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until) VALUES {rows}
ON DUPLICATE KEY UPDATE
    outcome = VALUES(outcome), next_attempt = VALUES(next_attempt), origin_topic = VALUES(origin_topic),
    origin_partition = VALUES(origin_partition), origin_offset = VALUES(origin_offset), exec_id = VALUES(exec_id),
    kept_until = VALUES(kept_until)
"""

_ROLLBACK_TIMEOUT = 1.0
"""Seconds; a connection that takes longer is cut, which rolls back as well."""


class OpenTransaction:
    """A transaction of the inbox whose tables are `inbox` and `offsets`, on a connection that is ours until it ends."""

    def __init__(self, connection: Connection, inbox: str, offsets: str, *, retention: float, timeout: float, address: str) -> None:
        self.connection = connection
        self._inbox = inbox
        self._offsets = offsets
        self._kept_until = f"UTC_TIMESTAMP(6) + INTERVAL {round(retention * 1e6)} MICROSECOND"
        self._timeout = timeout
        self._address = address
        self._finished = False

    async def start(self) -> None:
        """Raise what asyncmy raises."""
        async with asyncio.timeout(self._timeout):
            await rows_of(self.connection, _BEGIN)

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; also waits for those who only repeat one of the keys."""
        if not keys:
            return []
        ids = sorted(f"x'{key.id.hex()}'" for key in keys)
        rows = ", ".join(f"({id}, 0, 0, '', 0, 0, 0, {self._kept_until})" for id in ids)
        async with self._bounded("another transaction may hold a key of this batch, or the server does not answer"):
            found = await rows_of(self.connection, _CLAIM.format(inbox=self._inbox, rows=rows, keys=", ".join(ids)))
        by_key = {bytes(key): rest for key, *rest in found}
        return [_answer(by_key[key.id], key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`."""
        rows = ", ".join(sorted(self._row(finish) for finish in finishes))
        write = _FINISH.format(inbox=self._inbox, rows=rows) if rows else "DO 0"
        async with self._bounded("the server does not answer"):
            try:
                await rows_of(self.connection, f"RELEASE SAVEPOINT ackwise_began; {write}")
            except MySQLError as error:
                if error.args[0] != NO_SUCH_SAVEPOINT:
                    raise
                raise TransactionAborted(
                    "the handler ended the transaction that it writes in: by a commit, a rollback, a change of a table's definition, or "
                    "by going on after a deadlock; leave commit and rollback to Ackwise, and raise to roll back"
                ) from None
        self._finished = True

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        """See `OffsetsTransaction.lock`."""
        async with self._bounded("another worker may be taking the partition over, or the server does not answer"):
            next = await offsets.lock(self.connection, self._offsets, owner, topic, partition, generation)
        if next is None:
            raise _fenced(topic, partition)
        return next

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        """See `OffsetsTransaction.advance`."""
        if not self._finished:  # a handler that ended the transaction would let it be one of its own
            await self.finish(())
        async with self._bounded("the server does not answer"):
            is_ours = await offsets.advance(self.connection, self._offsets, owner, topic, partition, generation, next)
        if not is_ours:
            raise _fenced(topic, partition)

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """See `OffsetsTransaction.permits`."""
        async with self._bounded("the server does not answer"):
            return await offsets.permits(self.connection, self._inbox, self._offsets, owner, copies)

    async def commit(self) -> None:
        """Raise `StoreUnavailable`, also if it is not known whether it committed."""
        if not self._finished:
            await self.finish(())
        async with self._bounded("it is not known whether it committed; the next claim tells"):
            await self.connection.commit()

    async def abandon(self) -> None:
        """Roll back, or cut the connection where that does not work at once."""
        try:
            async with asyncio.timeout(_ROLLBACK_TIMEOUT):
                await self.connection.rollback()
        except FAILURES:
            self.connection.close()
        except BaseException:
            self.connection.close()
            raise

    def _row(self, finish: Finish) -> str:
        topic, partition, offset = finish.origin
        outcome = 0 if finish.outcome is None else int(finish.outcome)
        return (
            f"(x'{finish.key.id.hex()}', {outcome}, {finish.next_attempt:d}, x'{topic.encode().hex()}', {partition:d}, {offset:d}, "
            f"{finish.exec_id:d}, {self._kept_until})"
        )

    @asynccontextmanager
    async def _bounded(self, why: str) -> AsyncIterator[None]:
        """Bound a step by the timeout, and raise our error for asyncmy's; `why` says what it can mean that the time is up.

        What went wrong may have left the connection in the middle of an answer, so it is cut.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TransactionAborted:
            raise
        except TimeoutError:
            self.connection.close()
            raise StoreUnavailable(f"{self._address}: no answer within {self._timeout:g} s; {why}") from None
        except FAILURES as error:
            self.connection.close()
            raise StoreUnavailable(str(as_store_error(error, self._address, self._timeout, "inbox"))) from None
        except asyncio.CancelledError:
            self.connection.close()
            raise


def _fenced(topic: str, partition: int) -> Fenced:
    return Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")


def _answer(row: Sequence[object], attempt: int) -> TransactionAnswer:
    outcome, next_attempt, topic, partition, offset, exec_id = row
    assert isinstance(topic, bytes)
    if outcome:
        return Finished(Outcome(_int(outcome)), (topic.decode(), _int(partition), _int(offset)), _int(exec_id))
    return Stale() if attempt < _int(next_attempt) else Taken()


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
