"""The tables of one part in one database: their version looked up, required, and created; and `SQLStore`, which is opened on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.stores.protocol.purpose import Purpose
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Runs(Protocol):
    """Where operations are run: connections to a server, or the thread of a file. Its methods raise our errors."""

    @property
    def address(self) -> str:
        """Of the database, without secrets."""
        ...

    async def open(self, begin: Callable[[], Steps[None]]) -> None:
        """Connect and run steps once. Opening twice does nothing."""
        ...

    async def close(self) -> None:
        """Finish what is under way, and disconnect. Closing twice does nothing."""
        ...

    async def run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        """Return what the steps of an operation return, which `begin` begins each time that it is tried. Raises `StoreUnavailable`.

        `repeats` says whether it may be tried again though it may have been applied.
        """
        ...

    async def maintained(self, begin: Callable[[], Steps[T]]) -> T:
        """Return what steps return that may take long, whether open or not."""
        ...


class Maintenance(NamedTuple, Generic[T_co]):
    """What is done with the tables of one store. All may raise `ConfigurationError`."""

    prepare: Callable[[], Steps[T_co]]
    """See `SQLStore.open`."""
    create: Callable[[], Steps[None]]
    check: Callable[[], Steps[list[str]]]
    clean: Callable[[], Steps[int]]


R = TypeVar("R", bound=Runs)


class SQLStore(Generic[R]):
    """Operations run on `connections`."""

    def __init__(self, connections: R, maintenance: Maintenance[None]) -> None:
        self._connections, self._maintenance = connections, maintenance

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connections.address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the database does not answer now.
        Opening twice does nothing.
        """
        await self._connections.open(self._maintenance.prepare)

    async def close(self) -> None:
        """Finish what is under way, and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create what is missing of the tables. Doing it twice changes nothing."""
        await self._connections.maintained(self._maintenance.create)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(self._maintenance.check)

    async def cleanup(self) -> int:
        """Delete what need not be kept, beside running workers, and make room for the days to come; return how many records."""
        return await self._connections.maintained(self._maintenance.clean)


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


#: Seconds that the clocks of two machines may differ by; a record that is deleted this much too early had nearly ended.
_TOLERANCE: Final = 300.0


def refuse_jumped(server: float, address: str) -> None:
    """Raise `StoreUnavailable` if the `server`'s wall clock (seconds since 1970) is not that of this machine.

    One of them jumped, and nobody can tell which: what was deleted by a wrong clock is gone, and would run again.
    """
    ahead = server - time.time()
    if abs(ahead) > _TOLERANCE:
        way = "ahead of" if ahead > 0 else "behind"
        raise StoreUnavailable(
            f"{address}: its clock is {abs(ahead):.0f} s {way} that of this machine, so one of them is wrong; nothing was deleted; "
            "set it right, and clean up again"
        )
