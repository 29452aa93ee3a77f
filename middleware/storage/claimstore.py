"""Protocol of a claim store: one call, `exchange`, for a whole batch.

A store keeps one record per claim key and decides every transition atomically on its own clock. Everything is idempotent by token:
repeating an exchange whose answer was lost returns the lost answer, except for a release (LOST then, which is as good) and a complete that
was RESTORED (OK then).

Messages that were fetched together are exchanged as a column: the shared values once, the keys, and in the answer the number of keys
and the exceptions by place. `docs/store-protocol.md` has the transition table and both shapes.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from ackwise.middleware.errors import StoreUnavailable

WHOEVER: Final = 0
"""In place of a token: no claim has it."""


class Outcome(enum.IntEnum):
    """How a completed message ended."""

    OK = 1
    DEAD = 2
    SKIPPED = 3


class ClaimKey(NamedTuple):
    """What a claim is about."""

    id: bytes
    """16 bytes: blake2b-128 over namespace, dedup epoch, group, handler and dedup id."""
    day: int | None
    """Days since 1970-01-01 of the origin record, for stores that partition by it; `None` for business keys."""
    attempt: int
    """`reconsume_times + 1` of the copy that asks; a claim with a smaller one than the record's is stale."""


class Claim(NamedTuple):
    """May I run this message? `token` is chosen by the caller, unique per claim, positive and below 2**63."""

    key: ClaimKey
    token: int


class Complete(NamedTuple):
    """This message is finished; remember it for the retention. A success with the token `WHOEVER` counts whichever worker holds the key."""

    key: ClaimKey
    token: int
    outcome: Outcome
    unrecorded: str = ""
    """What became of it and could not be recorded elsewhere, kept with the outcome: up to 400 ASCII characters. A store that keeps no
    owners may forget it."""


class Release(NamedTuple):
    """I no longer hold this message. `sent_back` is the attempt of the copy on its way, or `None`."""

    key: ClaimKey
    token: int
    sent_back: int | None = None


class Renew(NamedTuple):
    """I am still working on this message: its lease starts again now."""

    key: ClaimKey
    token: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """N keys of each kind, one round trip.

    The store applies completes, then releases, then renews, then claims. A key that stands in both `completes` and
    `claims`, in both `releases` and `claims`, or twice in `claims` is the caller's mistake.
    """

    claims: Sequence[Claim] = ()
    completes: Sequence[Complete] = ()
    releases: Sequence[Release] = ()
    renews: Sequence[Renew] = ()
    lease: float = 30.0  #: seconds
    retention: float = 86400.0  #: seconds that a completed or sent-back record is remembered
    owner: str = ""
    """The process that asks, as others on its host can tell whether it lives; kept beside the token of what it claims
    or renews. Up to 64 letters, digits and hyphens; empty if that can't be detected."""
    gone: Sequence[str] = ()
    """Owners whose death is proved: their claims may be taken over before the lease ends."""

    def __len__(self) -> int:
        return len(self.claims) + len(self.completes) + len(self.releases) + len(self.renews)


class Acquired(NamedTuple):
    """Yours until the lease ends. `epoch` is the fencing token: it grows with every claim that follows another."""

    epoch: int
    lost: int = 0
    """How many claims of this attempt ended without being completed or released: crashed workers."""
    took_unreleased: bool = False
    """The claim before this one was neither completed nor released: a worker may have run it and died."""


class Busy(NamedTuple):
    """Another worker holds it, for at most `retry_after` seconds more."""

    retry_after: float
    owner: str = ""
    """The process that holds it, if the store keeps owners and it named itself."""


class AlreadyDone(NamedTuple):
    """Completed before; nothing to run."""

    outcome: Outcome
    unrecorded: str = ""
    """As given by the worker that completed it."""


class Stale(NamedTuple):
    """A copy with a later attempt is already on its way; this one is dropped."""


ClaimAnswer = Acquired | Busy | AlreadyDone | Stale


class Ack(enum.Enum):
    """The answer to a complete, a release or a renew."""

    OK = "ok"
    RESTORED = "restored"
    """complete: the record was gone (evicted, failed over) and was written again; counted and alarmed."""
    LOST = "lost"
    """Another worker owns the record: change nothing, and claim again before believing anything."""
    LOST_DONE = "lost-done"
    """complete: another worker completed it; the offset may advance."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The answers, each list in the order of its request."""

    claims: list[ClaimAnswer]
    completes: list[Ack]
    releases: list[Ack]
    renews: list[Ack]


class ClaimStore(Protocol):
    """A claim store. `ackwise.stores.conformance` has the suite that every store passes."""

    async def open(self) -> None:
        """Connect and create what is missing. Raises `StoreUnavailable` or `ConfigurationError`."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything in one round trip. Raises `StoreUnavailable` if the answer did not come."""
        ...

    async def close(self) -> None:
        """Give back connections and threads. Closing twice does nothing."""


@runtime_checkable
class Maintained(Protocol):
    """What has something to set up and to keep tidy, as `ackwise store init|check|cleanup URL` does.

    All three connect by themselves, and work on a store that is open as well as on one that is not. They raise
    `StoreUnavailable`, and `ConfigurationError` for a schema of another version, or for missing rights.
    """

    async def init(self) -> None:
        """Create what is missing and bring what is old to this version. Doing it twice changes nothing."""

    async def check(self) -> list[str]:
        """What is wrong or unwise, one sentence each with what to do; empty if all is well. Changes nothing."""
        ...

    async def cleanup(self) -> int:
        """Delete what is forgotten, in bounded steps beside running workers; returns how many records."""
        ...


class MaintainedStore(ClaimStore, Maintained, Protocol):
    """A claim store that has something to set up and to keep tidy."""


class Remembered(NamedTuple):
    """The record of one key, as `ListedStore.records` reads it. Instants are microseconds since 1970 by the store's clock."""

    dedup_hash: int
    """The first 8 bytes of the key's `id`, signed, as the events have them."""
    key: str
    """The record's name in the store."""
    outcome: int
    """An `Outcome`; 0 while it is not completed."""
    is_claimed: bool
    """Not completed, and a worker holds it or held it when it died."""
    is_unrecorded: bool
    """Completed by a worker that could not record that in its events."""
    leased_until: int | None
    """When others may take it over; None for a completed one, if the store does not keep it."""
    kept_until: int
    now: int
    """When it was read."""


@runtime_checkable
class ListedStore(Protocol):
    """A claim store that lists its records, as `ackwise reconcile --claims` compares them with the events."""

    def records(self) -> AsyncIterator[Sequence[Remembered]]:
        """Yield all that is remembered, some thousand records at a time, whether the store is open or not. Changes nothing.

        A record that changes meanwhile is listed as it was before or after. Raises `StoreUnavailable` or `ConfigurationError`.
        """
        ...


def hash_of(key_id: bytes) -> int:
    """Return what events name a key by: the first 8 bytes of its `id`."""
    return int.from_bytes(key_id[:8], "big", signed=True)


AnswerT_co = TypeVar("AnswerT_co", covariant=True)
AnyAnswer = TypeVar("AnyAnswer")

#: The answer to the first claim of a key, which a column leaves out.
FIRST: Final = Acquired(1)


class Column(NamedTuple):
    """One request about many keys, each with its own token. A key stands in it once."""

    ids: Sequence[bytes]
    """The `id` of each key."""
    day: int | None
    attempt: int
    """`day` and `attempt` of every key, as in `ClaimKey`."""
    tokens: Sequence[int]
    """One for each key; in a row unless something fell out."""
    outcome: Outcome = Outcome.OK
    """Of completes alone."""
    sent_back: int | None = None
    """Of releases alone."""
    unrecorded: str = ""
    """Of completes alone."""


@dataclass(frozen=True, slots=True)
class ColumnExchange:
    """As `Exchange`, in columns."""

    claims: Sequence[Column] = ()
    completes: Sequence[Column] = ()
    releases: Sequence[Column] = ()
    renews: Sequence[Column] = ()
    lease: float = 30.0  #: seconds
    retention: float = 86400.0  #: seconds that a completed or sent-back record is remembered
    owner: str = ""
    gone: Sequence[str] = ()


class Answered(NamedTuple, Generic[AnswerT_co]):
    """The answer to one column: of `keys` keys, those at the places in `exceptions` are answered otherwise than well.

    Well is `Acquired(1)` for a claim, with nothing lost and nothing taken over, and `Ack.OK` for everything else.
    """

    keys: int
    exceptions: Mapping[int, AnswerT_co]


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One answer per column, in the order of the columns."""

    claims: Sequence[Answered[ClaimAnswer]] = ()
    completes: Sequence[Answered[Ack]] = ()
    releases: Sequence[Answered[Ack]] = ()
    renews: Sequence[Answered[Ack]] = ()


@runtime_checkable
class ColumnStore(Protocol):
    """A claim store that is asked in columns."""

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """Apply everything in one round trip, by the rules of `ClaimStore.exchange`. Raises `StoreUnavailable`."""
        ...


def in_columns(store: ClaimStore) -> ColumnStore:
    """`store`, asked in columns: itself if it can be, otherwise through its exchange of single keys."""
    return store if isinstance(store, ColumnStore) else _ByKey(store)


class _ByKey:
    """A store that answers single keys."""

    def __init__(self, store: ClaimStore) -> None:
        self._store = store

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        asked = of_columns(exchange)
        result = await self._store.exchange(asked)
        counts = len(result.claims), len(result.completes), len(result.releases), len(result.renews)
        if counts != (len(asked.claims), len(asked.completes), len(asked.releases), len(asked.renews)):
            raise StoreUnavailable(f"the store answered {sum(counts)} keys and was asked about {len(asked)}: its answer can't be used")
        return ColumnResult(
            _by_column(exchange.claims, result.claims, FIRST),
            _by_column(exchange.completes, result.completes, Ack.OK),
            _by_column(exchange.releases, result.releases, Ack.OK),
            _by_column(exchange.renews, result.renews, Ack.OK),
        )


def of_columns(exchange: ColumnExchange) -> Exchange:
    """The same exchange, key by key, in the order of the columns."""
    return Exchange(
        [Claim(key, token) for column in exchange.claims for key, token in _keys(column)],
        [Complete(key, token, column.outcome, column.unrecorded) for column in exchange.completes for key, token in _keys(column)],
        [Release(key, token, column.sent_back) for column in exchange.releases for key, token in _keys(column)],
        [Renew(key, token) for column in exchange.renews for key, token in _keys(column)],
        exchange.lease,
        exchange.retention,
        exchange.owner,
        exchange.gone,
    )


def checked(exchange: ColumnExchange, result: ColumnResult) -> ColumnResult:
    """`result`, if it answers every key of `exchange`. Raises `StoreUnavailable` for another number of columns or keys."""
    asked = (exchange.claims, exchange.completes, exchange.releases, exchange.renews)
    answered = (result.claims, result.completes, result.releases, result.renews)
    for columns, answers in zip(asked, answered, strict=True):
        if [answer.keys for answer in answers] != [len(column.ids) for column in columns] or any(
            not 0 <= place < answer.keys for answer in answers for place in answer.exceptions
        ):
            raise StoreUnavailable(
                f"the store answered {[answer.keys for answer in answers]} keys and was asked about "
                f"{[len(column.ids) for column in columns]}: its answer can't be used"
            )
    return result


def _keys(column: Column) -> list[tuple[ClaimKey, int]]:
    return [(ClaimKey(key_id, column.day, column.attempt), token) for key_id, token in zip(column.ids, column.tokens, strict=True)]


def _by_column(columns: Sequence[Column], answers: Sequence[AnyAnswer], well: AnyAnswer) -> list[Answered[AnyAnswer]]:
    left, found = iter(answers), list[Answered[AnyAnswer]]()
    for column in columns:
        count = len(column.ids)
        found.append(Answered(count, {place: answer for place, answer in enumerate(islice(left, count)) if answer != well}))
    return found
