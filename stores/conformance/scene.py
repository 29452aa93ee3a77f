"""`Scene`: the stores, keys and clock of one test, and `Features`, what a store can do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from ackwise.middleware.storage.claimstore import (
    FIRST,
    Ack,
    Answered,
    Busy,
    Claim,
    ClaimAnswer,
    ClaimKey,
    ClaimStore,
    Column,
    ColumnExchange,
    ColumnResult,
    Complete,
    Exchange,
    ExchangeResult,
    Outcome,
    Release,
    Renew,
    checked,
    in_columns,
)

T = TypeVar("T")
AnyAnswer = TypeVar("AnyAnswer")

MINE, YOURS, THIRD = 1, 2**63 - 1, 3
"""Tokens; the second is the largest that a store has to take."""

SHAPES: Final[tuple[Literal["keys", "columns"], ...]] = ("keys", "columns")
"""How a store is asked; one that answers single keys alone is asked in columns through the adapter."""

#: Owners, as a worker names itself.
ONE: Final = "8d5f3c1a-0123456789abcdef"
OTHER: Final = "8d5f3c1a-fedcba9876543210"

#: What may be said of a completed key, as long as it may be.
UNRECORDED: Final = "1f 7 0 0 " + "t" * 391


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a store: the suite tests all of them and no others."""

    injected_clock: bool = True
    """`make` gives its `clock` to the store. If not, the suite waits in real time."""
    persistent: bool = False
    """A second store opened on the same place finds the records of the first."""
    shared: bool = False
    """Several stores can be open on the same place at once."""
    owners: bool = False
    """Keeps who holds a claim, lets those that are gone be taken over, and keeps what was not recorded of a completed one. A store may
    do without: then every worker waits for leases."""
    lease: float = 30.0
    """Seconds; a store on its own clock wants short ones, but some hundred times its round trip."""
    retention: float = 86400.0
    """Seconds, a multiple of the lease."""
    tolerance: float = 0.01
    """Seconds by which a wait may be answered differently than by the injected clock."""


class Clock:
    """A clock that the suite moves; gives seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """One test's stores, keys and clock; drives the stores without `await`, so that a test reads as a list of facts."""

    def __init__(
        self, make: Callable[[Path, Clock], ClaimStore], features: Features, place: Path, *, shape: Literal["both", "columns"] = "both"
    ) -> None:
        self.features, self.shape = features, shape
        self.lease, self.retention = features.lease, features.retention
        self.clock = Clock()
        self._make, self._place = make, place
        self._runner = asyncio.Runner()
        self._stores: list[ClaimStore] = []
        self.store = self.open_store()

    def open_store(self) -> ClaimStore:
        """One more store on the same place, opened."""
        store = self._make(self._place, self.clock)
        self.run(store.open())
        self._stores.append(store)
        return store

    def reopen(self) -> None:
        """Close the store and open another one in its place, as a restarted worker does."""
        self.run(self.store.close())
        self.store = self.open_store()

    def end(self) -> None:
        """Close every store."""
        for store in self._stores:
            self.run(store.close())
        self._runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the stores live on."""
        return self._runner.run(waiting)

    def wait(self, seconds: float) -> None:
        """Let the store's clock move on by at least `seconds`."""
        if self.features.injected_clock:
            self.clock.now += seconds
        else:
            self.run(asyncio.sleep(seconds + 0.05))

    def key(self, attempt: int = 1, day: int | None = None) -> ClaimKey:
        """A new key."""
        return ClaimKey(os.urandom(16), day, attempt)

    def original_and_copy(self) -> tuple[ClaimKey, ClaimKey]:
        """One key as its first and as its second attempt ask for it."""
        key = self.key(attempt=1)
        return key, key._replace(attempt=2)

    def keys(self, count: int) -> list[ClaimKey]:
        """New keys."""
        return [self.key() for _ in range(count)]

    async def ask(self, exchange: Exchange) -> ExchangeResult:
        """Return the store's answers about single keys. Columns of twin keys must get the same answers."""
        if self.shape == "columns":
            return await self.ask_as("columns", exchange)
        answered = await self.store.exchange(exchange)
        twins = await self.ask_as("columns", _of_twins(exchange))
        tolerance = self.features.tolerance if self.features.injected_clock else self.lease / 2
        assert same_claims(twins.claims, answered.claims, tolerance), "asked in columns"
        assert replace(twins, claims=answered.claims) == answered, "asked in columns"
        return answered

    async def ask_as(self, shape: Literal["keys", "columns"], exchange: Exchange, store: ClaimStore | None = None) -> ExchangeResult:
        """Return the answers to one shape alone, for requests whose answers may differ between shapes."""
        store = store or self.store
        if shape == "keys":
            return await store.exchange(exchange)
        asked, places = _columns_of(exchange)
        answered = checked(asked, await in_columns(store).exchange_columns(asked))
        return ExchangeResult(
            _by_key(places[0], answered.claims, FIRST),
            _by_key(places[1], answered.completes, Ack.OK),
            _by_key(places[2], answered.releases, Ack.OK),
            _by_key(places[3], answered.renews, Ack.OK),
        )

    def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """One round trip of the store in columns, with the lease and the retention of the features."""
        asked = replace(exchange, lease=self.lease, retention=self.retention)
        return checked(asked, self.run(in_columns(self.store).exchange_columns(asked)))

    def exchange(
        self,
        claims: Sequence[Claim] = (),
        completes: Sequence[Complete] = (),
        releases: Sequence[Release] = (),
        renews: Sequence[Renew] = (),
    ) -> ExchangeResult:
        """One round trip of the store, with the lease and the retention of the features."""
        return self.run(self.ask(Exchange(claims, completes, releases, renews, self.lease, self.retention)))

    def patiently(self, claims: Sequence[Claim] = (), completes: Sequence[Complete] = ()) -> ExchangeResult:
        """The same with a lease that ends long after the slowest machine is through: for many keys at once."""
        return self.run(self.ask(Exchange(claims, completes, lease=600.0, retention=self.retention)))

    def claim(self, key: ClaimKey, token: int = MINE) -> ClaimAnswer:
        """Claim one key."""
        return self.exchange(claims=[Claim(key, token)]).claims[0]

    def claim_as(self, owner: str, key: ClaimKey, token: int, *, gone: Sequence[str] = ()) -> ClaimAnswer:
        """Claim one key as a process that has a name, with a lease that does not end."""
        asked = Exchange([Claim(key, token)], lease=600.0, retention=600.0, owner=owner, gone=gone)
        return self.run(self.ask(asked)).claims[0]

    def renew_as(self, owner: str, key: ClaimKey, token: int) -> Ack:
        """Renew one key as a process that has a name, or none any more."""
        asked = Exchange(renews=[Renew(key, token)], lease=600.0, retention=600.0, owner=owner)
        return self.run(self.ask(asked)).renews[0]

    def complete(self, key: ClaimKey, token: int = MINE, outcome: Outcome = Outcome.OK, unrecorded: str = "") -> Ack:
        """Complete one key."""
        return self.exchange(completes=[Complete(key, token, outcome, unrecorded)]).completes[0]

    def release(self, key: ClaimKey, token: int = MINE, sent_back: int | None = None) -> Ack:
        """Release one key."""
        return self.exchange(releases=[Release(key, token, sent_back)]).releases[0]

    def renew(self, key: ClaimKey, token: int = MINE) -> Ack:
        """Renew one key."""
        return self.exchange(renews=[Renew(key, token)]).renews[0]

    def is_busy(self, key: ClaimKey, token: int = THIRD) -> bool:
        """Return whether the key is held, as another worker finds it."""
        return isinstance(self.claim(key, token), Busy)


def same_claims(answered: Sequence[ClaimAnswer], expected: Sequence[ClaimAnswer], tolerance: float) -> bool:
    """Return whether the answers are equal, up to `tolerance` seconds of a wait."""
    return len(answered) == len(expected) and all(
        (a.owner == b.owner and abs(a.retry_after - b.retry_after) <= tolerance) if isinstance(a, Busy) and isinstance(b, Busy) else a == b
        for a, b in zip(answered, expected, strict=True)
    )


def _of_twins(exchange: Exchange) -> Exchange:
    """The same of other keys, one to each."""
    return replace(
        exchange,
        claims=[one._replace(key=_twin(one.key)) for one in exchange.claims],
        completes=[one._replace(key=_twin(one.key)) for one in exchange.completes],
        releases=[one._replace(key=_twin(one.key)) for one in exchange.releases],
        renews=[one._replace(key=_twin(one.key)) for one in exchange.renews],
    )


def _twin(key: ClaimKey) -> ClaimKey:
    return key._replace(id=key.id[::-1])


def _columns_of(exchange: Exchange) -> tuple[ColumnExchange, list[list[list[int]]]]:
    """The exchange in columns, and for each kind and column the positions of its requests."""
    claims, of_claims = _columns([(key, token, Column((), None, 0, ())) for key, token in exchange.claims])
    completes, of_completes = _columns(
        [(key, token, Column((), None, 0, (), outcome, None, unrecorded)) for key, token, outcome, unrecorded in exchange.completes]
    )
    releases, of_releases = _columns([(key, token, Column((), None, 0, (), sent_back=back)) for key, token, back in exchange.releases])
    renews, of_renews = _columns([(key, token, Column((), None, 0, ())) for key, token in exchange.renews])
    asked = ColumnExchange(claims, completes, releases, renews, exchange.lease, exchange.retention, exchange.owner, exchange.gone)
    return asked, [of_claims, of_completes, of_releases, of_renews]


def _columns(requests: Sequence[tuple[ClaimKey, int, Column]]) -> tuple[list[Column], list[list[int]]]:
    """One column for what is equal but for the keys and tokens. A key that comes again goes into a column behind its first one."""
    columns: list[tuple[Column, list[int]]] = []
    open_ones: dict[Column, list[int]] = {}
    seen: set[tuple[bytes, int | None]] = set()
    for position, (key, _, kind) in enumerate(requests):
        if key[:2] in seen:
            open_ones, seen = {}, set()
        seen.add(key[:2])
        same = kind._replace(day=key.day, attempt=key.attempt)
        if same not in open_ones:
            open_ones[same] = []
            columns.append((same, open_ones[same]))
        open_ones[same].append(position)
    return [
        same._replace(ids=[requests[i][0].id for i in positions], tokens=[requests[i][1] for i in positions]) for same, positions in columns
    ], [positions for _, positions in columns]


def _by_key(places: Sequence[Sequence[int]], answered: Sequence[Answered[AnyAnswer]], well: AnyAnswer) -> list[AnyAnswer]:
    """The answers in the order of the requests. What went well is no exception."""
    found = [well] * sum(map(len, places))
    for positions, (_, exceptions) in zip(places, answered, strict=True):
        assert well not in exceptions.values()
        for place, answer in exceptions.items():
            found[positions[place]] = answer
    return found
