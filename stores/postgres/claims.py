"""`PostgresStore`: claims in a PostgreSQL database, for all workers that reach it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final

import asyncpg
from asyncpg import Pool
from asyncpg.pool import PoolConnectionProxy

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.postgres import checking, maintenance, statements
from ackwise.stores.postgres.driver import Asyncpg, nothing
from ackwise.stores.postgres.partitions import may_alter, partition_ahead
from ackwise.stores.postgres.schema import layout
from ackwise.stores.postgres.statements import Row
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.postgres.url import parse
from ackwise.stores.protocol.purpose import CLAIMS
from ackwise.stores.protocol.requests import Answer, Asked
from ackwise.stores.sql.claims import SQLClaims, exchange_in_rounds
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create

if TYPE_CHECKING:
    pass

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
"""What `synchronous_commit` can be."""


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
        super().__init__(Connections(driver), exchanging(tables), _maintained(tables, driver.address))


def exchanging(tables: Tables) -> Callable[[Exchange], Steps[ExchangeResult]]:
    """Return the exchange with the claims in `tables`. The server decides, each round in one statement: see `statements`.

    In a transaction that is not READ COMMITTED, meeting somebody else is an error of serialization.
    """

    def ask(some: Sequence[Asked], exchange: Exchange) -> Steps[Mapping[int, Answer]]:
        (found,) = yield [statements.statement(tables, some, exchange)]
        by_place = {one.place: one for one in some}
        answers: dict[int, Answer] = {}
        for row in starmap(Row, found.rows):
            one = some[row.position - 1] if row.position else by_place[row.key.bytes, row.day]
            if (said := statements.answer(one, row)) is not None:
                answers[one.position] = said
        return answers

    return lambda exchange: exchange_in_rounds(exchange, ask)


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
        yield from checking.require_rights((tables.claims, tables.daily_claims), address)

    def make() -> Steps[None]:
        yield from create(made)
        yield from partition_ahead(tables)

    return Maintenance(
        prepare, make, lambda: complaints(made, lambda: checking.of_claims(tables)), lambda: maintenance.clean_claims(made, tables)
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
