"""`MySQLStore`: claims in a MariaDB or MySQL database, for all workers that reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap

from asyncmy.connection import Connection
from asyncmy.pool import Pool

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.mysql import checking, maintenance, statements
from ackwise.stores.mysql.driver import Asyncmy
from ackwise.stores.mysql.schema import Tables, layout, require_server, server
from ackwise.stores.mysql.statements import Row
from ackwise.stores.mysql.url import parse
from ackwise.stores.protocol.purpose import CLAIMS
from ackwise.stores.protocol.requests import Answer, Asked
from ackwise.stores.sql.claims import SQLClaims, exchange_in_rounds
from ackwise.stores.sql.connections import MAINTENANCE_TIMEOUT, Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import Maintenance, complaints, create


class MySQLStore(SQLClaims[Connections[Pool, Connection]]):
    """A claim store in the MariaDB or MySQL database of `url`; or on `pool`, an asyncmy pool, which stays yours: its settings are not
    touched, nor is it closed.

    `prefix` begins the names of the tables. `timeout` (seconds) bounds an exchange with all that it has to wait for. At most
    `max_size` connections are open. In the URL, `sslmode`, `sslrootcert`, `sslcert` and `sslkey` say how TLS is used, with the
    meaning that they have for PostgreSQL; without any of them there is none.

    Raises `ConfigurationError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: Pool | None = None,
        prefix: str = "ackwise_",
        timeout: float = 5.0,
        max_size: int = 2,
    ) -> None:
        driver = Asyncmy(CLAIMS, url, pool, timeout=timeout, max_size=max_size, session=_session, maintenance_session=_maintenance_session)
        claims = _Claims(Tables(prefix), driver.address)
        super().__init__(Connections(driver), claims.exchange, Maintenance(claims.prepare, claims.create, claims.complaints, claims.clean))


class _Claims:
    """The claims in `tables`. The server decides, each round in one statement: see `statements`."""

    def __init__(self, tables: Tables, address: str) -> None:
        self._tables, self._address = tables, address
        self._layout = layout(tables, CLAIMS, address)
        self._server = statements.MARIADB

    def exchange(self, exchange: Exchange) -> Steps[ExchangeResult]:
        return exchange_in_rounds(exchange, self._ask)

    def prepare(self) -> Steps[None]:
        yield from self.create()
        yield from checking.require_rights(self._tables, self._address)

    def create(self) -> Steps[None]:
        require_server(said := (yield from server()), self._address)
        self._server = statements.server_of(said)
        yield from create(self._layout)

    def complaints(self) -> Steps[list[str]]:
        require_server((yield from server()), self._address)
        return (yield from complaints(self._layout, lambda: checking.of_claims(self._tables)))

    def clean(self) -> Steps[int]:
        return maintenance.clean_claims(self._layout, self._tables)

    def _ask(self, some: Sequence[Asked], exchange: Exchange) -> Steps[Mapping[int, Answer]]:
        found = yield statements.packet(self._tables, self._server, some, exchange)
        records = {row.place: row for row in starmap(Row, found[self._server.answer].rows)}
        return {one.position: statements.answer(one, records[one.place]) for one in some}


def _session(timeout: float) -> str:
    """Return what a connection for exchanges begins with: the server gives up first, so that it says what it waited for."""
    return _settings(max(1, int(timeout * 0.8)), timeout * 0.9)


def _maintenance_session(_timeout: float) -> str:
    return _settings(int(MAINTENANCE_TIMEOUT), MAINTENANCE_TIMEOUT)


def _settings(lock_timeout: int, statement_timeout: float) -> str:
    """Return SQL for these seconds. What stands in the comment is MariaDB's alone."""
    return (
        f"SET SESSION sql_notes = 0, innodb_lock_wait_timeout = {lock_timeout} /*M! , max_statement_time = {statement_timeout} */; "
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    )


def from_url(url: str) -> MySQLStore:
    """Return the store of `mysql://user:password@host:3306/database`, or `mariadb://…`.

    Options follow as a query: `?prefix=…&timeout=2.5&max_size=2`, and `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
    Raises `ConfigurationError`.
    """
    address, options = parse(url)
    return MySQLStore(address, **options._asdict())
