"""Failures of SQLAlchemy or its database as errors of ours, with no statement and no value in any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InvalidRequestError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ackwise.middleware.errors import AckwiseError, ConfigurationError, StoreUnavailable, TransactionAborted

__all__ = ["FAILURES", "aborted", "bounded", "refusing"]

FAILURES = (SQLAlchemyError, OSError)

_BROKEN = "25P02"
"""The SQLSTATE of a transaction of PostgreSQL in which a statement failed."""

_REFUSED = ("22", "23", "27", "42", "44", "P0")
"""SQLSTATEs of data and statements that a database does not take, which SQLAlchemy has no class for with every driver."""


@asynccontextmanager
async def bounded(timeout: float, why: str) -> AsyncIterator[None]:
    """Bound a step by `timeout`, and raise our error for SQLAlchemy's, which may hold a statement's values; `why` says what it can mean."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except AckwiseError:
        raise
    except (TimeoutError, PoolTimeout):
        raise StoreUnavailable(f"the database of the SQLAlchemy inbox: no answer within {timeout} s; {why}") from None
    except ProgrammingError as error:
        raise ConfigurationError(f"the database of the SQLAlchemy inbox refuses its statement: {_first_line(error)}") from None
    except DBAPIError as error:
        raise StoreUnavailable(f"the database of the SQLAlchemy inbox failed: {_first_line(error)}") from None
    except OSError as error:
        raise StoreUnavailable(
            f"the database of the SQLAlchemy inbox can't be reached ({error.strerror or 'connection lost'}); {why}"
        ) from None
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"SQLAlchemy can't go on with the inbox: {_first_line(error)}") from None


@contextmanager
def refusing(step: str) -> Iterator[None]:
    """What the database refuses of the handler's own is the handler's fault."""
    try:
        yield
    except DBAPIError as error:
        if _state(error) == _BROKEN:
            raise aborted(error) from None
        if not isinstance(error, (IntegrityError, DataError, ProgrammingError)) and not _state(error).startswith(_REFUSED):
            raise
        raise TransactionAborted(f"the database refuses to {step} what the handler wrote: {_first_line(error)}") from None
    except InvalidRequestError as error:
        raise TransactionAborted(f"the handler left its session in the middle of an error: {_first_line(error)}") from None


def aborted(error: DBAPIError) -> TransactionAborted | StoreUnavailable:
    """Return the error for a statement of ours that the handler's transaction no longer takes."""
    if error.connection_invalidated:
        return StoreUnavailable(f"the database of the SQLAlchemy inbox failed: {_first_line(error)}")
    if _state(error) == _BROKEN:
        return TransactionAborted(
            "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
            "or run what may fail in `async with session.begin_nested():`"
        )
    return TransactionAborted(
        "the handler ended the transaction that it writes in; leave commit and rollback to Ackwise, and raise to roll back"
    )


def _state(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", ""))


def _first_line(error: SQLAlchemyError) -> str:
    """What happened, without the statement and its values."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.partition("\n")[0].rpartition(">: ")[2]
