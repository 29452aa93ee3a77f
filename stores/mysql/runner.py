"""`AsyncmyRunner`: sends each packet at once through one asyncmy connection, every value as a literal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncmy.cursors import Cursor

from ackwise.stores.mysql.failures import FAILURES, problem_of
from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["AsyncmyRunner", "literal"]


class AsyncmyRunner:
    """Each statement of a packet is one of the server's; `%s` stands for a value where there are values,
    and `%%` for a percent sign then.

    With `commits` each packet is committed by itself, for connections that are out of autocommit.
    """

    def __init__(self, connection: Connection, *, commits: bool = False) -> None:
        self._connection, self._ends = connection, "; COMMIT" if commits else ""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        """See `Runner.send`."""
        try:
            answers = await self._answers("; ".join(map(_text, packet)) + self._ends)
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error
        return answers[: len(packet)]

    async def _answers(self, text: str) -> list[Answer]:
        answers = list[Answer]()
        async with self._connection.cursor(Cursor) as cursor:
            await cursor.execute(text)
            while True:
                rows = await cursor.fetchall() if cursor.description else ()
                count: Any = cursor.rowcount
                answers.append(Answer(rows, max(0, count)))
                if not await cursor.nextset():
                    return answers


def literal(value: object) -> str:
    """Return `value` as SQL that no encoding and no mode of a session changes; texts and bytes as hexadecimal digits.

    A list is what stands in the brackets of IN, which finds nothing if it is empty; a tuple is a row.
    """
    match value:
        case None:
            return "NULL"
        case bool() | int():
            return f"{value:d}"
        case float():
            return repr(value)
        case str():
            return f"x'{value.encode().hex()}'"
        case bytes():
            return f"x'{value.hex()}'"
        case tuple():
            return f"({', '.join(map(literal, value))})"
        case list():
            return ", ".join(map(literal, value)) or "NULL"
        case _:
            raise TypeError(f"no literal for a {type(value).__name__}")


def _text(statement: Statement) -> str:
    text, values = statement
    return text % tuple(map(literal, values)) if values else text
