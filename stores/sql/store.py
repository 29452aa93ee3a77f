"""`SQLStore`: how the claim store, the inbox and the outbox of an SQL database are opened, made, checked and cleaned up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ackwise.stores.sql.operation import Owned, Steps

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

    async def run(self, operation: Owned[T]) -> T:
        """Return what `operation` returns. Raises `StoreUnavailable`."""
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
