"""The exchange with a claim store in columns: many keys that go the same way are asked about, and answered, as one.

A column has the keys of messages that were fetched together. What all of them share stands once; the answer names how many
keys it is about, and only what did not go well by its place. `docs/store-protocol.md` has both shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.store import (
    Ack,
    Acquired,
    Claim,
    ClaimAnswer,
    ClaimKey,
    ClaimStore,
    Complete,
    Exchange,
    Outcome,
    Release,
    Renew,
)

__all__ = ["FIRST", "Answered", "Column", "ColumnExchange", "ColumnResult", "ColumnStore", "checked", "in_columns", "of_columns"]

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
AnyAnswer = TypeVar("AnyAnswer")

#: The answer to the first claim of a key, which a column leaves out.
FIRST: Final = Acquired(1)


class Column(NamedTuple):
    """One request about many keys, each with a token of its own. A key stands in it once."""

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
    """`store`, asked in columns: itself if it can be, else through its exchange of single keys."""
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
