"""`SQLAlchemyRunner` sends packets through a connection of SQLAlchemy, one statement at a time; errors become ours.

Error texts contain no statement and no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InvalidRequestError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.protocol.outbox import BROKEN
from ackwise.stores.sql.operation import Answer, Failure, Packet, Problem, Statement

ADDRESS: Final = "the database of the SQLAlchemy inbox"

_BROKEN: Final = "25P02"
"""The SQLSTATE of a transaction of PostgreSQL in which a statement failed."""

_REFUSED: Final = ("22", "23", "27", "42", "44", "P0")
"""SQLSTATEs of data and statements that a database does not take, which SQLAlchemy has no class for with every driver."""

#: Numbers of MariaDB's errors, SQLSTATEs of PostgreSQL's, and how SQLite's start, which has no codes for these.
_PROBLEMS: Final[dict[object, Problem]] = {
    _BROKEN: Problem.ENDED,
    "3B001": Problem.ENDED,
    1305: Problem.ENDED,
    "no such savepoint": Problem.ENDED,
    "42P01": Problem.MISSING,
    "3F000": Problem.MISSING,
    1146: Problem.MISSING,
    "no such table": Problem.MISSING,
    1062: Problem.DUPLICATE,
    **dict.fromkeys((1142, 1143, "42501"), Problem.FORBIDDEN),
}

_MISSING: Final = (
    "the tables of the outbox are missing in the database of the session, or have another schema or prefix; run `ackwise outbox init URL` "
    "with the URL that the relay has"
)

_ENDED_BY_AN_ERROR: Final = (
    "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
    "or run what may fail in a savepoint, `async with session.begin_nested():`"
)


def problem_of(error: Exception) -> Problem:
    """Return what an error of SQLAlchemy or of the network means; what a session says by itself is of a transaction that is gone."""
    if not isinstance(error, DBAPIError):
        return Problem.LOST if isinstance(error, OSError) else Problem.ENDED
    if error.connection_invalidated:
        return Problem.LOST
    return _PROBLEMS.get(_code(error) or _first_line(error).partition(":")[0], Problem.REFUSED)


@contextmanager
def failures() -> Iterator[None]:
    """Raise `Failure` for SQLAlchemy's errors."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise Failure(problem_of(error), error) from error


def as_outbox_error(error: Exception) -> AckwiseError:
    """Our error for one of SQLAlchemy's or of the network, while rows of an outbox are written."""
    if isinstance(error, OSError):
        return StoreUnavailable(f"the database of the session can't be reached ({error.strerror or 'connection lost'})")
    problem, said = problem_of(error), _first_line(error)
    if problem is Problem.MISSING:
        return ConfigurationError(_MISSING)
    if problem is Problem.FORBIDDEN:
        return ConfigurationError(f"the user of the session may not write rows of the outbox; grant INSERT on its table ({said})")
    if isinstance(error, DBAPIError) and _code(error) == _BROKEN:
        return TransactionAborted(BROKEN.format(database="PostgreSQL"))
    if isinstance(error, ProgrammingError):
        return ConfigurationError(f"the database of the session refuses the rows of the outbox: {said}")
    return StoreUnavailable(f"the database of the session failed while rows of the outbox were written: {said}")


def as_store_error(error: Exception) -> ConfigurationError | StoreUnavailable:
    """Our error for one of SQLAlchemy's or of the network."""
    match error:
        case TimeoutError() | PoolTimeout():
            return StoreUnavailable(f"{ADDRESS}: no answer in time; see whether it runs and has a connection left")
        case ProgrammingError():
            return ConfigurationError(f"{ADDRESS} refuses its statement: {_first_line(error)}")
        case DBAPIError():
            return StoreUnavailable(f"{ADDRESS} failed: {_first_line(error)}")
        case OSError():
            return StoreUnavailable(f"{ADDRESS} can't be reached ({error.strerror or 'connection lost'})")
        case SQLAlchemyError():
            return StoreUnavailable(f"SQLAlchemy can't go on with the inbox: {_first_line(error)}")
        case _:
            return StoreUnavailable(f"{ADDRESS} failed: {error}")


def unavailable(error: Exception) -> StoreUnavailable:
    """The error of a batch, which is tried again whatever its reason."""
    return StoreUnavailable(str(as_store_error(error)))


@contextmanager
def refusing(step: str) -> Iterator[None]:
    """Raise `TransactionAborted` where the database refuses the handler's own rows."""
    try:
        yield
    except DBAPIError as error:
        if _code(error) == _BROKEN:
            raise TransactionAborted(_ENDED_BY_AN_ERROR) from None
        if not isinstance(error, (IntegrityError, DataError, ProgrammingError)) and not str(_code(error)).startswith(_REFUSED):
            raise
        raise TransactionAborted(f"the database refuses to {step} what the handler wrote: {_first_line(error)}") from None
    except InvalidRequestError as error:
        raise TransactionAborted(f"the handler left its session in the middle of an error: {_first_line(error)}") from None


def _code(error: DBAPIError) -> int | str:
    """Return the number of MySQL's error, or the SQLSTATE of PostgreSQL's; otherwise an empty text."""
    first = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return first if isinstance(first, int) else str(getattr(error.orig, "sqlstate", None) or "")


def _first_line(error: Exception) -> str:
    """Return the cause, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.partition("\n")[0].rpartition(">: ")[2]


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
        """SQLite's driver starts with the first change and not before; or SQLAlchemy itself does, where it is configured to."""
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
            from ackwise.stores.mysql.driver import literals

            return text % tuple(literals(values)), ()
        if self._dialect.name == "postgresql" and self._dialect.paramstyle in ("format", "pyformat"):
            order = [int(number) - 1 for number in _PLACEHOLDER.findall(text)]
            return _PLACEHOLDER.sub("%s", text.replace("%", "%%")), tuple(values[place] for place in order)
        return text, values
