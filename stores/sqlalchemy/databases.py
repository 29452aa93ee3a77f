"""What is done with the tables of an inbox in each database, as its own inbox does it, for a connection of SQLAlchemy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.store import Maintenance
from ackwise.stores.sqlalchemy.failures import ADDRESS

#: Begins a batch in the transaction of a session.
Begins: TypeAlias = Callable[[], Steps[Statements]]


def database(dialect: str, schema: str | None, prefix: str) -> Maintenance[Begins]:
    """Return it for the database that SQLAlchemy calls `dialect`. Raises `ConfigurationError`."""
    if dialect == "postgresql":
        from ackwise.stores.postgres import inbox as postgres
        from ackwise.stores.postgres.tables import Tables as PostgresTables

        return _beginning(postgres.maintained(PostgresTables(schema, prefix), ADDRESS))
    if dialect in ("mysql", "mariadb"):
        from ackwise.stores.mysql import inbox as mysql
        from ackwise.stores.mysql.inboxstatements import BEGAN
        from ackwise.stores.mysql.tables import Tables as MySQLTables

        return _beginning(mysql.maintained(MySQLTables(prefix, schema), ADDRESS), Statement(f"SAVEPOINT {BEGAN}"))
    if dialect == "sqlite":
        return _sqlite(schema, prefix)
    raise ConfigurationError(f"the SQLAlchemy inbox does not know {dialect}; it knows postgresql, mariadb, mysql and sqlite")


def _beginning(inbox: Maintenance[Statements], *first: Statement) -> Maintenance[Begins]:
    def prepare() -> Steps[Begins]:
        statements = yield from inbox.prepare()

        def begin() -> Steps[Statements]:
            if first:
                yield first
            return statements

        return begin

    return Maintenance(prepare, inbox.create, inbox.check, inbox.clean)


def _sqlite(schema: str | None, prefix: str) -> Maintenance[Begins]:
    from ackwise.stores.sqlite.clock import FileClock, clocks_of
    from ackwise.stores.sqlite.inboxstatements import SQLiteStatements, begin
    from ackwise.stores.sqlite.maintenance import clean, complaints
    from ackwise.stores.sqlite.schema import INBOX, set_up

    if schema is not None or prefix != "ackwise_":
        raise ConfigurationError("the tables of an inbox in SQLite have names that nothing changes; leave out schema and prefix")
    clock = FileClock(INBOX.name, Path(ADDRESS), clocks_of(time.time))

    def begin_batch() -> Steps[Statements]:
        # Where SQLAlchemy itself has begun, it was not as a writer.
        yield [Statement("BEGIN IMMEDIATE"), Statement("DELETE FROM ackwise_inbox WHERE FALSE")]
        return SQLiteStatements((yield from begin(clock)))

    def prepare() -> Steps[Begins]:
        yield from set_up(INBOX, ADDRESS)
        return begin_batch

    return Maintenance(
        prepare, lambda: set_up(INBOX, ADDRESS), lambda: complaints(ADDRESS, INBOX), lambda: clean(ADDRESS, INBOX, time.time)
    )
