"""`SQLClaims`: a claim store in any SQL database, with a dialect for each."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ackwise.middleware.storage.claimstore import Exchange, ExchangeResult, Remembered
from ackwise.stores.protocol import transitions
from ackwise.stores.protocol.transitions import Answer, Asked
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.schema import Maintenance, Runs, SQLStore

AT_ONCE = 1000
"""Keys of one packet; more gain nothing, and hold the locks of their rows for longer."""

PAGE: Final = 10_000
"""Records that are listed by one statement."""

R = TypeVar("R", bound=Runs)


class Page(NamedTuple):
    """Some records of all."""

    records: Sequence[Remembered]
    after: Any
    """What the next page starts after; None behind the last one."""


Listing = Callable[[Any], Steps[Page]]
"""Reads the page after a place, which is None for the first one."""


class SQLClaims(SQLStore[R]):
    """A claim store. `exchange` applies everything; as a whole, or each of its rounds as a whole.

    It may be repeated, since each of its requests names the claim that it is about.
    """

    def __init__(
        self, connections: R, exchange: Callable[[Exchange], Steps[ExchangeResult]], maintenance: Maintenance[None], listing: Listing
    ) -> None:
        super().__init__(connections, maintenance)
        self._exchange = exchange
        self._listing = listing

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one trip, each of its transactions as a whole or not at all. Raises `StoreUnavailable`.

        Above 1000 keys, or if a key is asked for twice, a server takes several trips. A lost connection is replaced once, within the
        same `timeout`. When the caller is cancelled, the connection to a server is given up.
        """
        return await self._connections.run(functools.partial(self._exchange, exchange))

    async def records(self) -> AsyncIterator[Sequence[Remembered]]:
        """Yield all that is remembered, 10,000 records at a time, each page on a connection of its own; changes nothing.

        Raises `ConfigurationError` if the tables are missing or of another version, and `StoreUnavailable`.
        """
        page = Page((), None)
        while True:
            page = await self._connections.maintained(functools.partial(self._listing, page.after))
            yield page.records
            if page.after is None:
                return


def exchange_in_rounds(
    exchange: Exchange, ask: Callable[[Sequence[Asked], Exchange], Steps[Mapping[int, Answer]]]
) -> Steps[ExchangeResult]:
    """An exchange where the server decides. `ask` answers some requests of different keys, by position.

    A request where another worker was faster has no answer, and is asked again: the next packet sees who won.
    """
    every = transitions.asked(exchange)
    answers: dict[int, Answer] = {}
    for some in transitions.rounds(every, AT_ONCE):
        while some:
            answers |= yield from ask(some, exchange)
            some = [one for one in some if one.position not in answers]
    return transitions.result(exchange, [answers[position] for position in range(len(every))])
