"""The table of an inbox in MariaDB or MySQL: made, looked at, and rid of what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql import offsets
from ackwise.stores.mysql.failures import NO_SUCH_TABLE
from ackwise.stores.mysql.maintenance import believed_now
from ackwise.stores.mysql.schema import changed, require_server, rows
from ackwise.stores.mysql.tables import Tables

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["VERSION", "clean", "complaints", "create", "require_rights", "require_table"]

VERSION = 1

_AT_ONCE = 2000
"""Records that one step of a cleanup deletes."""

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

_INBOX = """
CREATE TABLE IF NOT EXISTS {} (
    k BINARY(16) NOT NULL PRIMARY KEY,
    outcome TINYINT NOT NULL,
    next_attempt INT NOT NULL,
    origin_topic VARBINARY(249) NOT NULL,
    origin_partition INT NOT NULL,
    origin_offset BIGINT NOT NULL,
    exec_id BIGINT NOT NULL,
    kept_until DATETIME(6) NOT NULL
) ENGINE = InnoDB"""

_VERSIONS = """
CREATE TABLE IF NOT EXISTS {} (part VARCHAR(64) CHARACTER SET ascii PRIMARY KEY, version INT NOT NULL) ENGINE = InnoDB"""

# Each touches no record, and is refused before it looks for one.
_ATTEMPTS = ("INSERT INTO {0} SELECT * FROM {0} WHERE FALSE", "UPDATE {0} SET {1} = 0 WHERE FALSE")
_TO_CLEAN = "DELETE FROM {0} WHERE FALSE"


async def create(connection: Connection, tables: Tables, address: str) -> None:
    """Create what is missing; any number may do so at once. Raises `ConfigurationError` if a newer Ackwise was here."""
    require_server(connection, address)
    if (found := await _version(connection, tables)) is not None:
        _require_version(found, address)
        return
    await rows(connection, _INBOX.format(tables.named("inbox")))
    await rows(connection, offsets.TABLE.format(tables.named("offsets")))
    await rows(connection, _VERSIONS.format(tables.versions))
    await rows(connection, f"INSERT INTO {tables.versions} VALUES ('inbox', {VERSION}) ON DUPLICATE KEY UPDATE version = version")


async def require_table(connection: Connection, tables: Tables, address: str) -> None:
    """Raises `ConfigurationError` if it is missing, or only a newer Ackwise knows it."""
    if (found := await _version(connection, tables)) is None:
        raise ConfigurationError(f"{address}: the table of the inbox is missing; run `ackwise store init URL`")
    _require_version(found, address)


async def require_rights(connection: Connection, tables: Tables) -> None:
    """Raises asyncmy's error if the user may not do what every batch does."""
    for table, column in ((tables.named("inbox"), "outcome"), (tables.named("offsets"), "next_offset")):
        for attempt in _ATTEMPTS:
            await rows(connection, attempt.format(table, column))


async def complaints(connection: Connection, tables: Tables, address: str) -> list[str]:
    """What is wrong or unwise, one sentence each with what to do."""
    if await _version(connection, tables) is None:
        return [f"{address}: the table of the inbox is missing; run `ackwise store init URL`"]
    await require_table(connection, tables, address)
    await require_rights(connection, tables)
    inbox, said = tables.named("inbox"), []
    await rows(connection, _TO_CLEAN.format(inbox))
    ((durable,),) = await rows(connection, "SELECT @@innodb_flush_log_at_trx_commit")
    if durable != 1:
        said.append(
            f"{address}: innodb_flush_log_at_trx_commit is {durable}, so a crash of the server's machine can lose what Kafka was told "
            "is done; set it to 1"
        )
    forgotten = f"SELECT 1 FROM {inbox} WHERE kept_until <= UTC_TIMESTAMP(6) LIMIT 1 OFFSET {_MANY}"
    if await rows(connection, forgotten):
        said.append(f"{address}: {inbox} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day")
    return said


async def clean(connection: Connection, tables: Tables, address: str) -> int:
    """Delete what is forgotten, some records at a time, beside running workers; gives how many."""
    await require_table(connection, tables, address)
    inbox, after, deleted = tables.named("inbox"), "", 0
    now = await believed_now(connection, address)
    while True:
        found = await rows(connection, f"SELECT k FROM {inbox} WHERE kept_until <= {now} {after} ORDER BY k LIMIT {_AT_ONCE}")
        if not found:
            return deleted
        # Only these are locked, and looked at again: whoever is at work on another key waits for nothing.
        some = ", ".join(f"x'{k.hex()}'" for (k,) in found)
        deleted += await changed(connection, f"DELETE FROM {inbox} WHERE k IN ({some}) AND kept_until <= {now}")
        after = f"AND k > x'{found[-1][0].hex()}'"


async def _version(connection: Connection, tables: Tables) -> int | None:
    try:
        found = await rows(connection, f"SELECT version FROM {tables.versions} WHERE part = 'inbox'")
    except MySQLError as error:
        if error.args[0] == NO_SUCH_TABLE:
            return None
        raise
    return int(found[0][0]) if found else None


def _require_version(found: int, address: str) -> None:
    if found > VERSION:
        raise ConfigurationError(
            f"{address}: its inbox has version {found}, and this Ackwise knows version {VERSION}; upgrade, or choose another prefix"
        )
