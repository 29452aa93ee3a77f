"""The table of an SQLAlchemy inbox, and its statements in the words of each database."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Float, MetaData, SmallInteger, String, Table, case, literal_column
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement

__all__ = ["VERSION", "Tables"]

VERSION: Final = 1

_LONGEST_TOPIC = 249
"""Characters; Kafka takes no longer name."""

#: Seconds since 1970 on the clock of the database.
_NOW: Final = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "mysql": "unix_timestamp(now(6))",
    "mariadb": "unix_timestamp(now(6))",
}

_INSERT: Final[dict[str, Any]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
    "mysql": mysql.insert,
    "mariadb": mysql.insert,
}


class Tables:
    """Names begin with `prefix`; they are in `schema`, or where the connection looks first."""

    DIALECTS: Final = tuple(_NOW)

    def __init__(self, dialect: str, schema: str | None, prefix: str) -> None:
        self.metadata = MetaData(schema=schema)
        self.versions = Table(
            f"{prefix}schema",
            self.metadata,
            Column("part", String(64), primary_key=True),
            Column("version", BigInteger, nullable=False),
        )
        self.inbox = Table(
            f"{prefix}session_inbox",
            self.metadata,
            Column("k", String(32), primary_key=True),
            Column("outcome", SmallInteger, nullable=False),
            Column("next_attempt", BigInteger, nullable=False),
            Column("origin_topic", String(_LONGEST_TOPIC), nullable=False),
            Column("origin_partition", BigInteger, nullable=False),
            Column("origin_offset", BigInteger, nullable=False),
            Column("exec_id", BigInteger, nullable=False),
            Column("kept_until", Float(53), nullable=False, index=True),
        )
        self._dialect = dialect
        self.now: ColumnElement[float] = literal_column(_NOW[dialect])

    def lock(self, retention: float) -> Insert:
        """Insert a key, or lock it where it is already; one that is forgotten is as good as new. Executed with `k`."""
        inbox, forgotten = self.inbox, self.inbox.c.kept_until <= self.now
        unknown = {"outcome": 0, "next_attempt": 0, "origin_topic": "", "origin_partition": 0, "origin_offset": 0, "exec_id": 0}
        kept_until = self.now + retention
        return self._upsert(
            {**unknown, "kept_until": kept_until},
            # MySQL sees what it assigned before: what the conditions ask about comes last.
            lambda _: [
                ("next_attempt", case((forgotten, 0), else_=inbox.c.next_attempt)),
                ("outcome", case((forgotten, 0), else_=inbox.c.outcome)),
                ("kept_until", case(((inbox.c.outcome != 0) & ~forgotten, inbox.c.kept_until), else_=kept_until)),
            ],
        )

    def finish(self, retention: float) -> Insert:
        """Write what became of a key. Executed with all columns but `kept_until`."""
        columns = ("outcome", "next_attempt", "origin_topic", "origin_partition", "origin_offset", "exec_id", "kept_until")
        return self._upsert({"kept_until": self.now + retention}, lambda new: [(name, new[name]) for name in columns])

    def add_version(self) -> Insert:
        """Say which version the inbox has, if nobody has said it."""
        insert: Any = _INSERT[self._dialect](self.versions).values(part="session_inbox", version=VERSION)
        if self._is_mysql:
            return insert.on_duplicate_key_update(part=self.versions.c.part)  # type: ignore[no-any-return]  # of each dialect, a class
        return insert.on_conflict_do_nothing()  # type: ignore[no-any-return]  # as above

    @property
    def _is_mysql(self) -> bool:
        return self._dialect in ("mysql", "mariadb")

    def _upsert(self, values: dict[str, Any], changes: Any) -> Insert:
        insert: Any = _INSERT[self._dialect](self.inbox).values(**values)
        if self._is_mysql:
            return insert.on_duplicate_key_update(changes(insert.inserted))  # type: ignore[no-any-return]  # as above
        return insert.on_conflict_do_update(index_elements=["k"], set_=dict(changes(insert.excluded)))  # type: ignore[no-any-return]  # as above
