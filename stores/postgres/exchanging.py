"""One exchange on one asyncpg connection: one statement, and more if keys repeat or another worker was faster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.postgres import statements
from ackwise.stores.postgres.statements import Row
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol import requests
from ackwise.stores.protocol.requests import Answer, Asked

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["exchange_on"]


async def exchange_on(connection: Connection | PoolConnectionProxy, tables: Tables, exchange: Exchange) -> tuple[ExchangeResult, int]:
    """Apply `exchange`, in the transaction of `connection` if it has one; return the answers, and how often it had to ask again.

    Raises what asyncpg raises. In a transaction that is not READ COMMITTED, meeting somebody else is an error of serialization.
    """
    every = requests.asked(exchange)
    answers: dict[int, Answer] = {}
    again = 0
    for some in requests.rounds(every, statements.AT_ONCE):
        while some := await _ask(connection, tables, exchange, some, answers):
            again += 1
    return requests.result(exchange, [answers[position] for position in range(len(every))]), again


async def _ask(
    connection: Connection | PoolConnectionProxy, tables: Tables, exchange: Exchange, some: Sequence[Asked], answers: dict[int, Answer]
) -> list[Asked]:
    """Run one statement and note its answers; return those that somebody else was faster with."""
    dated = some[-1].place[1] is not None  # sorted: those without a day come first
    undated = some[0].place[1] is None
    text = statements.statement(tables, undated=undated, dated=dated)
    by_place = {one.place: one for one in some}
    for row in starmap(Row, await connection.fetch(text, *statements.arguments(some, exchange))):
        one = some[row.position - 1] if row.position else by_place[row.key.bytes, row.day]
        if (said := statements.answer(one, row)) is not None:
            answers[one.position] = said
    return [one for one in some if one.position not in answers]
