"""What is wrong or unwise about a claim store's tables and its server, for `ackwise store check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncmy.errors import MySQLError

from ackwise.stores.mysql import schema
from ackwise.stores.mysql.failures import NO_RIGHT
from ackwise.stores.mysql.tables import Tables

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["complaints", "missing_rights"]

_MANY = 100_000
"""Forgotten records, from which on a cleanup is overdue."""

# Each touches no record, and is refused before it looks for one.
_ATTEMPTS = {
    "SELECT": "SELECT 1 FROM {} LIMIT 0",
    "INSERT": "INSERT INTO {0} SELECT * FROM {0} WHERE FALSE",
    "UPDATE": "UPDATE {} SET lost = 0 WHERE FALSE",
    "DELETE": "DELETE FROM {} WHERE FALSE",
}

_SETTINGS = """
SELECT @@innodb_flush_log_at_trx_commit, SYSDATE(6) = NOW(6) FROM (SELECT SLEEP(0.001)) AS after_a_moment"""

_NAMELESS = (
    "its claims can't name their owner, so what a dead worker held waits until its lease ends; "
    "let somebody who may alter tables run `ackwise store init URL`, then start the workers anew"
)


async def complaints(connection: Connection, tables: Tables, address: str) -> list[str]:
    """One sentence for each, with what to do."""
    schema.require_server(connection, address)
    found = await schema.version(connection, tables)
    if found is None:
        return [f"{address}: the tables of the claim store are missing; run `ackwise store init URL`"]
    schema.require_version(found, address)
    said = await missing_rights(connection, tables, *_ATTEMPTS)
    if "SELECT" not in "".join(said):
        if not await schema.keeps_owners(connection, tables):
            said.append(_NAMELESS)
        said += await _forgotten(connection, tables)
    said += await _settings(connection)
    return [f"{address}: {complaint}" for complaint in said]


async def missing_rights(connection: Connection, tables: Tables, *needed: str) -> list[str]:
    """A sentence if the user may do less with the claims than is `needed`, else nothing."""
    missing = [right for right in needed if not await _may(connection, _ATTEMPTS[right].format(tables.claims))]
    return [f"this user has no right to {', '.join(missing)} on {tables.claims}; grant it"] if missing else []


async def _may(connection: Connection, attempt: str) -> bool:
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
