"""What goes wrong while rows of an outbox are written through a session, as errors of ours: no statement and no value is in any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.protocol.outboxwriting import BROKEN
from ackwise.stores.sql.operation import Failure, Problem

__all__ = ["as_error", "code_of", "failing", "refusing"]

_MISSING: Final = (
    "the tables of the outbox are missing in the database of the session, or have another schema or prefix; run `ackwise outbox init URL` "
    "with the URL that the relay has"
)

_NO_SUCH_SAVEPOINT: Final = (1305, "3B001")
_NO_TABLE: Final = (1146, "42P01", "3F000")
_NO_RIGHT: Final = (1142, 1143, "42501")
_BROKEN: Final = "25P02"


@contextmanager
def failing() -> Iterator[None]:
    """Raise a `Failure` for SQLAlchemy's error."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise Failure(_problem(error), error) from None


@contextmanager
def refusing() -> Iterator[None]:
    """Raise our error for SQLAlchemy's."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise as_error(error) from None


def code_of(error: DBAPIError) -> int | str:
    """Return the number of MySQL's error, or the SQLSTATE of PostgreSQL's; else an empty text."""
    first = error.orig.args[0] if error.orig is not None and error.orig.args else None
    if isinstance(first, int):
        return first
    return str(getattr(error.orig, "sqlstate", None) or "")


def as_error(error: Exception) -> AckwiseError:
    """Return our error for SQLAlchemy's."""
    if isinstance(error, OSError):
        return StoreUnavailable(f"the database of the session can't be reached ({error.strerror or 'connection lost'})")
    code, said = code_of(error) if isinstance(error, DBAPIError) else "", _first_line(error)
    if code in _NO_TABLE or said.startswith("no such table"):
        return ConfigurationError(_MISSING)
    if code in _NO_RIGHT:
        return ConfigurationError(f"the user of the session may not write rows of the outbox; grant INSERT on its table ({said})")
    if code == _BROKEN:
        return TransactionAborted(BROKEN.format(database="PostgreSQL"))
    if isinstance(error, ProgrammingError):
        return ConfigurationError(f"the database of the session refuses the rows of the outbox: {said}")
    return StoreUnavailable(f"the database of the session failed while rows of the outbox were written: {said}")


def _problem(error: Exception) -> Problem:
    if isinstance(error, DBAPIError):
        if code_of(error) in _NO_SUCH_SAVEPOINT or _first_line(error).startswith("no such savepoint"):
            return Problem.ENDED
        is_refused = isinstance(error, IntegrityError) and not error.connection_invalidated  # in a commit, by a constraint
        return Problem.REFUSED if is_refused else Problem.LOST
    return Problem.LOST if isinstance(error, OSError) else Problem.ENDED  # what a session says of a transaction that is gone


def _first_line(error: Exception) -> str:
    """What happened, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.partition("\n")[0].rpartition(">: ")[2]
