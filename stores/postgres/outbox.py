"""`PostgresOutbox`: rows to be sent, in the business transactions of one PostgreSQL database, and the notification of other processes."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from ackwise.middleware.errors import AckwiseError, ConfigurationError, TransactionAborted
from ackwise.middleware.storage.outbox import RowState
from ackwise.stores.postgres import maintenance
from ackwise.stores.postgres.driver import FAILURES, Asyncpg, AsyncpgRunner, as_store_error, commit, problem_of, watched
from ackwise.stores.postgres.floor import Floor, Seen
from ackwise.stores.postgres.schema import found, layout
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import Options, parse
from ackwise.stores.protocol.options import OUTBOX
from ackwise.stores.protocol.outbox import BROKEN, PAYLOAD, UNTIMED, Keeping, RowColumns, Wakes, keeping_of, wakes_of
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Answer, Failure, Packet, Placeholders, Problem, Statement, Steps
from ackwise.stores.sql.outbox import ServerOutbox
from ackwise.stores.sql.outboxdialect import DUE, DUE_COLUMNS, MESSAGE, WORDS, Around, Dialect
from ackwise.stores.sql.outboxwriting import Business, Writes, require
from ackwise.stores.sql.schema import names_of

if TYPE_CHECKING:
    from asyncpg import Connection, Pool
    from asyncpg.pool import PoolConnectionProxy


_COLUMNS: Final = ", ".join(RowColumns._fields)

_WORDS: Final = {
    "now": "clock_timestamp()",
    "later": "clock_timestamp() + :it * interval '1 s'",
    "at": "to_timestamp(:it)",
    "until": "extract(epoch FROM {it} - clock_timestamp())::float8",
    "age": "extract(epoch FROM clock_timestamp() - {it})::float8",
    "epoch": "extract(epoch FROM clock_timestamp())::float8",
    "ms": "extract(epoch FROM {it}) * 1000",
    "among": "= ANY (:it)",
    "locked": "FOR UPDATE",
    "instant": "statement_timestamp()",
    "is_behind": "{it}.behind AND {it}.key_hash IS NOT NULL",
    "sooner": "clock_timestamp()",
    "freed": """
UPDATE {rows} AS r SET behind = FALSE, next_at = {sooner} FROM unnest(:key_hash::bigint[], :first::bigint[], :last::bigint[]) AS f (k, a, z)
WHERE r.key_hash = f.k AND {is_behind r} AND r.id BETWEEN f.a AND f.z""",
    # By id over all shards and not by shard, so that a backlog of any size is read from its start only. Below the floor there are those
    # only that were tried before, or whose turn came late. A row that is blocked is recognised without its value, and is put `behind` then:
    # it leaves the index that is read here, until what blocks it is sent.
    "due_rows": f"""(
    SELECT id, shard, attempts, created, size::bigint, {MESSAGE}, due, expires, key_hash FROM {{rows}}
    WHERE state = {{LOCAL_COMMIT}} AND NOT behind AND {{it}} AND shard = ANY (:shards) AND (next_at IS NULL OR next_at <= {{instant}})
        AND id <> ALL (:under_way::bigint[]) AND (key_hash IS NULL OR key_hash <> ALL (:blocked::bigint[]))
    ORDER BY""",
    "pending": """
WITH seen AS (
    SELECT * FROM ({due_rows due IS NULL AND id > :floor} id LIMIT :limit)
        UNION ALL {due_rows due IS NULL AND next_at IS NOT NULL AND id <= :floor} id LIMIT :limit)
        UNION ALL {due_rows due IS NOT NULL AND next_at <= statement_timestamp()} next_at LIMIT :limit)) AS found ORDER BY id LIMIT :limit
), {judged seen}, summed AS (
    SELECT *, sum(CASE WHEN is_blocked THEN 0 ELSE size END) OVER (ORDER BY id) - size AS before_it FROM judged
)
SELECT id, shard, attempts, {ms created}, size, is_blocked, due IS NOT NULL, expires IS NOT NULL, topic,
    CASE WHEN NOT is_blocked THEN value END, message_key, headers, partition, message_id
FROM summed WHERE is_blocked OR before_it < :most ORDER BY id""",
    "mine": """
ARRAY(SELECT s.shard FROM {shards} AS s JOIN unnest(:mine_shards::smallint[], :mine_tokens::bigint[]) AS mine (shard, token)
    ON s.shard = mine.shard AND s.token = mine.token {it})""",
    "of_mine": "id = ANY (:ids::bigint[]) AND state = {LOCAL_COMMIT} AND shard = ANY ({mine})",
    "ours": "r.id = ANY (:ids::bigint[]) AND r.state = {LOCAL_COMMIT} AND r.shard = ANY ({mine})",
    "due_time": "CASE WHEN due < 0 THEN clock_timestamp() - due * interval '1 s' ELSE to_timestamp(due) END",
    "deleted": "DELETE FROM {rows} WHERE {of_mine}",
    # A row that is kept holds up none, and has no key.
    "kept": "UPDATE {rows} SET state = {GLOBAL_COMMIT}, next_at = {later keep}, cause = NULL, key_hash = NULL, behind = FALSE{it}"
    " WHERE {of_mine}",
    "failed": """
WITH mine AS MATERIALIZED (SELECT {mine FOR SHARE OF s} AS shards)
UPDATE {rows} AS r SET attempts = attempts + 1, cause = f.cause, state = f.state, behind = FALSE,
    next_at = clock_timestamp() + f.again_in * interval '1 s'
FROM mine, unnest(:id::bigint[], :cause::text[], :state::smallint[], :again_in::float8[]) AS f (id, cause, state, again_in)
WHERE r.id = f.id AND r.state = {LOCAL_COMMIT} AND r.shard = ANY (mine.shards)""",
    # Those that another instance is being given are passed over.
    "due": "UPDATE {rows} SET next_at = {later lease} WHERE id IN (SELECT id FROM {rows} WHERE "
    + DUE
    + " FOR UPDATE SKIP LOCKED) RETURNING "
    + DUE_COLUMNS,
    # Only the half message that is still open is changed: the first decision stands.
    "answered": """
UPDATE {rows} AS r SET state = a.state, checks = r.checks + a.checks, cause = a.cause,
    next_at = coalesce(clock_timestamp() + a.again_in * interval '1 s', {decided_at}),
    expires = CASE WHEN a.again_in IS NULL THEN {expiry} ELSE expires END
FROM unnest(:id::bigint[], :state::smallint[], :checks::int[], :again_in::float8[], :cause::text[])
    AS a (id, state, checks, again_in, cause)
WHERE r.id = a.id AND r.state = {PREPARED}""",
    # The ids are given in the order of the rows.
    "prepared": f"""
INSERT INTO {{rows}} ({_COLUMNS}, state, next_at, tx_id, producer_group, barrier_in)
SELECT {_COLUMNS}, :state::smallint, {{later first_check}}, :tx_id, :producer_group, :barrier_in
FROM unnest(:message_id::text[], :shard::smallint[], :topic::text[], :message_key::bytea[], :key_hash::bigint[], :partition::int[],
    :headers::text[], :value::bytea[], :size::int[], :due::float8[], :expires::float8[]) WITH ORDINALITY AS added ({_COLUMNS}, place)
ORDER BY place""",
}

_SEEN: Final = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint, (
    SELECT id FROM {rows} WHERE state = {LOCAL_COMMIT} AND NOT behind AND due IS NULL AND next_at IS NULL AND id > :floor
    ORDER BY id LIMIT 1
) FROM pg_current_snapshot() AS s"""

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_SENDABLE: Final = f"state = {RowState.LOCAL_COMMIT:d}"


class Postgres(Dialect):
    """Each statement is its own transaction. What becomes of many rows is one, with arrays."""

    writing = Around((_BEGIN,), ("COMMIT",))
    patient = Around((_BEGIN, "SELECT set_config('lock_timeout', greatest(1, (:wait::float8 * 1000)::int)::text, true)"), ("COMMIT",))
    gave_up = Around(("ROLLBACK",))
    waiting = (f"{_SENDABLE} AND NOT behind AND due IS NULL", f"{_SENDABLE} AND behind AND key_hash IS NOT NULL")
    has_arrays = takes_at_once = True

    def __init__(self, tables: Tables, address: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_WORDS, names_of(tables), Placeholders("${}".format, repeats=False))
        self._address, self._floor, self._clock = address, Floor(), clock

    def pending(self, **seek: Any) -> Steps[Sequence[Sequence[Any]]]:
        """See `Dialect.pending`. The floor is looked for first, now and then."""
        now = self._clock()
        if self._floor.is_due(now):
            self._floor.see(Seen(*(yield from self.read(self.say(_SEEN, floor=self._floor.id)))[0]))
        above = self._floor.begin(now)
        rows = yield from self.read(self.say("{pending}", **seek, floor=above))
        self._floor.found([row[0] for row in rows], above)
        return rows

    def require_settings(self) -> Steps[None]:
        yield from maintenance.require_durable(self._address)
        yield from maintenance.require_readable(self._address)

    def may(self, right: str, table: str) -> Packet:
        return [Statement("SELECT has_table_privilege(to_regclass($1), $2)", (self.tables[table], right))]


#: Rows of a transaction that are written as VALUES, which costs the server less than arrays; each number of rows is a statement to prepare.
_FEW: Final = 8

# The ids are given in the order of the rows, which is that of the calls.
_UNTIMED: Final = ", ".join(UNTIMED)
_ARRAYS: Final = "$1::text[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::int[], $7::text[], $8::bytea[], $9::int[]"
_INSERT_FEW: Final = f"INSERT INTO {{rows}} ({_UNTIMED}) VALUES {{values}}"
_INSERT: Final = f"""
INSERT INTO {{rows}} ({_UNTIMED}) SELECT {_UNTIMED} FROM unnest({_ARRAYS}) WITH ORDINALITY AS added ({_UNTIMED}, place) ORDER BY place
"""
_INSERT_TIMED: Final = f"""
INSERT INTO {{rows}} ({_UNTIMED}, due, next_at, expires) SELECT {_UNTIMED}, due, {_WORDS["due_time"]},
    {WORDS["expiry"].replace("{epoch}", _WORDS["epoch"])}
FROM unnest({_ARRAYS}, $10::float8[], $11::float8[]) WITH ORDINALITY AS added ({_COLUMNS}, place) ORDER BY place
"""


def inserting(table: str) -> Callable[[Sequence[RowColumns], Packet], Steps[None]]:
    """Return what inserts rows to be sent."""

    def insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        yield [*before, _insert(table, rows)]

    return insert


def _insert(table: str, rows: Sequence[RowColumns]) -> Statement:
    columns = [*map(list, zip(*rows, strict=True))]
    if any(row.is_timed for row in rows):
        return Statement(_INSERT_TIMED.format(rows=table), columns)
    if len(rows) <= _FEW:
        return Statement(_few(table, len(rows)), [*chain.from_iterable(row[: len(UNTIMED)] for row in rows)])
    return Statement(_INSERT.format(rows=table), columns[: len(UNTIMED)])


@functools.cache
def _few(table: str, count: int) -> str:
    width = len(UNTIMED)
    rows = (", ".join(f"${place}" for place in range(row * width + 1, (row + 1) * width + 1)) for row in range(count))
    return _INSERT_FEW.format(rows=table, values=", ".join(f"({each})" for each in rows))


_EVERY: Final = 0.05
"""Seconds between two notifications."""


_NOTIFY: Final = """
WITH idle AS (UPDATE {relays} SET idle_until = NULL WHERE idle_until > {now} RETURNING owner)
SELECT pg_notify(:channel, '') FROM (SELECT FROM idle LIMIT 1) AS somebody
"""
_SAY_IDLE: Final = "UPDATE {relays} SET idle_until = {later at_most} WHERE owner = :owner"
_NEWEST: Final = "SELECT max(id) FROM {rows} WHERE state = {LOCAL_COMMIT} AND NOT behind AND due IS NULL"


def channel_of(rows: str) -> str:
    """Return the channel of the notifications about a table: a name of any length would be cut."""
    return f"ackwise_outbox_{hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()}"


def notify(sql: Dialect, channel: str) -> Steps[None]:
    """Notify relays of other processes, if one waits."""
    yield [sql.say(_NOTIFY, channel=channel)]


def say_idle(sql: Dialect, owner: str, at_most: float) -> Steps[int | None]:
    """Say that `owner` waits; return the highest id of a row to be sent."""
    _, newest = yield sql.say_all((_SAY_IDLE, _NEWEST), owner=owner, at_most=at_most)
    found: int | None = newest.rows[0][0]
    return found


class Waking:
    """The side of those who commit: `soon` returns at once, and what it starts ends with `close`.

    A NOTIFY in the business transaction would hold a lock of the whole database to the end of each commit. So it is sent on a connection
    of ours, at most every 50 ms, and only if a relay has said that it waits: what it waits for has `idle_until` in its row until then.
    """

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.sent = 0  #: how often the database was asked to notify

    def soon(self) -> None:
        """There was a commit. To be called in the event loop of the outbox."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._notify_relays(), name="ackwise wakes relays")

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _notify_relays(self) -> None:
        while self._again:
            self._again = False
            self.sent += 1
            with suppress(AckwiseError):  # a relay looks by itself, too
                await self._notify()
            await asyncio.sleep(_EVERY)


class Listening:
    """The side of a relay: its own connection that turns notifications into wakes of this process."""

    def __init__(self, channel: str, wakes: Wakes) -> None:
        self._channel, self._wakes = channel, wakes
        self._connection: PoolConnectionProxy | None = None
        self._pool: Pool | None = None

    @property
    def is_lost(self) -> bool:
        """Return True if there is no listener."""
        try:
            return self._connection is None or self._connection.is_closed()
        except asyncpg.InterfaceError:  # the pool has taken it back, since it broke
            return True

    async def ensure(self, pool: Pool, timeout: float) -> None:
        """Listen, if that is not so already. Raises what asyncpg raises."""
        if not self.is_lost:
            return
        await self.close()
        self._pool = pool
        self._connection = await pool.acquire(timeout=timeout)
        await self._connection.add_listener(self._channel, self._notified)

    async def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pool is not None:
            with suppress(asyncpg.InterfaceError):
                connection.terminate()
            with suppress(asyncpg.InterfaceError, OSError):
                await self._pool.release(connection)

    def _notified(self, *_: object) -> None:
        self._wakes.wake()


_MAX_SIZE: Final = 4
"""Connections: a relay has one that listens and one that asks; a check-back and a notification may want one each."""

# As for the claims: a plan for an empty table would read all of a large one for as long as the connection lives. What is left is the
# look-up by an index, in the order of the ids.
_SESSION: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}


class PostgresOutbox(ServerOutbox):
    """An outbox in the PostgreSQL database of `url`, in which the business's own tables are as well.

        async with outbox.transaction(connection):
            await connection.execute("UPDATE …")
            outbox.send("orders", value, key=key)

    `connection` is any asyncpg connection to that database. It may use `connection.transaction()` inside, which is a savepoint. Writing
    rows needs no `open`. Relays, half messages and operators use connections of our own, `max_size` at most; or give your own `pool`,
    which stays yours: its settings are not touched, nor is it closed; a relay keeps one connection of it to listen.

    Rows are deleted once they were sent. With `keep_sent` (seconds) they stay so long, without what `blank` names (`value`, `key` and
    `headers` by default). Parked rows stay until they are requeued, or with `keep_parked` (seconds) until `cleanup` deletes them unsent.
    `retention` (seconds) is how long `cleanup` leaves what was rolled back. `timeout` (seconds) bounds each call on our own connections.
    `schema` and `prefix` say where the tables are: without a schema, where the search path leads. `statement_cache_size=0` is for
    PgBouncer in transaction mode; then relays look every second, and are not notified. Raises `ConfigurationError`.
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
        retention: float = 86400.0,
        keep_sent: float = 0.0,
        keep_parked: float | None = None,
        blank: Collection[str] = tuple(PAYLOAD),
    ) -> None:
        driver = Asyncpg(
            OUTBOX,
            url,
            pool,
            timeout=timeout,
            max_size=max_size,
            statement_cache_size=statement_cache_size,
            session=_SESSION,
            maintenance_session={},
            is_bounded=True,
        )
        tables, address = Tables(schema, prefix), driver.address
        sql, rows = Postgres(tables, address), tables.named("outbox")
        keeping, wakes = Keeping(retention, keep_sent, keep_parked, blank), wakes_of(f"{address} {rows}")

        def located() -> Steps[str]:
            return (yield from found(tables)).named("outbox")

        super().__init__(Connections(driver), sql, layout(tables, OUTBOX, address), keeping, wakes, located, _business)
        self._newest: int | None = None
        self._owner: str | None = None
        channel = channel_of(rows)
        self._waking = Waking(lambda: self._run(lambda: notify(sql, channel)))
        self._listening = Listening(channel, wakes) if statement_cache_size else None

    async def close(self) -> None:
        await self._waking.close()
        if self._listening is not None:
            await self._listening.close()
        await super().close()

    def wake(self) -> None:
        """See `Outbox.wake`; a relay of another process is notified if it is idle and this outbox is open."""
        self._wakes.wake()
        if self._connections.pool is not None:
            self._waking.soon()

    @property
    def notifies(self) -> bool:
        """Return True if commits of other processes end `wait_for_rows`; through PgBouncer they can't."""
        return self._listening is not None

    def _signing_in(self, owner: str, share: int) -> int:
        self._owner = owner
        return share

    async def wait_for_rows(self, at_most: float) -> bool:
        waiter = self._wakes.begin(self._seen)
        if not waiter.event.is_set() and await self._say_idle(at_most):
            return True
        return await waiter.wait(at_most)

    async def _say_idle(self, at_most: float) -> bool:
        """Ask other processes for notifications; return True if rows have come since the last poll, too early for one."""
        if self._owner is None or self._listening is None:
            return False
        owner, pool = self._owner, self._connections.require_open()
        await self._listen(self._listening, pool)
        newest = await self._run(lambda: say_idle(self._sql, owner, at_most))
        before, self._newest = self._newest, newest
        return newest is not None and newest != before

    async def _listen(self, listening: Listening, pool: Pool) -> None:
        """Listen; a lost connection of the pool is replaced once."""
        try:
            await listening.ensure(pool, self._timeout)
        except FAILURES as error:
            if problem_of(error) is not Problem.LOST:
                raise self._connections.unavailable(error) from None
            await self._connections.replace(pool)
            with self._connections.errors(self._timeout):
                await listening.ensure(pool, self._timeout)


def from_url(url: str) -> PostgresOutbox:
    """Return the outbox of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=4&statement_cache_size=0`,
    `&keep_sent=604800&keep_parked=2592000&blank=value,key,headers`, and libpq's `sslmode`, `sslrootcert` and their kin.
    Raises `ConfigurationError`.
    """
    url, keeping = keeping_of(url)
    drivers, options = parse(url, Options(max_size=_MAX_SIZE))
    settings = options._asdict()
    if settings.pop("synchronous_commit") is not None:
        raise ConfigurationError("the PostgreSQL outbox has no option synchronous_commit; a message that was committed has to be durable")
    return PostgresOutbox(drivers, **settings, **keeping.given)


@functools.lru_cache(64)
def _writes(table: str) -> Writes:
    """Return the statements. Each answer says whether a transaction is open, and a failure breaks it, so that it needs no mark.

    The rows prove that it is not broken, or a statement does: PostgreSQL answers the COMMIT of a broken one with ROLLBACK and no error.
    """
    return Writes(inserting(table), restore=[Statement("COMMIT")], is_marked=False, proof=[Statement("SELECT")], as_ours=_as_ours)


def _as_ours(steps: Steps[None]) -> Steps[None]:
    """In the role that the session started with; the other one is remembered where no codec of the user's sees it."""
    yield [Statement("SELECT set_config('ackwise.role', current_setting('role'), true)"), Statement("SET LOCAL role TO DEFAULT")]
    yield from steps
    yield [Statement("SELECT set_config('role', current_setting('ackwise.role'), true)")]


_KINDS: Final = (asyncpg.Connection, PoolConnectionProxy)


def _business(connection: Any, rows: str, address: str, timeout: float) -> Business:
    """Return how rows get to `connection`. Raises `ConfigurationError` for what is none of asyncpg's."""
    require(connection, _KINDS, "PostgreSQL", "asyncpg")

    def as_error(error: Exception) -> Exception:
        if isinstance(error, asyncpg.InFailedSQLTransactionError):
            return TransactionAborted(BROKEN.format(database="PostgreSQL"))
        return as_store_error(error, address, timeout, OUTBOX.tables, OUTBOX.init)

    def cut() -> None:
        with suppress(asyncpg.InterfaceError):  # a lost one has left the pool already
            connection.terminate()

    return Business(
        _writes(rows),
        _Runner(connection),
        is_open=connection.is_in_transaction,
        watched=functools.partial(watched, connection),
        close=cut,
        as_error=as_error,
        timeout=timeout,
    )


class _Runner(AsyncpgRunner):
    """Transactions are asyncpg's own, so that it makes savepoints of those inside."""

    def __init__(self, connection: Connection | PoolConnectionProxy) -> None:
        super().__init__(connection)
        transaction = connection.transaction()
        self._ends: dict[str, Callable[[], Awaitable[None]]] = {
            "BEGIN": transaction.start,
            "COMMIT": lambda: commit(connection),
            "ROLLBACK": transaction.rollback,
        }

    async def send(self, packet: Packet) -> Sequence[Answer]:
        if (end := self._ends.get(packet[0].text)) is None:
            return await super().send(packet)
        try:
            await end()
        except asyncpg.InFailedSQLTransactionError:
            raise Failure(Problem.ENDED, TransactionAborted(BROKEN.format(database="PostgreSQL"))) from None
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error
        return [Answer()]
