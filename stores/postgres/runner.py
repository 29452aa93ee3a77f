"""`AsyncpgRunner`: sends packets through one asyncpg connection, a statement at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ackwise.stores.postgres.failures import FAILURES, problem_of
from ackwise.stores.sql.operation import Answer, Failure, Packet

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["AsyncpgRunner"]

#: Statements that answer with rows. asyncpg tells how many rows the others changed, and nobody tells both.
_HAS_ROWS: Final = re.compile(r"\s*(select|show|table|values|with)\b|.*\breturning\b", re.IGNORECASE | re.DOTALL)


class AsyncpgRunner:
    """Answers have the rows of what selects or returns some, and otherwise the number of rows that changed."""

    def __init__(self, connection: Connection | PoolConnectionProxy, timeout: float | None = None) -> None:
        self._connection, self._timeout = connection, timeout

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        try:
            return [await self._answer(*statement) for statement in packet]
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error

    async def _answer(self, text: str, values: Sequence[object]) -> Answer:
        if _has_rows(text):
            rows: Any = await self._connection.fetch(text, *values, timeout=self._timeout)
            return Answer(rows)
        status = await self._connection.execute(text, *values, timeout=self._timeout)
        count = status.rpartition(" ")[2]
        return Answer((), int(count) if count.isdecimal() else 0)


@functools.lru_cache(1024)
def _has_rows(text: str) -> bool:
    return _HAS_ROWS.match(text) is not None
