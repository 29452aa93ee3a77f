"""`PostgresStore`: claims in a PostgreSQL database, for all workers that reach it.

Each exchange is one statement, which applies the transition table of `stores/protocol/transitions.py`. It runs on any asyncpg connection,
inside or outside a transaction, under READ COMMITTED.

`seen` looks up each key once; `changed` updates the records that a transition writes, and checks them again on the newest version
of the row, for which it waits; `added` inserts unknown keys and waits for other workers that insert the same key.
A key lost to another worker meanwhile has no answer and is asked again: the next statement sees the winner.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple

import asyncpg
from asyncpg import Pool
from asyncpg.pool import PoolConnectionProxy

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.claimstore import Ack, Acquired, Exchange, ExchangeResult, Outcome, Remembered, hash_of
from ackwise.stores.postgres import maintenance
from ackwise.stores.postgres.driver import Asyncpg, nothing
from ackwise.stores.postgres.schema import layout, may_alter, partition_ahead
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import parse
from ackwise.stores.protocol import transitions
from ackwise.stores.protocol.options import CLAIMS
from ackwise.stores.protocol.transitions import Answer, Asked, Kind, Record
from ackwise.stores.sql.claims import PAGE, Page, SQLClaims, exchange_in_rounds
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create, required


class Row(NamedTuple):
    """The result for one key: it was written, or the record that blocks it."""

    position: int
    """Among those asked by this statement, from 1; 0 where `added` tells the key only."""
    key: Any
    day: int | None
    restored: bool | None
    epoch: int | None
    lost: int | None
    took_unreleased: bool | None
    token: int | None
    next_attempt: int | None
    outcome: int | None
    leased_for: float | None
    """Seconds from now."""
    kept_for: float | None
    """Seconds from now."""
    owner: str | None


def statement(tables: Tables, some: Sequence[Asked], exchange: Exchange) -> Statement:
    """Return the statement for the requests `some`, which are sorted: those without a day come first."""
    text = text_of(tables, undated=some[0].place[1] is None, dated=some[-1].place[1] is not None)
    return Statement(text, arguments(some, exchange))


def arguments(some: Sequence[Asked], exchange: Exchange) -> tuple[object, ...]:
    """The arguments of the statement."""
    places, tokens, attempts, kinds, values, _, unrecorded = zip(*some, strict=True)
    return (
        [id.hex() for id, _ in places],
        [day for _, day in places],
        tokens,
        attempts,
        kinds,
        values,
        exchange.lease,
        exchange.retention,
        exchange.owner,
        [owner for owner in exchange.gone if owner],
        unrecorded if any(unrecorded) else (),
    )


def answer(one: Asked, row: Row) -> Answer | None:
    """The answer to a request, or `None` if another worker was faster and it has to be asked again."""
    if row.epoch is not None:
        if one.kind is Kind.CLAIM:
            return Acquired(row.epoch, row.lost or 0, bool(row.took_unreleased))
        return Ack.RESTORED if one.kind is Kind.COMPLETE and row.restored else Ack.OK
    record = _record(row)
    after, said = _decide(one, record)
    return said if after is None or after is record else None


def _record(row: Row) -> Record | None:
    """Return the record that blocks a request, on a clock that shows 0 now; fields set only by a granted claim are unknown."""
    if row.token is None or row.next_attempt is None or row.leased_for is None or row.kept_for is None:
        return None
    outcome = Outcome(row.outcome) if row.outcome else None
    record = Record(row.token, 1, row.next_attempt, 0, False, outcome, row.leased_for, row.kept_for)
    return record.held_by(row.owner or "")


def _decide(one: Asked, record: Record | None) -> tuple[Record | None, Answer]:
    match one.kind:
        case Kind.CLAIM:
            return transitions.claim(record, one.token, one.attempt, 0.0, 0.0, 0.0)
        case Kind.COMPLETE:
            return transitions.complete(record, one.token, one.attempt, Outcome(one.value or Outcome.OK), 0.0, 0.0)
        case Kind.RELEASE:
            return transitions.release(record, one.token, one.value, 0.0, 0.0)
        case Kind.RENEW:
            return transitions.renew(record, one.token, 0.0, 0.0, 0.0)


@functools.cache
def text_of(tables: Tables, *, undated: bool, dated: bool) -> str:
    """The statement for keys without a day, for keys with one, or for both in one trip."""
    parts = []
    if undated:
        parts.append(_part(tables.claims, "u", dated=False))
    if dated:
        parts.append(_part(tables.daily_claims, "d", dated=True))
    lookups, added, changed, others = zip(*parts, strict=True)
    # The order matters, and is kept: what inserts may wait for what updates, of another worker, and never the other way round.
    return f"WITH asked AS MATERIALIZED ({_ASKED}){''.join(lookups)}\n{' UNION ALL '.join((*added, *changed, *others))}"


# As the statement knows them.
_CLAIM, _COMPLETE, _RELEASE, _RENEW = (int(kind) for kind in (Kind.CLAIM, Kind.COMPLETE, Kind.RELEASE, Kind.RENEW))

_ASKED = f"""
    SELECT n, k, day, token, attempt, kind, value, $8::float8 * interval '1 second' AS retention,
        CASE WHEN kind IN ({_CLAIM}, {_RENEW}) THEN $7::float8 ELSE 0 END * interval '1 second' AS lease
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::smallint[], $6::int[])
        WITH ORDINALITY AS a (k, day, token, attempt, kind, value, n)
"""

# What is finished or given back has no holder. What is finished may have something there that was not recorded.
_HOLDER = f"CASE WHEN {{0}}kind IN ({_CLAIM}, {_RENEW}) THEN $9::text ELSE coalesce(($11::text[])[{{0}}n::int], '') END"


def _writes(record: str, request: str) -> str:
    """Return whether the transition changes an existing record."""
    return f"""CASE
        WHEN {record}.kept_until <= statement_timestamp() THEN {request}.kind IN ({_CLAIM}, {_COMPLETE})
        WHEN {record}.outcome <> 0 THEN
            {record}.outcome = {Outcome.DEAD:d} AND {request}.kind = {_COMPLETE} AND {request}.value = {Outcome.OK:d}
        WHEN {request}.kind <> {_CLAIM} THEN {record}.token = {request}.token
            OR {request}.token = 0 AND {request}.kind = {_COMPLETE} AND {request}.value = {Outcome.OK:d}
        ELSE {request}.attempt >= {record}.next_attempt
            AND ({record}.token IN ({request}.token, 0) OR {record}.leased_until <= clock_timestamp()
                OR {record}.holder = ANY ($10::text[])) END"""


# A record that is written although it is done was forgotten, or is dead and succeeds, and the rest of that is not needed.
# To ask the clock again would be wrong:
# the columns of one row have to agree.
_FRESH = "r.outcome <> 0 OR r.kept_until <= statement_timestamp()"


def _part(table: str, name: str, *, dated: bool) -> tuple[str, str, str, str]:
    """The CTEs for one table, and the queries for the answers of what they added, changed, and left alone."""
    day, same_day, has_day = ("day, ", " AND r.day = {}.day", "IS NOT NULL") if dated else ("", "", "IS NULL")
    ctes = f""",
seen_{name} AS MATERIALIZED (
    SELECT a.*, r.k IS NOT NULL AS known, r.kept_until <= statement_timestamp() AS forgotten, {_writes("r", "a")} AS writes,
        r.token AS held_by, r.next_attempt, r.outcome, r.leased_until, r.kept_until, r.holder
    FROM asked a LEFT JOIN {table} r ON r.k = a.k{same_day.format("a")} WHERE a.day {has_day}
), changed_{name} AS (
    UPDATE {table} r SET
        token = CASE s.kind WHEN {_RELEASE} THEN 0 ELSE s.token END,
        epoch = CASE WHEN {_FRESH} THEN 1 WHEN r.token = s.token THEN r.epoch ELSE r.epoch + 1 END,
        next_attempt = CASE
            WHEN {_FRESH} OR r.token <> s.token THEN s.attempt
            WHEN s.kind = {_RELEASE} THEN coalesce(s.value, r.next_attempt)
            ELSE r.next_attempt END,
        lost = CASE
            WHEN {_FRESH} THEN 0
            WHEN s.kind = {_RELEASE} AND s.value IS NOT NULL THEN 0
            WHEN r.token = s.token THEN r.lost
            WHEN s.attempt > r.next_attempt THEN 0
            ELSE r.lost + (r.token <> 0)::int END,
        took_unreleased = CASE
            WHEN s.kind = {_RELEASE} OR {_FRESH} THEN false
            WHEN r.token = s.token THEN r.took_unreleased
            ELSE r.token <> 0 END,
        outcome = CASE s.kind WHEN {_COMPLETE} THEN s.value ELSE 0 END,
        leased_until = clock_timestamp() + s.lease,
        kept_until = clock_timestamp() + s.lease + s.retention,
        holder = {_HOLDER.format("s.")}
    FROM seen_{name} s WHERE s.writes AND r.k = s.k{same_day.format("s")} AND {_writes("r", "s")}
    RETURNING s.n, s.forgotten, r.epoch, r.lost, r.took_unreleased
), added_{name} AS (
    INSERT INTO {table} (k, {day}token, epoch, next_attempt, lost, took_unreleased, outcome, leased_until, kept_until, holder)
    SELECT k, {day}token, 1, attempt, 0, false, CASE kind WHEN {_COMPLETE} THEN value ELSE 0 END,
        clock_timestamp() + lease, clock_timestamp() + lease + retention, {_HOLDER.format("")}
    FROM seen_{name} WHERE NOT known AND kind IN ({_CLAIM}, {_COMPLETE}) ORDER BY {day}k
    ON CONFLICT DO NOTHING
    RETURNING k, {"day" if dated else "NULL::bigint AS day"}
)"""
    added = f"""
SELECT 0, k, day, true, 1, 0, false, NULL::bigint, NULL::int, NULL::smallint, NULL::float8, NULL::float8, NULL::text FROM added_{name}"""
    changed = f"""
SELECT n, NULL::uuid, NULL::bigint, forgotten, epoch, lost, took_unreleased, NULL, NULL, NULL, NULL, NULL, NULL FROM changed_{name}"""
    others = f"""
SELECT n, NULL, NULL, NULL, NULL, NULL, NULL, held_by, next_attempt, outcome,
    extract(epoch FROM leased_until - clock_timestamp())::float8, extract(epoch FROM kept_until - statement_timestamp())::float8, holder
FROM seen_{name} WHERE CASE WHEN known THEN NOT writes ELSE kind IN ({_RELEASE}, {_RENEW}) END"""
    return ctes, added, changed, others


# Only the look-up of single keys in an index is left to the planner. It knows the tables as they were when it planned, and a plan
# for an empty table reads all of a large one, for as long as the connection lives.
SESSION: Final = {
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}

_DURABILITIES: Final = ("on", "off", "local", "remote_write", "remote_apply")
"""The valid values of `synchronous_commit`."""


class PostgresStore(SQLClaims[Connections[Pool, PoolConnectionProxy]]):
    """A claim store in the PostgreSQL database of `url`; or on `pool`, which stays yours: its settings are not touched, nor is it closed.

    `schema` and `prefix` say where the tables are: without a schema, where the search path leads.
    `timeout` (seconds) bounds an exchange with all that it has to wait for. At most `max_size` connections are open, and none that was
    idle for five minutes. `statement_cache_size=0` is for PgBouncer in transaction mode: nothing is prepared and no setting is made.
    `synchronous_commit=off` does not wait for the server's disk: if the server itself crashes, the last exchanges are forgotten, and
    their messages run again.

    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = 2,
        statement_cache_size: int = 100,
        synchronous_commit: str | None = None,
    ) -> None:
        driver = Asyncpg(
            CLAIMS,
            url,
            pool,
            timeout=timeout,
            max_size=max_size,
            statement_cache_size=statement_cache_size,
            session={**SESSION, **_durability(synchronous_commit)},
            maintenance_session=SESSION,
            is_bounded=True,
            reset=nothing,  # exchanges leave nothing to reset
        )
        tables = Tables(schema, prefix)
        listed = functools.partial(_listed, tables, driver.address)
        super().__init__(Connections(driver), exchanging(tables), _maintained(tables, driver.address), listed)


def exchanging(tables: Tables) -> Callable[[Exchange], Steps[ExchangeResult]]:
    """Return the exchange with the claims in `tables`. The server decides, each round in one statement: see `statements`.

    In a transaction that is not READ COMMITTED, meeting another transaction is an error of serialization.
    """

    def ask(some: Sequence[Asked], exchange: Exchange) -> Steps[Mapping[int, Answer]]:
        (found,) = yield [statement(tables, some, exchange)]
        by_place = {one.place: one for one in some}
        answers: dict[int, Answer] = {}
        for row in starmap(Row, found.rows):
            one = some[row.position - 1] if row.position else by_place[row.key.bytes, row.day]
            if (said := answer(one, row)) is not None:
                answers[one.position] = said
        return answers

    return lambda exchange: exchange_in_rounds(exchange, ask)


_LISTED: Final = """
SELECT {day}, k, outcome, token, holder,
    (extract(epoch FROM leased_until) * 1000000)::bigint, (extract(epoch FROM kept_until) * 1000000)::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
FROM {table} WHERE {after} ORDER BY {order} LIMIT {limit}"""
_EARLIEST_DAY: Final = -(2**63)
_LEAST_KEY: Final = uuid.UUID(int=0)


def _listed(tables: Tables, address: str, after: tuple[int | None, Any] | None) -> Steps[Page]:
    """List the keys without a day in the order of keys, then the others in that of days and keys."""
    day, key = (None, None) if after is None else after
    values: tuple[Any, ...]
    if day is None:
        after_key, values = ("TRUE", ()) if key is None else ("k > $1", (key,))
        text = _LISTED.format(day="NULL::bigint", table=tables.claims, after=after_key, order="k", limit=PAGE)
    else:
        values = (day, key)
        text = _LISTED.format(day="day", table=tables.daily_claims, after="(day, k) > ($1, $2)", order="day, k", limit=PAGE)

    def read() -> Steps[Sequence[Sequence[Any]]]:
        (found,) = yield [Statement(text, values)]
        return found.rows

    rows = yield from required(layout(tables, CLAIMS, address), read)
    records = [_remembered(*row[1:]) for row in rows if row[6] > row[7]]
    if len(rows) == PAGE:
        return Page(records, (rows[-1][0], rows[-1][1]))
    return Page(records, (_EARLIEST_DAY, _LEAST_KEY) if day is None else None)


def _remembered(key: Any, outcome: int, token: int, holder: str, leased_until: int, kept_until: int, now: int) -> Remembered:
    is_open = outcome == 0
    unrecorded = not is_open and holder != ""
    return Remembered(hash_of(key.bytes), str(key), outcome, is_open and token != 0, unrecorded, leased_until, kept_until, now)


def _maintained(tables: Tables, address: str) -> Maintenance[None]:
    """Return what is done with the tables, which makes the partitions of the days to come as well."""
    made = layout(tables, CLAIMS, address)

    def prepare() -> Steps[None]:
        yield from create(made)
        (read_only,) = yield [Statement("SHOW transaction_read_only")]
        if read_only.rows[0][0] == "on":
            raise Failure(Problem.LOST, asyncpg.ReadOnlySQLTransactionError("read-only"))
        if (yield from may_alter(tables)):
            yield from partition_ahead(tables)
        yield from maintenance.require_rights((tables.claims, tables.daily_claims), address)

    def make() -> Steps[None]:
        yield from create(made)
        yield from partition_ahead(tables)

    return Maintenance(
        prepare,
        make,
        lambda: complaints(made, lambda: maintenance.complaints_of_claims(tables)),
        lambda: maintenance.clean_claims(made, tables),
    )


def from_url(url: str) -> PostgresStore:
    """Return the store of `postgresql://user:password@host:5432/database`, or `postgres://…`.

    Options follow as a query: `?schema=…&prefix=…&timeout=2.5&max_size=2&statement_cache_size=0&synchronous_commit=off`, and libpq's
    `sslmode`, `sslrootcert` and their kin. Raises `ConfigurationError`.
    """
    drivers, options = parse(url)
    return PostgresStore(drivers, **options._asdict())


def _durability(synchronous_commit: str | None) -> dict[str, str]:
    if synchronous_commit not in (None, *_DURABILITIES):
        raise ConfigurationError(f"synchronous_commit is {synchronous_commit!r}; it can be {', '.join(_DURABILITIES)}")
    return {"synchronous_commit": synchronous_commit} if synchronous_commit else {}
