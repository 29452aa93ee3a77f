"""`Database`: the inbox of a database as its own store makes and reads it, for a connection of SQLAlchemy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol.purpose import INBOX
from ackwise.stores.sql.inbox import Statements
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.schema import complaints, create
from ackwise.stores.sqlalchemy.failures import ADDRESS

__all__ = ["Database", "database"]


class Database(NamedTuple):
    """Its operations. Each but `begin` takes a connection of its own."""

    create: Callable[[], Steps[None]]
    open: Callable[[], Steps[Callable[[], Steps[Statements]]]]
    """Creates what is missing, and returns what begins a batch in the transaction of a session."""
    check: Callable[[], Steps[list[str]]]
    clean: Callable[[], Steps[int]]


def database(dialect: str, schema: str | None, prefix: str) -> Database:
    """The database that SQLAlchemy calls `dialect`. Raises `ConfigurationError`."""
    if dialect == "postgresql":
        return _postgresql(schema, prefix)
    if dialect in ("mysql", "mariadb"):
        return _mysql(schema, prefix)
    if dialect == "sqlite":
        return _sqlite(schema, prefix)
    raise ConfigurationError(f"the SQLAlchemy inbox does not know {dialect}; it knows postgresql, mariadb, mysql and sqlite")


def _postgresql(schema: str | None, prefix: str) -> Database:
    from ackwise.stores.postgres import checking, maintenance
    from ackwise.stores.postgres.inboxstatements import PostgresStatements
    from ackwise.stores.postgres.schema import found, layout
    from ackwise.stores.postgres.tables import Tables

    tables = Tables(schema, prefix)
    made = layout(tables, INBOX, ADDRESS)

    def open() -> Steps[Callable[[], Steps[Statements]]]:
        yield from checking.require_durable(ADDRESS)
        yield from create(made)
        yield from checking.require_rights((tables.named("inbox"), tables.named("offsets")), ADDRESS)
        there = yield from found(tables)
        return _begins(PostgresStatements(there.named("inbox"), there.named("offsets")))

    return Database(
        lambda: create(made),
        open,
        lambda: complaints(made, lambda: checking.of_inbox(tables, ADDRESS)),
        lambda: maintenance.clean_inbox(made, tables),
    )


def _mysql(schema: str | None, prefix: str) -> Database:
    from ackwise.stores.mysql import checking, maintenance
    from ackwise.stores.mysql.inboxstatements import BEGAN, found
    from ackwise.stores.mysql.schema import layout
    from ackwise.stores.mysql.tables import Tables

    tables = Tables(prefix, schema)
    made = layout(tables, INBOX, ADDRESS)

    def open() -> Steps[Callable[[], Steps[Statements]]]:
        yield from create(made)
        yield from checking.require_inbox_rights(tables)
        return _begins((yield from found(tables)), Statement(f"SAVEPOINT {BEGAN}"))

    return Database(
        lambda: create(made),
        open,
        lambda: complaints(made, lambda: checking.of_inbox(tables)),
        lambda: maintenance.clean_inbox(made, tables),
    )


def _sqlite(schema: str | None, prefix: str) -> Database:
    from ackwise.stores.sqlite.clock import FileClock, clocks_of
    from ackwise.stores.sqlite.inboxstatements import SQLiteStatements, begin
    from ackwise.stores.sqlite.maintenance import clean
    from ackwise.stores.sqlite.maintenance import complaints as complaints_of_file
    from ackwise.stores.sqlite.schema import INBOX as PART
    from ackwise.stores.sqlite.schema import set_up

    if schema is not None or prefix != "ackwise_":
        raise ConfigurationError("the tables of an inbox in SQLite have names that nothing changes; leave out schema and prefix")
    clock = FileClock(PART.name, Path(ADDRESS), clocks_of(time.time))

    def begin_batch() -> Steps[Statements]:
        # Where SQLAlchemy itself has begun, it was not as a writer.
        yield [Statement("BEGIN IMMEDIATE"), Statement("DELETE FROM ackwise_inbox WHERE FALSE")]
        return SQLiteStatements((yield from begin(clock)))

    def open() -> Steps[Callable[[], Steps[Statements]]]:
        yield from set_up(PART, ADDRESS)
        return begin_batch

    return Database(lambda: set_up(PART, ADDRESS), open, lambda: complaints_of_file(ADDRESS, PART), lambda: clean(ADDRESS, PART, time.time))


def _begins(statements: Statements, *first: Statement) -> Callable[[], Steps[Statements]]:
    def begin() -> Steps[Statements]:
        if first:
            yield first
        return statements

    return begin
