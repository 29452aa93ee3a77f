"""Complaints about the tables and the server of a claim store or an inbox, for `ackwise store check`, and what `open` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql import schema
from ackwise.stores.mysql.failures import NO_RIGHT
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.protocol.purpose import CLAIMS, INBOX

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["claims_complaints", "inbox_complaints", "may", "require_inbox_rights", "require_rights"]

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

# Each touches no record, and is refused before it looks for one.
_ATTEMPTS = {
    "SELECT": "SELECT 1 FROM {} LIMIT 0",
    "INSERT": "INSERT INTO {0} SELECT * FROM {0} WHERE FALSE",
    "UPDATE": "UPDATE {} SET lost = 0 WHERE FALSE",
    "DELETE": "DELETE FROM {} WHERE FALSE",
}

_INBOX_ATTEMPTS = ("INSERT INTO {0} SELECT * FROM {0} WHERE FALSE", "UPDATE {0} SET {1} = 0 WHERE FALSE")

_SETTINGS = """
SELECT @@innodb_flush_log_at_trx_commit, SYSDATE(6) = NOW(6) FROM (SELECT SLEEP(0.001)) AS after_a_moment"""


async def claims_complaints(connection: Connection, tables: Tables, address: str) -> list[str]:
    """Return one sentence for each, with what to do."""
    schema.require_server(connection, address)
    found = await schema.version(connection, tables, CLAIMS)
    if found is None:
        return [CLAIMS.not_there(address)]
    CLAIMS.require_version(found, address)
    said = await _missing_rights(connection, tables, *_ATTEMPTS)
    if "SELECT" not in "".join(said):
        said += await _forgotten(connection, tables)
    said += await _settings(connection)
    return [f"{address}: {complaint}" for complaint in said]


async def inbox_complaints(connection: Connection, tables: Tables, address: str) -> list[str]:
    """Return one sentence for each, with what to do. Raise `ConfigurationError` as `open` does, and asyncmy's error for missing rights."""
    if await schema.version(connection, tables, INBOX) is None:
        return [INBOX.not_there(address)]
    await schema.require_tables(connection, tables, INBOX, address)
    await require_inbox_rights(connection, tables)
    inbox, said = tables.named("inbox"), []
    await schema.rows(connection, _ATTEMPTS["DELETE"].format(inbox))
    ((durable,),) = await schema.rows(connection, "SELECT @@innodb_flush_log_at_trx_commit")
    if durable != 1:
        said.append(
            f"{address}: innodb_flush_log_at_trx_commit is {durable}, so a crash of the server's machine can lose what Kafka was told "
            "is done; set it to 1"
        )
    forgotten = f"SELECT 1 FROM {inbox} WHERE kept_until <= UTC_TIMESTAMP(6) LIMIT 1 OFFSET {_MANY}"
    if await schema.rows(connection, forgotten):
        said.append(f"{address}: {inbox} holds more than {_MANY} forgotten records; run `ackwise store cleanup URL`, best every day")
    return said


async def require_rights(connection: Connection, tables: Tables, address: str) -> None:
    """Raise `ConfigurationError` if the user may not do with the claims what every exchange does."""
    if missing := await _missing_rights(connection, tables, "SELECT", "INSERT", "UPDATE"):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def require_inbox_rights(connection: Connection, tables: Tables) -> None:
    """Raise asyncmy's error if the user may not do what every batch does."""
    for table, column in ((tables.named("inbox"), "outcome"), (tables.named("offsets"), "next_offset")):
        for attempt in _INBOX_ATTEMPTS:
            await schema.rows(connection, attempt.format(table, column))


async def _missing_rights(connection: Connection, tables: Tables, *needed: str) -> list[str]:
    """A sentence if the user may do less with the claims than is `needed`, else nothing."""
    missing = [right for right in needed if not await may(connection, _ATTEMPTS[right].format(tables.claims))]
    return [f"this user has no right to {', '.join(missing)} on {tables.claims}; grant it"] if missing else []


async def may(connection: Connection, attempt: str) -> bool:
    """Return whether the user has the rights that the statement `attempt` needs."""
    try:
        await schema.rows(connection, attempt)
    except MySQLError as error:
        if error.args[0] in NO_RIGHT:
            return False
        raise
    return True


async def _forgotten(connection: Connection, tables: Tables) -> list[str]:
    some = f"SELECT 1 FROM {tables.claims} WHERE kept_until <= UTC_TIMESTAMP(6) LIMIT {_MANY}"
    ((count,),) = await schema.rows(connection, f"SELECT COUNT(*) FROM ({some}) AS found")
    if count < _MANY:
        return []
    return [f"{tables.claims} holds {_MANY} forgotten records or more; run `ackwise store cleanup URL`, best every day"]


async def _settings(connection: Connection) -> list[str]:
    ((flush, frozen),) = await schema.rows(connection, _SETTINGS)
    said = []
    if flush != 1:
        said.append(
            f"innodb_flush_log_at_trx_commit is {flush}, so a crash of the server or its host forgets the last exchanges; "
            "set it to 1, or accept that their messages run again"
        )
    if frozen:
        said.append("sysdate-is-now is on, so a claim that had to wait gets a shorter lease; turn it off")
    return said
