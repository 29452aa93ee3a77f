"""`SQLAlchemyRunner`: sends packets through one connection of SQLAlchemy, a statement at a time, as its driver wants them written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from ackwise.stores.sql.operation import Answer, Failure, Packet, Statement
from ackwise.stores.sqlalchemy.failures import problem_of

_CONTROL: Final = re.compile(r"\s*(BEGIN|START TRANSACTION|COMMIT|ROLLBACK)\b(?! TO)", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_PARTS: Final = re.compile(r"""(?:[^;"']|"[^"]*"|'[^']*')+""")


class SQLAlchemyRunner:
    """See `Runner`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def send(self, packet: Packet) -> Sequence[Answer]:
        return await self._connection.run_sync(lambda connection: SyncRunner(connection).send(packet))


class SyncRunner:
    """The same where one can't wait, as in an event of SQLAlchemy."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._dialect = connection, connection.dialect

    def send(self, packet: Packet) -> Sequence[Answer]:
        try:
            return [self._answer(statement) for statement in packet]
        except (SQLAlchemyError, OSError) as error:
            raise Failure(problem_of(error), error) from error

    def _answer(self, statement: Statement) -> Answer:
        if self._dialect.name == "sqlite" and (control := _CONTROL.match(statement.text)) is not None:
            return self._control(control[1].upper())
        if statement.values:
            return self._execute(*self._written(statement))
        # Drivers of PostgreSQL take one at a time.
        parts = _PARTS.findall(statement.text) if self._dialect.name == "postgresql" else [statement.text]
        return [self._execute(part) for part in parts if part.strip()][-1]

    def _execute(self, text: str, values: tuple[Any, ...] = ()) -> Answer:
        options = {} if values else {"no_parameters": True}
        result: CursorResult[Any] = self._connection.exec_driver_sql(text, values or None, execution_options=options)
        rows = [tuple(row) for row in result] if result.returns_rows else ()
        return Answer(rows, max(0, result.rowcount))

    def _control(self, word: str) -> Answer:
        """SQLite's driver begins with the first change and not before; or SQLAlchemy itself does, where it is told to."""
        if word == "COMMIT":
            self._connection.commit()
        elif word == "ROLLBACK":
            self._connection.rollback()
        else:
            self._begin_as_writer()
        return Answer()

    def _begin_as_writer(self) -> None:
        if not self._connection.in_transaction():
            self._connection.begin()
        driver: Any = self._connection.connection.driver_connection
        if not driver.in_transaction:
            self._execute("BEGIN IMMEDIATE")

    def _written(self, statement: Statement) -> tuple[str, tuple[Any, ...]]:
        """The text and the values as the driver takes them. MariaDB gets literals, as through its own inbox."""
        text, values = statement.text, tuple(statement.values)
        if self._dialect.name in ("mysql", "mariadb"):
            from ackwise.stores.mysql.runner import literals

            return text % tuple(literals(values)), ()
        if self._dialect.name == "postgresql" and self._dialect.paramstyle in ("format", "pyformat"):
            order = [int(number) - 1 for number in _PLACEHOLDER.findall(text)]
            return _PLACEHOLDER.sub("%s", text.replace("%", "%%")), tuple(values[place] for place in order)
        return text, values
