"""`AsyncpgRunner`: sends packets through one asyncpg connection, a statement at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncpg import Record

from ackwise.stores.postgres.failures import FAILURES, problem_of
from ackwise.stores.sql.operation import Answer, Failure, Packet

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

#: Statements that answer with rows.
_HAS_ROWS: Final = re.compile(
    r"\s*(?:(?:select|show|table|values|with)\b|(?:insert|update|delete)\b.*\breturning\b)", re.IGNORECASE | re.DOTALL
)


class AsyncpgRunner:
    """Codecs and classes that the connection was given have no part in the answers, which nothing public of asyncpg can leave out."""

    def __init__(self, connection: Connection | PoolConnectionProxy, timeout: float | None = None) -> None:
        self._connection: Any = getattr(connection, "_con", None) or connection
        self._timeout = timeout

    async def send(self, packet: Packet) -> Sequence[Answer]:
        raw, answers = self._connection, list[Answer]()
        try:
            for text, values in packet:
                rows: Sequence[Any] = ()
                if values or _has_rows(text):
                    raw._check_open()
                    rows, said, _ = await raw._execute(
                        text, values, 0, self._timeout, return_status=True, ignore_custom_codec=True, record_class=Record
                    )
                    status = said.decode()
                else:
                    status = await raw.execute(text, timeout=self._timeout)
                count = status.rpartition(" ")[2]
                answers.append(Answer(rows, int(count) if count.isdecimal() else 0))
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error
        return answers


@functools.lru_cache(1024)
def _has_rows(text: str) -> bool:
    return _HAS_ROWS.match(text) is not None
