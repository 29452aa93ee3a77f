"""Statements of an outbox on a connection of SQLAlchemy, in the words of each database, for the tables of its own outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    literal_column,
    text,
)
from sqlalchemy.exc import IntegrityError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol import outboxliterals
from ackwise.stores.protocol.outboxliterals import literal
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.sql.outbox.preparing import too_late
from ackwise.stores.sqlalchemy.outbox.failures import code_of

__all__ = ["DIALECTS", "Statements"]

#: The dialects, and the URL of the outbox whose relay sends what a session of theirs has written.
DIALECTS: Final = {
    "postgresql": "postgresql://host/database",
    "mysql": "mysql://host/database",
    "mariadb": "mariadb://host/database",
    "sqlite": "sqlite:///path",
}

_DUPLICATE: Final = 1062
_NOW_OF_SQLITE: Final = "((julianday('now') - 2440587.5) * 86400.0)"


class Statements:
    """The statements for tables whose names begin with `prefix`, in `schema` or where the connection looks first."""

    def __init__(self, schema: str | None, prefix: str) -> None:
        self._schema, self._prefix = schema, prefix
        self._rows = Table(
            f"{prefix}outbox",
            MetaData(schema=schema),
            Column("message_id", Text),
            Column("shard", SmallInteger),
            Column("topic", Text),
            Column("message_key", LargeBinary),
            Column("key_hash", BigInteger),
            Column("partition", Integer),
            Column("headers", Text),
            Column("value", LargeBinary),
            Column("size", Integer),
            Column("created", Float(53)),
        )

    def insert(self, connection: Connection, rows: Sequence[RowColumns]) -> None:
        """Insert rows to be sent, in their order, which is that of their ids. Raises what SQLAlchemy raises, and `ConfigurationError`."""
        if self._is_mysql(connection):
            self._insert_literals(connection, rows)
            return
        statement: Insert = self._rows.insert()
        if connection.dialect.name == "sqlite":
            statement = statement.values(created=literal_column(_NOW_OF_SQLITE))
        connection.execute(statement, [row._asdict() for row in rows])

    def insert_barrier(self, connection: Connection, tx_id: str) -> None:
        """See `BarrierStore.barrier`. The outcome is read as it is now: this transaction may see an older state of the table."""
        barrier = self._name(connection, "outbox_barrier")
        if self._is_mysql(connection):
            found = self._mysql_barrier(connection, barrier, literal(tx_id))
        else:
            now = _NOW_OF_SQLITE if connection.dialect.name == "sqlite" else "clock_timestamp()"
            insert = f"INSERT INTO {barrier} (tx_id, outcome, created) VALUES (:tx_id, 'C', {now}) ON CONFLICT DO NOTHING"
            if connection.execute(text(insert), {"tx_id": tx_id}).rowcount:
                return
            found = connection.execute(text(f"SELECT outcome FROM {barrier} WHERE tx_id = :tx_id"), {"tx_id": tx_id}).scalar()
        if found is not None:
            raise too_late(str(found), tx_id)

    def database_id(self, connection: Connection) -> str:
        """See `BarrierStore.database_id`."""
        found = connection.execute(text(f"SELECT value FROM {self._name(connection, 'outbox_meta')} WHERE name = 'database_id'")).scalar()
        return found.decode() if isinstance(found, bytes) else str(found)

    def _insert_literals(self, connection: Connection, rows: Sequence[RowColumns]) -> None:
        """For MariaDB and MySQL; their drivers would insert row by row otherwise, or escape bytes in a way that not every mode reads."""
        packets = list(outboxliterals.inserts(self._name(connection, "outbox"), rows))
        if not outboxliterals.is_small(packets):
            limit = connection.exec_driver_sql(outboxliterals.MAX_PACKET).scalar_one()
            outboxliterals.require_room(packets, rows, limit, "the database of the session")
        for packet in packets:
            connection.exec_driver_sql(packet)

    def _mysql_barrier(self, connection: Connection, barrier: str, tx_id: str) -> str | None:
        """Insert it; return the outcome that was there before. An error of a key that is there undoes its statement and no more."""
        try:
            connection.exec_driver_sql(f"INSERT INTO {barrier} (tx_id, outcome, created) VALUES ({tx_id}, 'C', UTC_TIMESTAMP(6))")
        except IntegrityError as error:
            if code_of(error) != _DUPLICATE:
                raise
            return str(connection.exec_driver_sql(f"SELECT outcome FROM {barrier} WHERE tx_id = {tx_id} LOCK IN SHARE MODE").scalar())
        return None

    def _name(self, connection: Connection, table: str) -> str:
        """The table, quoted; a percent sign is doubled, as MySQL's drivers look for values in a statement."""
        preparer = connection.dialect.identifier_preparer
        quoted = [preparer.quote_identifier(part) for part in (self._schema, self._prefix + table) if part is not None]
        return ".".join(quoted)

    def _is_mysql(self, connection: Connection) -> bool:
        return self.dialect_of(connection) in ("mysql", "mariadb")

    def dialect_of(self, connection: Connection) -> str:
        """Return the name of the dialect. Raises `ConfigurationError` for one that has no outbox."""
        if connection.dialect.name not in DIALECTS:
            raise ConfigurationError(f"the SQLAlchemy outbox does not know {connection.dialect.name}; it knows {', '.join(DIALECTS)}")
        return connection.dialect.name
