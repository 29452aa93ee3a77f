"""The tables of each store, as they are created, with the version of each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from tests.formats.golden import check

from ackwise.stores.mysql import schema as mysql
from ackwise.stores.mysql.binlog import position
from ackwise.stores.mysql.schema import Tables as MySQLTables
from ackwise.stores.postgres import schema as postgres
from ackwise.stores.postgres.replication import slot
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol.options import CDC, CLAIMS, INBOX, OUTBOX
from ackwise.stores.redis.script import Layout
from ackwise.stores.sqlite import SQLiteInbox, SQLiteStore
from ackwise.stores.sqlite.outbox import SQLiteOutbox


def lines(*statements: str) -> Iterable[str]:
    """SQL without its indentation, and without what is random in it."""
    for statement in statements:
        yield from (re.sub(r"'[0-9a-f]{32}'", "'…'", line.strip()) for line in statement.splitlines() if line.strip())
        yield ""


def test_versions() -> None:
    assert {each.part: each.version for each in (CLAIMS, INBOX, OUTBOX, CDC)} == {"claims": 3, "inbox": 4, "outbox": 5, "cdc": 1}


def test_postgresql() -> None:
    tables = Tables()
    made = (*(statement for part in (CLAIMS, INBOX, OUTBOX) for statement in postgres.ddl(tables, part)), slot._COLUMNS)
    check("tables-postgresql", lines(*made))


def test_mysql() -> None:
    tables = MySQLTables()
    made = (*(statement for part in (CLAIMS, INBOX, OUTBOX) for statement in mysql.ddl(tables, part)), position._COLUMNS)
    check("tables-mysql", lines(*made))


async def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    for store in (SQLiteStore(path), SQLiteInbox(path), SQLiteOutbox(path)):
        await store.init()
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        versions = connection.execute("SELECT part, version FROM ackwise_schema ORDER BY part").fetchall()
    assert versions == [("claims", 3), ("inbox", 4), ("outbox", 5)]
    check("tables-sqlite", lines(*(statement for (statement,) in made)))


def test_redis() -> None:
    plain, compact, cluster = Layout(), Layout(compact=True), Layout(compact=True, buckets=16)
    place = bytes(range(16))
    check(
        "redis-keys",
        [f"{layout} | {layout.mark!r} | {layout.memory!r} | {layout.key(place)!r}" for layout in (plain, compact, cluster)],
    )
