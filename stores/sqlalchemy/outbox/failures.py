"""What goes wrong while rows of an outbox are written through a session, as errors of ours: no statement and no value is in any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, ProgrammingError, SQLAlchemyError

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.stores.protocol.outboxwriting import BROKEN

__all__ = ["ENDED_INSIDE", "IN_DOUBT", "code_of", "refusing"]

ENDED_INSIDE: Final = (
    "the transaction of the session was ended inside the block of outbox.transaction, or an error of the database that undid it was caught "
    "there; {count} messages are not part of it: leave its end to the block, and let such an error pass"
)

IN_DOUBT: Final = "it is not known whether the transaction committed: what it wrote and what it sends is there together, or none of it"

_MISSING: Final = (
    "the tables of the outbox are missing in the database of the session, or have another schema or prefix; run `ackwise outbox init URL` "
    "with the URL that the relay has"
)

_NO_SUCH_SAVEPOINT: Final = (1305, "3B001")
_NO_TABLE: Final = (1146, "42P01", "3F000")
_NO_RIGHT: Final = (1142, 1143, "42501")
_BROKEN: Final = "25P02"


@contextmanager
def refusing(count: int) -> Iterator[None]:
    """Raise our error for SQLAlchemy's; `count` messages were to be written."""
    try:
        yield
    except AckwiseError:
        raise
    except SQLAlchemyError as error:
        raise _of(error, count) from None
    except OSError as error:
        raise StoreUnavailable(f"the database of the session can't be reached ({error.strerror or 'connection lost'})") from None


def code_of(error: DBAPIError) -> int | str:
    """Return the number of MySQL's error, or the SQLSTATE of PostgreSQL's; else an empty text."""
    first = error.orig.args[0] if error.orig is not None and error.orig.args else None
    if isinstance(first, int):
        return first
    return str(getattr(error.orig, "sqlstate", None) or "")


def _of(error: SQLAlchemyError, count: int) -> AckwiseError:
    if not isinstance(error, DBAPIError):
        return TransactionAborted(f"{ENDED_INSIDE.format(count=count)} ({_first_line(error)})")
    code, said = code_of(error), _first_line(error)
    if code in _NO_TABLE or said.startswith("no such table"):
        return ConfigurationError(_MISSING)
    if code in _NO_RIGHT:
        return ConfigurationError(f"the user of the session may not write rows of the outbox; grant INSERT on its table ({said})")
    if code == _BROKEN:
        return TransactionAborted(BROKEN.format(database="PostgreSQL"))
    if code in _NO_SUCH_SAVEPOINT or said.startswith("no such savepoint"):
        return TransactionAborted(ENDED_INSIDE.format(count=count))
    if isinstance(error, ProgrammingError):
        return ConfigurationError(f"the database of the session refuses the rows of the outbox: {said}")
    return StoreUnavailable(f"the database of the session failed while rows of the outbox were written: {said}")


def _first_line(error: SQLAlchemyError) -> str:
    """What happened, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.partition("\n")[0].rpartition(">: ")[2]
