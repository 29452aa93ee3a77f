"""`SQLClaims`: a claim store in any SQL database; what differs between them is its dialect."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.protocol import requests
from ackwise.stores.protocol.requests import Answer, Asked
from ackwise.stores.sql.operation import Owned, Steps

__all__ = ["AT_ONCE", "Dialect", "Runs", "SQLClaims", "exchange_in_rounds"]

AT_ONCE = 1000
"""Keys of one packet; more gain nothing, and hold the locks of their rows for longer."""

T = TypeVar("T")


class Runs(Protocol):
    """Where operations are run: connections to a server, or the thread of a file. Its methods raise our errors."""

    @property
    def address(self) -> str:
        """Of the database, without secrets."""
        ...

    async def open_with(self, begin: Callable[[], Steps[None]]) -> None:
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


R = TypeVar("R", bound=Runs)


class Dialect(Protocol):
    """The claims of one database. All but `exchange` may raise `ConfigurationError`."""

    def exchange(self, exchange: Exchange) -> Steps[ExchangeResult]:
        """Apply everything; as a whole, or each of its rounds as a whole."""
        ...

    def prepare(self) -> Steps[None]:
        """See `SQLClaims.open`."""
        ...

    def create(self) -> Steps[None]:
        """See `SQLClaims.init`."""
        ...

    def complaints(self) -> Steps[list[str]]:
        """See `SQLClaims.check`."""
        ...

    def clean(self) -> Steps[int]:
        """See `SQLClaims.cleanup`."""
        ...


class SQLClaims(Generic[R]):
    """A claim store. An exchange may be repeated, since each of its requests names the claim that it is about."""

    def __init__(self, connections: R, dialect: Dialect) -> None:
        self._connections, self._dialect = connections, dialect

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connections.address}>"

    async def open(self) -> None:
        """Connect, and create the tables if they are missing and the user may.

        Raises `ConfigurationError` for what can't work, and `StoreUnavailable` if the database does not answer now.
        Opening twice does nothing.
        """
        await self._connections.open_with(self._dialect.prepare)

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one trip, each of its transactions as a whole or not at all. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, a server takes several trips. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection to a server is given up.
        """
        return await self._connections.run(Owned(functools.partial(self._dialect.exchange, exchange)))

    async def close(self) -> None:
        """Finish the exchanges under way and disconnect. Closing twice does nothing; a pool that was given stays open."""
        await self._connections.close()

    async def init(self) -> None:
        """Create what is missing of the tables. Doing it twice changes nothing."""
        await self._connections.maintained(self._dialect.create)

    async def check(self) -> list[str]:
        """Return what is wrong or unwise, one sentence each; changes nothing."""
        return await self._connections.maintained(self._dialect.complaints)

    async def cleanup(self) -> int:
        """Delete what is forgotten, beside running workers, and make room for the days to come; return how many records."""
        return await self._connections.maintained(self._dialect.clean)


def exchange_in_rounds(
    exchange: Exchange, ask: Callable[[Sequence[Asked], Exchange], Steps[Mapping[int, Answer]]]
) -> Steps[ExchangeResult]:
    """An exchange where the server decides. `ask` answers some requests of different keys, by position.

    What somebody else was faster with has no answer, and is asked again: the next packet sees who won.
    """
    every = requests.asked(exchange)
    answers: dict[int, Answer] = {}
    for some in requests.rounds(every, AT_ONCE):
        while some:
            answers |= yield from ask(some, exchange)
            some = [one for one in some if one.position not in answers]
    return requests.result(exchange, [answers[position] for position in range(len(every))])
