"""`AsyncmyRunner`: sends each packet at once through one asyncmy connection, every value as a literal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncmy.cursors import Cursor

from ackwise.stores.mysql.failures import FAILURES, problem_of
from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement

if TYPE_CHECKING:
    from asyncmy.connection import Connection

# Out of autocommit, asyncmy learns that a transaction has ended by its own methods, or if another answer follows.
COMMIT: Final[Packet] = [Statement("COMMIT")]
NOTHING: Final = Statement("DO 0")

_EMPTY: Final = Answer()


class AsyncmyRunner:
    """Each statement of a packet is one of the server's; `%s` stands for a value where there are values,
    and `%%` for a percent sign then.

    With `commits` each packet is committed by itself, for connections that are out of autocommit.
    """

    def __init__(self, connection: Connection, *, commits: bool = False) -> None:
        self._connection, self._ends = connection, "; COMMIT; DO 0" if commits else ""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        answers = list[Answer]()
        try:
            if packet == COMMIT:
                await self._connection.commit()
                return [_EMPTY]
            async with self._connection.cursor(Cursor) as cursor:
                await cursor.execute("; ".join([_text(text, values) if values else text for text, values in packet]) + self._ends)
                while True:
                    rows = await cursor.fetchall() if cursor.description else ()
                    count: Any = cursor.rowcount
                    answers.append(Answer(rows, count) if rows or count > 0 else _EMPTY)
                    if not await cursor.nextset():
                        return answers[: len(packet)]
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error


_LITERALS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "NULL",
    bool: lambda value: str(int(value)),
    int: int.__repr__,
    float: repr,
    str: lambda value: f"x'{value.encode().hex()}'",
    bytes: lambda value: f"x'{value.hex()}'",
    tuple: lambda value: f"({', '.join(map(literal, value))})",
    list: lambda value: ", ".join(map(literal, value)) or "NULL",
}


def literal(value: object) -> str:
    """Return `value` as SQL that no encoding and no mode of a session changes; texts and bytes as hexadecimal digits.

    A list is what stands in the brackets of IN, which finds nothing if it is empty; a tuple is a row.
    """
    kind = type(value)
    made = _LITERALS.get(kind) or next((made for base in kind.__mro__ if (made := _LITERALS.get(base)) is not None), None)
    if made is None:
        raise TypeError(f"no literal for a {kind.__name__}")
    return made(value)


def _text(text: str, values: Sequence[Any]) -> str:
    try:
        # The long way for those of a batch: a call for each of them would be a tenth of what it costs.
        return text % tuple(
            [
                value if (kind := type(value)) is int else f"x'{value.hex()}'" if kind is bytes else _LITERALS[kind](value)
                for value in values
            ]
        )
    except KeyError:  # of a subclass
        return text % tuple(map(literal, values))
