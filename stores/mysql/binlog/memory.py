"""The table `ackwise_cdc`: for each reader of the log its position, who has it, and the heartbeat.

Whoever reads has a lease, and a token with which alone the position can be written: one that lost its lease moves nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.binlog.place import Place, number_of
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.failures import NO_RIGHT, NO_SUCH_TABLE
from ackwise.stores.protocol.outboxliterals import literal

if TYPE_CHECKING:
    from asyncmy.connection import Connection

    from ackwise.stores.mysql.tables import Tables

__all__ = ["Kept", "claim", "ensure", "keep", "recall", "release", "remember"]

#: Seconds that a reader is waited for without a word from it. It writes every three.
_LEASE: Final = 10

_NOW: Final = "UTC_TIMESTAMP(6)"

_COLUMNS: Final = """
    name VARBINARY(64) NOT NULL PRIMARY KEY,
    server VARBINARY(64) NOT NULL,
    log_file VARBINARY(255) NOT NULL,
    log_position BIGINT NOT NULL,
    log_created BIGINT NOT NULL,
    token BIGINT NOT NULL DEFAULT 0,
    leased_until DATETIME(6) NOT NULL DEFAULT '2000-01-01',
    beats BIGINT NOT NULL DEFAULT 0,
    beat_at DATETIME(6) NOT NULL DEFAULT '2000-01-01'"""


class Kept(NamedTuple):
    """What is kept of a reader."""

    server: str
    place: Place
    token: int
    is_leased: bool


async def ensure(connection: Connection, tables: Tables) -> None:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    try:
        await rows_of(connection, f"SELECT 1 FROM {name} LIMIT 0")
    except MySQLError as error:
        if error.args[0] not in (NO_SUCH_TABLE, *NO_RIGHT):
            raise
    else:
        return
    try:
        await rows_of(connection, f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) ENGINE = InnoDB")
    except MySQLError as error:
        if error.args[0] not in NO_RIGHT:
            raise
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())}) ENGINE = InnoDB"
        raise ConfigurationError(
            f"the table {name} is missing, or this user may not use it, nor create it; let somebody who may run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE ON {name} TO this user"
        ) from None


async def recall(connection: Connection, tables: Tables, name: str) -> Kept | None:
    """What is kept of the reader `name`."""
    question = (
        f"SELECT server, log_file, log_position, log_created, token, leased_until > {_NOW} "
        f"FROM {tables.named('cdc')} WHERE name = {literal(name)}"
    )
    found: list[Any] = await rows_of(connection, question)
    if not found:
        return None
    server, file, position, created, token, is_leased = found[0]
    file = file.decode()
    return Kept(server.decode(), Place(number_of(file), position, file, created), token, bool(is_leased))


async def remember(connection: Connection, tables: Tables, name: str, server: str, place: Place) -> None:
    """Write down that reading begins at `place` of `server`, which leaves token and lease as they are."""
    values = f"{literal(server)}, {literal(place.file)}, {place.position}, {place.created}"
    await rows_of(
        connection,
        f"INSERT INTO {tables.named('cdc')} (name, server, log_file, log_position, log_created) VALUES ({literal(name)}, {values}) "
        f"ON DUPLICATE KEY UPDATE server = {literal(server)}, log_file = {literal(place.file)}, log_position = {place.position}, "
        f"log_created = {place.created}",
    )


async def claim(connection: Connection, tables: Tables, name: str, token: int) -> int | None:
    """Take the lease, if nobody has it or it is ours by `token`; returns the new token, or `None`."""
    taken = await _changed(
        connection,
        f"UPDATE {tables.named('cdc')} SET token = LAST_INSERT_ID(token + 1), leased_until = {_NOW} + INTERVAL {_LEASE} SECOND "
        f"WHERE name = {literal(name)} AND (leased_until <= {_NOW} OR token = {token})",
    )
    return int((await rows_of(connection, "SELECT LAST_INSERT_ID()"))[0][0]) if taken else None


async def keep(connection: Connection, tables: Tables, name: str, token: int, place: Place) -> bool:
    """Write the acknowledged place with a heartbeat, and renew the lease; `False` if somebody else has it."""
    kept = await _changed(
        connection,
        f"UPDATE {tables.named('cdc')} SET log_file = {literal(place.file)}, log_position = {place.position}, "
        f"log_created = {place.created}, beats = beats + 1, beat_at = {_NOW}, leased_until = {_NOW} + INTERVAL {_LEASE} SECOND "
        f"WHERE name = {literal(name)} AND token = {token}",
    )
    return kept > 0


async def release(connection: Connection, tables: Tables, name: str, token: int) -> None:
    """Let the next reader begin at once."""
    await rows_of(connection, f"UPDATE {tables.named('cdc')} SET leased_until = {_NOW} WHERE name = {literal(name)} AND token = {token}")


async def _changed(connection: Connection, statement: str) -> int:
    async with connection.cursor() as cursor:
        return int(await cursor.execute(statement))
