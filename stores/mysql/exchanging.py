"""One exchange on one asyncmy connection: one statement, or several if there are many keys or a key is asked for twice."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any

from asyncmy.cursors import Cursor

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.mysql import statements
from ackwise.stores.mysql.statements import MARIADB, MYSQL, Row
from ackwise.stores.mysql.tables import Tables
from ackwise.stores.protocol import requests
from ackwise.stores.protocol.requests import Answer

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["exchange_on", "rows_of"]


async def exchange_on(connection: Connection, tables: Tables, exchange: Exchange) -> ExchangeResult:
    """Apply `exchange` and commit each of its statements.

    Raises what asyncmy raises, and then the connection is to be given up.
    """
    dialect = MARIADB if "MariaDB" in connection.get_server_info() else MYSQL
    ends = "" if connection.get_autocommit() else "; COMMIT"
    every = requests.asked(exchange)
    answers: dict[int, Answer] = {}
    for some in requests.rounds(every, statements.AT_ONCE):
        rows = await rows_of(connection, statements.statement(tables, dialect, some, exchange) + ends)
        records = {row.place: row for row in starmap(Row, rows)}
        answers |= {one.position: statements.answer(one, records[one.place]) for one in some}
    return requests.result(exchange, [answers[position] for position in range(len(every))])


async def rows_of(connection: Connection, packet: str) -> list[Any]:
    """Return the rows of a packet, whichever of its statements answers with some."""
    found: list[Any] = []
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute(packet)
        while True:
            if cursor.description:
                found.extend(await cursor.fetchall())
            if not await cursor.nextset():
                return found
