"""`AsyncmyRunner`: sends each packet at once through one asyncmy connection, every value as a literal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ackwise.stores.mysql.failures import FAILURES, problem_of
from ackwise.stores.sql.operation import Answer, Failure, Packet

if TYPE_CHECKING:
    from asyncmy.connection import Connection

_EMPTY: Final = Answer()


class AsyncmyRunner:
    """Each statement of a packet is one of the server's; `%s` stands for a value where there are values,
    and `%%` for a percent sign then.

    With `commits` each packet is committed by itself, for connections that are out of autocommit.
    """

    def __init__(self, connection: Connection, *, commits: bool = False) -> None:
        self._connection: Any = connection
        self._ends = "; COMMIT" if commits else ""

    async def send(self, packet: Packet) -> Sequence[Answer]:
        connection, answers = self._connection, list[Answer]()
        try:
            await connection.query("; ".join([text % tuple(literals(values)) if values else text for text, values in packet]) + self._ends)
            while True:
                # A cursor would be a detour of some calls for each statement, and ask for warnings in a trip of its own.
                found = connection._result
                rows, count = found.rows or (), found.affected_rows
                answers.append(Answer(rows, count) if rows or count > 0 else _EMPTY)
                if not found.has_next:
                    if not found.field_count or connection._deprecate_eof:  # else asyncmy has not read the status behind rows
                        connection.server_status = found.server_status  # out of autocommit, it passes over that nothing is open
                    return answers[: len(packet)]
                await connection.next_result()
        except FAILURES as error:
            raise Failure(problem_of(error), error) from error


_LITERALS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "NULL",
    bool: lambda value: str(int(value)),
    int: int.__repr__,
    float: repr,
    str: lambda value: f"x'{value.encode().hex()}'",
    bytes: lambda value: f"x'{value.hex()}'",
    tuple: lambda value: f"({', '.join(literals(value))})",
    list: lambda value: ", ".join(literals(value)) or "NULL",
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


def literals(values: Sequence[Any]) -> list[str]:
    """Return each of `values` so. The long way for those of a batch: a call for each of them would be a tenth of what it costs."""
    try:
        return [
            str(value)
            if (kind := type(value)) is int
            else f"x'{value.hex()}'"
            if kind is bytes
            else "NULL"
            if value is None
            else _LITERALS[kind](value)
            for value in values
        ]
    except KeyError:  # of a subclass
        return [literal(value) for value in values]
