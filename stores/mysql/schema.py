"""The tables of the claim store, of the inbox and of the outbox, and their versions: looked up, and created."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql import offsets
from ackwise.stores.mysql.failures import NO_SUCH_TABLE
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.protocol.purpose import CLAIMS, Purpose

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["TIMEOUT", "changed", "create", "require_server", "require_tables", "rows", "version"]

TIMEOUT = 60.0
"""Seconds that one statement of `init`, `check` or `cleanup` may take."""

_EARLIEST = {"MariaDB": (10, 5), "MySQL": (8, 0, 19)}
"""The first that answers an INSERT with its rows, and the first in which the inserted row has a name."""

# The day comes first in the key: records of one day lie together, and those of days gone by are not touched again. There is no
# index but that one, or every change of a record would be a change of an index too. What no claim has yet has its value as a default.
_CLAIMS = """
CREATE TABLE IF NOT EXISTS {} (
    day BIGINT NOT NULL,
    k BINARY(16) NOT NULL,
    token BIGINT NOT NULL,
    leased_until DATETIME(6) NOT NULL,
    kept_until DATETIME(6) NOT NULL,
    epoch INT NOT NULL DEFAULT 1,
    next_attempt INT NOT NULL,
    lost INT NOT NULL DEFAULT 0,
    took_unreleased TINYINT NOT NULL DEFAULT 0,
    outcome TINYINT NOT NULL,
    step TINYINT NOT NULL,
    holder VARCHAR(96) CHARACTER SET ascii NOT NULL,
    PRIMARY KEY (day, k)
) ENGINE = InnoDB"""

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


async def rows(connection: Connection, statement: str) -> list[Any]:
    """Return the rows of one statement, outside of a transaction. Raises what asyncmy raises, and `TimeoutError`."""
    return (await _run(connection, statement))[1]


async def changed(connection: Connection, statement: str) -> int:
    """Return how many rows one statement changed, outside of a transaction. Raises what asyncmy raises, and `TimeoutError`."""
    return (await _run(connection, statement))[0]


async def _run(connection: Connection, statement: str) -> tuple[int, list[Any]]:
    async with asyncio.timeout(TIMEOUT), connection.cursor(Cursor) as cursor:
        count = await cursor.execute(statement)
        found = list(await cursor.fetchall()) if cursor.description else []
        if not connection.get_autocommit():
            await connection.commit()
    return int(count), found


def require_server(connection: Connection, address: str, purpose: Purpose = CLAIMS) -> None:
    """Raise `ConfigurationError` for a server that is too old."""
    said = connection.get_server_info()
    # Old clients take the first number of a version for all of it, and MariaDB shows them one that they know.
    name, said = ("MariaDB", said.removeprefix("5.5.5-")) if "MariaDB" in said else ("MySQL", said)
    found = tuple(int(number) for number in re.findall(r"\d+", said)[:3])
    if found < _EARLIEST[name]:
        needed = ".".join(map(str, _EARLIEST[name]))
        raise ConfigurationError(
            f"{address}: {name} {'.'.join(map(str, found))} is too old for the {purpose.tables}; it needs {needed} or later"
        )


async def version(connection: Connection, tables: Tables, purpose: Purpose) -> int | None:
    """Return the version of the tables; `None` if they are missing."""
    try:
        found = await rows(connection, f"SELECT version FROM {tables.versions} WHERE part = '{purpose.part}'")
    except MySQLError as error:
        if error.args[0] == NO_SUCH_TABLE:
            return None
        raise
    return int(found[0][0]) if found else None


async def require_tables(connection: Connection, tables: Tables, purpose: Purpose, address: str) -> None:
    """Raise `ConfigurationError` for tables that are missing, or of another version than ours."""
    found = await version(connection, tables, purpose)
    if found is None:
        raise ConfigurationError(purpose.not_there(address))
    purpose.require_version(found, address)


async def create(connection: Connection, tables: Tables, purpose: Purpose, address: str, ddl: Sequence[str] = ()) -> None:
    """Create what is missing, with the statements `ddl` where they are not those of claims or inbox; any number may do so at once.

    Raise `ConfigurationError` for tables of another version than ours.
    """
    require_server(connection, address, purpose)
    if (found := await version(connection, tables, purpose)) is not None:
        purpose.require_version(found, address)
        return
    for statement in (*(ddl or _ddl(tables, purpose)), _VERSIONS.format(tables.versions)):
        await changed(connection, statement)
    insert = f"INSERT INTO {tables.versions} VALUES ('{purpose.part}', {purpose.version}) ON DUPLICATE KEY UPDATE version = version"
    await changed(connection, insert)


def _ddl(tables: Tables, purpose: Purpose) -> Sequence[str]:
    if purpose is CLAIMS:
        return [_CLAIMS.format(tables.claims)]
    return [_INBOX.format(tables.named("inbox")), offsets.TABLE.format(tables.named("offsets"))]
