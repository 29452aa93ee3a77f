"""`PostgresInbox`: exactly once in one PostgreSQL database, by keys or by offsets, for handlers that write to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.storage.claimstore import ClaimKey
from ackwise.middleware.storage.transaction import Place
from ackwise.stores.postgres import maintenance
from ackwise.stores.postgres.driver import FAILURES, Asyncpg, AsyncpgRunner, commit, problem_of, watched
from ackwise.stores.postgres.schema import found, layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.options import INBOX
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.inbox import ENDED, UNFINISHED, Fence, Record, Statements
from ackwise.stores.sql.inboxtransaction import ServerInbox, ServerSession
from ackwise.stores.sql.operation import Failure, Packet, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy


# Each record is written twice in its transaction, when it is taken and when it is finished.
#
# `finished` is read without a lock, so that no transaction waits for a batch which only repeats a key. What is not finished is inserted,
# or locked where it is already, in the order of the keys: transactions can't deadlock. A key that another transaction
# finishes while this statement waits for it is in neither answer; it is asked for again, and the next statement sees it finished.
# LATERAL and LIMIT leave the planner no join: one that was planned for an empty table reads all of a large one.
_CLAIM: Final = f"""
WITH asked AS (
    SELECT unnest($1::text::uuid[]) AS k
), finished AS MATERIALIZED (
    SELECT found.* FROM asked CROSS JOIN LATERAL (
        SELECT k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id
        FROM {{inbox}} AS r WHERE r.k = asked.k AND outcome <> {UNFINISHED} AND kept_until > clock_timestamp() LIMIT 1
    ) AS found
), taken AS (
    INSERT INTO {{inbox}} AS r (k, exec_id, origin_offset, kept_until, origin_partition, next_attempt, outcome, origin_topic)
    SELECT k, $3::bigint, 0, clock_timestamp() + $2::float8 * interval '1 s', 0, 0, {UNFINISHED}, ''
    FROM asked WHERE k NOT IN (SELECT k FROM finished) ORDER BY k
    ON CONFLICT (k) DO UPDATE SET
        next_attempt = CASE WHEN r.kept_until <= clock_timestamp() THEN 0 ELSE r.next_attempt END,
        kept_until = excluded.kept_until, outcome = {UNFINISHED}, exec_id = excluded.exec_id
    WHERE r.outcome = {UNFINISHED} OR r.kept_until <= clock_timestamp()
    RETURNING k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id
)
SELECT *, pg_current_xact_id()::text AS transaction FROM (TABLE finished UNION ALL TABLE taken) AS answers
"""

# A transaction that is not ours any more has another id, and writes nothing.
_FINISH: Final = """
WITH ours AS (
    SELECT pg_current_xact_id()::text = coalesce($8::text, pg_current_xact_id()::text) AS still
), written AS (
    INSERT INTO {inbox} (k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until)
    SELECT done.*, clock_timestamp() + $9::float8 * interval '1 s'
    FROM ours, unnest(
        $1::text::uuid[], $2::text::smallint[], $3::text::int[], $4::text[], $5::text::int[], $6::text::bigint[], $7::text::bigint[]
    ) AS done WHERE still
    ON CONFLICT (k) DO UPDATE SET
        outcome = excluded.outcome, next_attempt = excluded.next_attempt, origin_topic = excluded.origin_topic,
        origin_partition = excluded.origin_partition, origin_offset = excluded.origin_offset, exec_id = excluded.exec_id,
        kept_until = excluded.kept_until
)
SELECT still FROM ours
"""

_COMMITTED: Final = f"SELECT count(*) FROM {{inbox}} WHERE k = ANY ($1::text::uuid[]) AND exec_id = $2::bigint AND outcome = {UNFINISHED}"

_LOCK: Final = """
SELECT next_offset, pg_current_xact_id()::text FROM {offsets}
WHERE owner = $1::text AND topic = $2::text AND part = $3::int AND generation = $4::bigint FOR UPDATE
"""

_ADVANCE: Final = """
UPDATE {offsets} SET next_offset = $5::bigint
WHERE owner = $1::text AND topic = $2::text AND part = $3::int AND generation = $4::bigint RETURNING true
"""

_TAKE_OVER: Final = """
INSERT INTO {offsets} AS o (owner, topic, part, next_offset, generation, began)
SELECT $1::text, asked.topic, asked.partition, asked.position, 1, asked.position
FROM unnest($2::text[], $3::text::int[], $4::text::bigint[]) AS asked (topic, partition, position) ORDER BY asked.topic, asked.partition
ON CONFLICT (owner, topic, part) DO UPDATE SET generation = o.generation + 1 RETURNING o.topic, o.part, o.next_offset, o.generation
"""

# A row of the inbox that was taken and never finished or sent back has the attempt 0, and permits nothing.
_PERMITS: Final = """
SELECT r.k IS NOT NULL OR o.began IS NULL OR o.began > asked.place, o.next_offset > asked.place
FROM unnest($1::text::uuid[], $2::text[], $3::text::int[], $4::text::bigint[]) WITH ORDINALITY AS asked (k, topic, partition, place, number)
LEFT JOIN {inbox} AS r ON r.k = asked.k AND r.kept_until > clock_timestamp() AND r.next_attempt > 0
LEFT JOIN {offsets} AS o ON o.owner = $5::text AND o.topic = asked.topic AND o.part = asked.partition
ORDER BY asked.number
"""

_IN_FAILED_TRANSACTION: Final = "25P02"
_BROKEN: Final = (
    "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
    "or run what may fail in a savepoint, `async with connection.transaction():` or `async with session.begin_nested():`"
)
_IN_USE: Final = "the handler ended while it still uses its connection; await everything it starts"


class PostgresStatements:
    """For tables of these names, with their schema. See `Statements`."""

    state: Packet = (Statement("SELECT quote_ident(current_setting('role'))"),)

    def __init__(self, inbox: str, offsets: str) -> None:
        texts = (_CLAIM, _FINISH, _COMMITTED, _LOCK, _ADVANCE, _TAKE_OVER, _PERMITS)
        self._claim, self._finish, self._committed, self._lock, self._advance, self._take_over, self._permits = (
            text.format(inbox=inbox, offsets=offsets) for text in texts
        )

    still_there: Packet = ()
    undoes_all = True
    proof: Packet = (Statement("SELECT 1"),)

    def put_back(self, state: Sequence[Any]) -> Packet:
        """See `Statements`. A schema that a handler turned to is none of our statements' business."""
        (role,) = state
        return [Statement(f"RESET SESSION AUTHORIZATION; SET ROLE {role}")]

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        return [Statement(self._claim, (_array(map(bytes.hex, ids)), retention, mark))]

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        ids, outcomes, attempts, topics, *others = zip(*records, strict=True) if records else [()] * 7
        columns = _array(map(bytes.hex, ids)), _array(outcomes), _array(attempts), list(topics), *map(_array, others)
        return [Statement(self._finish, (*columns, transaction, retention))]

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        return [Statement(self._committed, (_array(map(bytes.hex, ids)), mark))]

    def lock(self, fence: Fence) -> Packet:
        return [Statement(self._lock, fence)]

    def advance(self, fence: Fence, next: int) -> Packet:
        return [Statement(self._advance, (*fence, next))]

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        topics, partitions, places = zip(*(origin for _, origin in copies), strict=True)
        ids = _array(key.id.hex() for key, _ in copies)
        return [Statement(self._permits, (ids, list(topics), _array(partitions), _array(places), owner))]

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        topics, partitions = zip(*positions, strict=True)
        return [Statement(self._take_over, (owner, list(topics), _array(partitions), _array(positions.values())))]

    def why_ended(self, error: Exception) -> str:
        if "another operation is in progress" in str(error):
            return _IN_USE
        state = getattr(getattr(error, "orig", error), "sqlstate", None)  # SQLAlchemy has the driver's own error inside
        return _BROKEN if state == _IN_FAILED_TRANSACTION else ENDED


def _array(values: Iterable[object]) -> str:
    """Return the values as text: elements of arrays use the codecs of the user's connection, texts do not."""
    return f"{{{','.join(map(str, values))}}}"


_MAX_SIZE: Final = 10
"""Connections: a batch under way has one."""

# A worker that vanished, or is stalled in the middle of a batch, keeps the locks of its keys until its server notices:
# after a minute if its host is gone, after five if only its process does nothing.
_SESSION: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "300000",
}


#: SQLSTATEs of a commit that say nothing about what the handler wrote.
_NOT_THE_HANDLERS: Final = ("08", "25", "40001", "40P01", "53", "55", "57", "58", "XX")

_DISCARD: Final = Statement("DISCARD TEMP")

#: What a handler may have turned to or made, and asyncpg's own reset leaves.
_LEFT: Final = "RESET SESSION AUTHORIZATION; RESET ROLE; DISCARD TEMP; DISCARD SEQUENCES"


async def _reset(connection: Connection) -> None:
    """Restore a connection of our own, in the trip that asyncpg makes anyway when it is given back."""
    await connection.execute(f"{_LEFT}; {connection.get_reset_query()}")


class PostgresInbox(ServerInbox["Pool", "PoolConnectionProxy"]):
    """An inbox in the PostgreSQL database of `url`, in which the handler's own tables are as well.

    The handler gets an asyncpg connection in the middle of a transaction, and may open `connection.transaction()` in it, which
    is a savepoint. Each batch under way has a connection, `max_size` at most are open; a batch that finds none waits. Or give
    your own `pool`, which stays yours: its settings are not touched, nor is it closed.

    `timeout` (seconds) bounds each of our own statements, with its wait for another worker's batch that holds the same key.
    `schema` and `prefix` say where the table is: without a schema, where the search path leads. `statement_cache_size=0` is
    for PgBouncer in transaction mode. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = _MAX_SIZE,
        statement_cache_size: int = 100,
    ) -> None:
        driver = Asyncpg(
            INBOX,
            url,
            pool,
            timeout=timeout,
            max_size=max_size,
            statement_cache_size=statement_cache_size,
            session=_SESSION,
            maintenance_session=_SESSION,
            is_bounded=False,
            reset=_reset,
        )
        connections, tables = Connections(driver), maintained(Tables(schema, prefix), driver.address)
        super().__init__(connections, tables, lambda connection, statements: PostgresSession(connection, statements, driver))


class PostgresSession(ServerSession["PoolConnectionProxy"]):
    """PostgreSQL starts no transaction by itself: what fails leaves one that takes nothing any more."""

    def __init__(self, connection: PoolConnectionProxy, statements: Statements, driver: Asyncpg) -> None:
        super().__init__(connection, statements, driver, AsyncpgRunner(connection), watched)
        self._transaction = connection.transaction(isolation="read_committed")

    @property
    def is_open(self) -> bool:
        return self.connection.is_in_transaction()

    async def begin(self) -> None:
        with _failures():
            await self._transaction.start()
        self._watch.start()

    async def commit(self) -> None:
        self._watch.stop()
        with _failures():
            try:
                await commit(self.connection)
            except asyncpg.InFailedSQLTransactionError as error:
                raise TransactionAborted(self.statements.why_ended(error)) from None
            except asyncpg.PostgresError as error:
                if str(error.sqlstate).startswith(_NOT_THE_HANDLERS):
                    raise
                raise TransactionAborted(f"PostgreSQL refuses to commit what the handler wrote: {error.args[0]}") from None

    async def rollback(self, *, is_marked: bool) -> bool:
        """See `Session.rollback`; nothing in PostgreSQL commits a transaction from within."""
        self._watch.stop()
        with _failures():
            await self._transaction.rollback()
        return True

    def tidying(self) -> Packet:
        """See `ServerSession.tidying`; a pool of our own has its `reset`."""
        return () if self._driver.given is None else [*self._turning.put_back, _DISCARD]


def maintained(tables: Tables, address: str) -> Maintenance[PostgresStatements]:
    """Return what is done with the tables of an inbox."""
    made = layout(tables, INBOX, address)

    def prepare() -> Steps[PostgresStatements]:
        yield from maintenance.require_durable(address)
        yield from create(made)
        yield from maintenance.require_rights((tables.named("inbox"), tables.named("offsets")), address)
        there = yield from found(tables)
        return PostgresStatements(there.named("inbox"), there.named("offsets"))

    return Maintenance(
        prepare,
        lambda: create(made),
        lambda: complaints(made, lambda: maintenance.complaints_of_inbox(tables, address)),
        lambda: maintenance.clean_inbox(made, tables),
    )


def from_url(url: str) -> PostgresInbox:
    """Return the inbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=20&statement_cache_size=0`, and libpq's `sslmode`,
    `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL inbox has no option synchronous_commit; what is acknowledged to Kafka has to be durable")
    return PostgresInbox(drivers, **settings)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise Failure(problem_of(error), error) from error
