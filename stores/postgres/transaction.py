"""One transaction of a `PostgresInbox`: four statements around those of the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from ackwise.middleware.errors import Fenced, StoreUnavailable, TransactionAborted
from ackwise.middleware.store import ClaimKey, Outcome, Stale
from ackwise.middleware.transaction import Finish, Finished, Permit, Place, Taken, TransactionAnswer
from ackwise.stores.postgres import offsets
from ackwise.stores.postgres.failures import FAILURES, as_store_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncpg.pool import PoolConnectionProxy

__all__ = ["OpenTransaction"]

# `finished` is read without a lock, so that nobody waits for a batch which only repeats a key. What is not finished is inserted,
# or locked where it is already, in the order of the keys: nobody waits for anybody in a circle. A key that another transaction
# finishes while this statement waits for it is in neither answer; it is asked for again, and the next statement sees it finished.
# LATERAL and LIMIT leave the planner no join: one that was planned for an empty table reads all of a large one.
_CLAIM = """
WITH asked AS (
    SELECT unnest($1::uuid[]) AS k
), finished AS MATERIALIZED (
    SELECT found.* FROM asked CROSS JOIN LATERAL (
        SELECT k, next_attempt, outcome, origin_topic, origin_partition, origin_offset, exec_id
        FROM {inbox} AS r WHERE r.k = asked.k AND outcome <> 0 AND kept_until > clock_timestamp() LIMIT 1
    ) AS found
), taken AS (
    INSERT INTO {inbox} AS r (k, exec_id, origin_offset, kept_until, origin_partition, next_attempt, outcome, origin_topic)
    SELECT k, 0, 0, clock_timestamp() + $2 * interval '1 s', 0, 0, 0, '' FROM asked WHERE k NOT IN (SELECT k FROM finished) ORDER BY k
    ON CONFLICT (k) DO UPDATE SET
        next_attempt = CASE WHEN r.kept_until <= clock_timestamp() THEN 0 ELSE r.next_attempt END,
        kept_until = excluded.kept_until, outcome = 0
    WHERE r.outcome = 0 OR r.kept_until <= clock_timestamp()
    RETURNING k, next_attempt, outcome, origin_topic, origin_partition, origin_offset, exec_id
)
SELECT *, pg_current_xact_id()::text AS transaction FROM (TABLE finished UNION ALL TABLE taken) AS answers
"""

# A transaction that is not ours any more has another id, and writes nothing.
_FINISH = """
WITH ours AS (
    SELECT pg_current_xact_id()::text = coalesce($8, pg_current_xact_id()::text) AS still
), written AS (
    INSERT INTO {inbox} (k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until)
    SELECT done.*, clock_timestamp() + $9 * interval '1 s'
    FROM ours, unnest($1::uuid[], $2::smallint[], $3::int[], $4::text[], $5::int[], $6::bigint[], $7::bigint[]) AS done WHERE still
    ON CONFLICT (k) DO UPDATE SET
        outcome = excluded.outcome, next_attempt = excluded.next_attempt, origin_topic = excluded.origin_topic,
        origin_partition = excluded.origin_partition, origin_offset = excluded.origin_offset, exec_id = excluded.exec_id,
        kept_until = excluded.kept_until
)
SELECT still FROM ours
"""

_ROLLBACK_TIMEOUT = 1.0
"""Seconds; a connection that takes longer is cut, which rolls back as well."""

_BROKEN = (
    "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
    "or run what may fail in `async with connection.transaction():`"
)

#: SQLSTATEs of a commit that say nothing about what the handler wrote.
_NOT_THE_HANDLERS = ("08", "25", "40001", "40P01", "53", "55", "57", "58", "XX")


class OpenTransaction:
    """A transaction of the inbox whose tables are `inbox` and `offsets`, on a connection that is ours until it ends."""

    def __init__(
        self, connection: PoolConnectionProxy, inbox: str, offsets: str, *, retention: float, timeout: float, address: str
    ) -> None:
        self.connection = connection
        self._inbox = inbox
        self._offsets = offsets
        self._retention = retention
        self._timeout = timeout
        self._address = address
        self._transaction = connection.transaction(isolation="read_committed")
        self._id: str | None = None
        self._finished = False

    async def start(self) -> None:
        """Raise what asyncpg raises."""
        async with asyncio.timeout(self._timeout):
            await self._transaction.start()

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """See `Transaction.claim`; asks again only for keys that another transaction finished while this one waited for it."""
        found: dict[bytes, Any] = {}
        missing = sorted({key.id for key in keys})
        statement = _CLAIM.format(inbox=self._inbox)
        async with self._bounded("another transaction may hold a key of this batch, or the server does not answer"):
            while missing:
                rows = await self.connection.fetch(statement, [key.hex() for key in missing], self._retention)
                found |= {row["k"].bytes: row for row in rows}
                self._id = rows[0]["transaction"] if rows else self._id
                missing = [key for key in missing if key not in found]
        return [_answer(found[key.id], key.attempt) for key in keys]

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """See `Transaction.finish`."""
        rows = [
            (key.id.hex(), 0 if outcome is None else int(outcome), next_attempt, *origin, exec_id)
            for key, origin, exec_id, outcome, next_attempt in sorted(finishes, key=lambda finish: finish.key.id)
        ]
        columns = list(zip(*rows, strict=True)) or [()] * 7
        async with self._bounded("the server does not answer"):
            try:
                still = await self.connection.fetchval(_FINISH.format(inbox=self._inbox), *columns, self._id, self._retention)
            except asyncpg.InFailedSQLTransactionError:
                raise TransactionAborted(_BROKEN) from None
            except asyncpg.InterfaceError as error:
                if "another operation is in progress" in str(error):
                    raise TransactionAborted("the handler ended while it still uses its connection; await everything it starts") from None
                raise
        if not (still and self.connection.is_in_transaction()):
            raise TransactionAborted(
                "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
            )
        self._finished = True

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        """See `OffsetsTransaction.lock`."""
        async with self._bounded("another worker may be taking the partition over, or the server does not answer"):
            found = await offsets.lock(self.connection, self._offsets, owner, topic, partition, generation)
        if found is None:
            raise _fenced(topic, partition)
        next, self._id = found
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
        """Raise `TransactionAborted` if PostgreSQL refuses what the handler wrote, and `StoreUnavailable`, also if that is not known."""
        if not self._finished:
            await self.finish(())
        async with self._bounded("it is not known whether it committed; the next claim tells"):
            try:
                await self._transaction.commit()
            except asyncpg.PostgresError as error:
                if str(error.sqlstate).startswith(_NOT_THE_HANDLERS):
                    raise
                raise TransactionAborted(f"PostgreSQL refuses to commit what the handler wrote: {error.args[0]}") from None

    async def abandon(self) -> None:
        """Roll back, or cut the connection where that does not work at once."""
        try:
            async with asyncio.timeout(_ROLLBACK_TIMEOUT):
                await self._transaction.rollback()
        except FAILURES:
            self.cut()
        except BaseException:
            self.cut()
            raise

    def cut(self) -> None:
        """End the connection at once; the server rolls back what is open on it."""
        with suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
            self.connection.terminate()

    @asynccontextmanager
    async def _bounded(self, why: str) -> AsyncIterator[None]:
        """Bound a step by the timeout, and raise our error for asyncpg's; `why` says what it can mean that the time is up."""
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            raise StoreUnavailable(f"{self._address}: no answer within {self._timeout} s; {why}") from None
        except FAILURES as error:
            raise StoreUnavailable(str(as_store_error(error, self._address, self._timeout, "inbox"))) from None


def _fenced(topic: str, partition: int) -> Fenced:
    return Fenced(f"{topic}/{partition} was taken over by another worker; nothing of this batch stays")


def _answer(row: Any, attempt: int) -> TransactionAnswer:
    if row["outcome"]:
        origin = row["origin_topic"], row["origin_partition"], row["origin_offset"]
        return Finished(Outcome(row["outcome"]), origin, row["exec_id"])
    return Stale() if attempt < row["next_attempt"] else Taken()
