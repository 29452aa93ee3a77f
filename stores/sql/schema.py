"""The tables of one part in one database: their version looked up, required, and created."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

T = TypeVar("T")


class Layout(NamedTuple):
    """What a database says to it."""

    purpose: Purpose
    address: str
    version: Statement
    """Answers with the version of the tables, or with nothing."""
    create: Callable[[], Steps[None]]
    """Creates what is missing, and inserts the version unless there is one. Any number may do so at once."""


def _version(layout: Layout) -> Steps[int | None]:
    """Return the version of the tables; `None` if they are missing."""
    try:
        (found,) = yield [layout.version]
    except Failure as failure:
        if failure.problem is not Problem.MISSING:
            raise
        return None
    return int(found.rows[0][0]) if found.rows else None


def complaints(layout: Layout, more: Callable[[], Steps[list[str]]]) -> Steps[list[str]]:
    """Return a sentence if the tables are missing, otherwise those of `more`. Raise `ConfigurationError` for another version than ours."""
    found = yield from _version(layout)
    if found is None:
        return [layout.purpose.not_there(layout.address)]
    layout.purpose.require_version(found, layout.address)
    return [f"{layout.address}: {sentence}" for sentence in (yield from more())]


def require(layout: Layout) -> Steps[None]:
    """Raise `ConfigurationError` for tables that are missing, or of another version than ours."""
    found = yield from _version(layout)
    if found is None:
        raise ConfigurationError(layout.purpose.not_there(layout.address))
    layout.purpose.require_version(found, layout.address)


def required(layout: Layout, steps: Callable[[], Steps[T]]) -> Steps[T]:
    """Return what `steps` return. Raise as `require`."""
    yield from require(layout)
    return (yield from steps())


def create(layout: Layout) -> Steps[None]:
    """Create the tables if they are missing. Raise `ConfigurationError` for those of another version than ours."""
    if (yield from _version(layout)) is None:
        yield from layout.create()
    yield from require(layout)
