"""`Coalescer`: many callers of one store, each with a key or a few, share its round trips.

What arrives while a trip is under way goes into the next one ("group commit"): no timer, nothing to tune, and one
connection is enough. A caller that is alone goes straight through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import NamedTuple

from ackwise.middleware.store import ClaimKey, ClaimStore, Exchange, ExchangeResult

#: Keys in a trip; more of them gain nothing, and a Redis script that walks them holds up everybody else.
_LIMIT = 500

_Place = tuple[bytes, int | None]


class _Waiting(NamedTuple):
    exchange: Exchange
    places: frozenset[_Place]
    answer: asyncio.Future[ExchangeResult]


class Coalescer:
    """A claim store in front of `store`, with the same answers; `limit` is how many keys share a trip at most.

    Exchanges that have a key in common, or different leases, retentions or owners, never share a trip, and stay in order. When
    a trip fails, every exchange in it fails. A caller that is cancelled leaves its exchange to the trip.
    """

    def __init__(self, store: ClaimStore, *, limit: int = _LIMIT) -> None:
        self.store = store
        self.trips = 0  #: how often the store was asked
        self._limit = limit
        self._waiting: deque[_Waiting] = deque()
        self._is_busy = False
        self._pumping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """As the store does."""
        await self.store.open()

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """As the store does, with its errors; beside other callers in one trip."""
        if not self._is_busy:
            return await self._alone(exchange)
        answer: asyncio.Future[ExchangeResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(exchange, _places(exchange), answer))
        return await answer

    async def close(self) -> None:
        """Let what is waiting come to its end, then close the store."""
        while self._pumping is not None:
            await asyncio.wait({self._pumping})
        await self.store.close()

    async def _alone(self, exchange: Exchange) -> ExchangeResult:
        self._is_busy = True
        self.trips += 1
        try:
            return await self.store.exchange(exchange)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """The way is free: for those who have come meanwhile, if there are any."""
        self._is_busy = bool(self._waiting)
        self._pumping = asyncio.create_task(self._pump(), name="ackwise coalescer") if self._waiting else None

    async def _pump(self) -> None:
        while together := self._take():
            self.trips += 1
            try:
                result = await self.store.exchange(_joined(together))
            except Exception as error:  # noqa: BLE001  # each caller is told, as if it had asked alone
                for waiting in together:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
            else:
                _answer(together, result)
        self._go_on()

    def _take(self) -> list[_Waiting]:
        """Those who may share the next trip, in order; who must not go with one before him keeps those of his keys back too."""
        together: list[_Waiting] = []
        later: deque[_Waiting] = deque()
        taken: set[_Place] = set()
        count = 0
        for waiting in self._waiting:
            if waiting.answer.cancelled():
                continue
            fits = not together or count + len(waiting.exchange) <= self._limit
            if fits and taken.isdisjoint(waiting.places) and _goes_with(together, waiting.exchange):
                together.append(waiting)
                count += len(waiting.exchange)
            else:
                later.append(waiting)
            taken |= waiting.places
        self._waiting = later
        return together


def _places(exchange: Exchange) -> frozenset[_Place]:
    requests = (exchange.claims, exchange.completes, exchange.releases, exchange.renews)
    return frozenset(_place(request.key) for kind in requests for request in kind)


def _place(key: ClaimKey) -> _Place:
    return key.id, key.day


def _goes_with(together: list[_Waiting], exchange: Exchange) -> bool:
    return not together or _terms(together[0].exchange) == _terms(exchange)


def _terms(exchange: Exchange) -> tuple[object, ...]:
    return exchange.lease, exchange.retention, exchange.owner, exchange.gone


def _joined(together: list[_Waiting]) -> Exchange:
    exchanges = [waiting.exchange for waiting in together]
    return Exchange(
        [claim for exchange in exchanges for claim in exchange.claims],
        [complete for exchange in exchanges for complete in exchange.completes],
        [release for exchange in exchanges for release in exchange.releases],
        [renew for exchange in exchanges for renew in exchange.renews],
        exchanges[0].lease,
        exchanges[0].retention,
        exchanges[0].owner,
        exchanges[0].gone,
    )


def _answer(together: list[_Waiting], result: ExchangeResult) -> None:
    """Cut the answers to where their requests came from."""
    claims, completes, releases, renews = iter(result.claims), iter(result.completes), iter(result.releases), iter(result.renews)
    for exchange, _, answer in together:
        part = ExchangeResult(
            list(islice(claims, len(exchange.claims))),
            list(islice(completes, len(exchange.completes))),
            list(islice(releases, len(exchange.releases))),
            list(islice(renews, len(exchange.renews))),
        )
        if not answer.done():
            answer.set_result(part)
