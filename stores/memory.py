"""`MemoryStore`: claims that live as long as the process, for tests and trials."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.storage.claimstore import (
    FIRST,
    Ack,
    Answered,
    ClaimAnswer,
    Column,
    ColumnExchange,
    ColumnResult,
    Exchange,
    ExchangeResult,
    Outcome,
    of_columns,
)
from ackwise.stores.protocol.transitions import Place, Record, decide

AnyAnswer = TypeVar("AnyAnswer")


class _Block:
    """The records of keys that were claimed together, for the first time, and have gone the same way since."""

    __slots__ = ("_tokens", "attempt", "day", "ids", "kept_until", "leased_until", "left", "outcome", "owner", "tokens")

    def __init__(self, column: Column, attempt: int, owner: str, leased_until: float, kept_until: float) -> None:
        self.ids, self.day, self.attempt, self.tokens, self.owner = column.ids, column.day, attempt, column.tokens, owner
        self.outcome: Outcome | None = None
        self.leased_until, self.kept_until = leased_until, kept_until
        self.left = len(column.ids)  #: keys that have no other record by now
        self._tokens: dict[bytes, int] | None = None

    def tokens_by_id(self) -> dict[bytes, int]:
        """Made when it is first asked for: what goes the same way to its end needs none."""
        if self._tokens is None:
            self._tokens = dict(zip(self.ids, self.tokens, strict=True))
        return self._tokens

    def is_under_way(self, now: float) -> bool:
        return self.outcome is None and now < self.kept_until

    def record(self, key_id: bytes) -> Record:
        token = self.tokens_by_id()[key_id]
        return Record(token, 1, self.attempt, 0, False, self.outcome, self.leased_until, self.kept_until).held_by(self.owner)


class MemoryStore:
    """A claim store in this process; `clock` gives seconds that never go back.

    Nothing is shared with other processes and nothing survives this one, so after a restart everything that Kafka
    delivers again runs again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._days: dict[int | None, dict[bytes, Record | _Block]] = {}
        self._written: OrderedDict[Place | _Block, None] = OrderedDict()  # the one written longest ago first

    async def open(self) -> None:
        """Nothing to connect to."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything at once; there is no await in between, so nothing else runs meanwhile."""
        now = self._clock()
        result = self._decide(exchange, now)
        self._forget(now)
        return result

    async def exchange_columns(self, exchange: ColumnExchange) -> ColumnResult:
        """As `exchange`. What a column claims for the first time is one record until its keys go different ways."""
        now = self._clock()
        completes = [self._complete(_frozen(column), exchange, now) for column in exchange.completes]
        releases = [self._release(_frozen(column), exchange, now) for column in exchange.releases]
        renews = [self._renew(_frozen(column), exchange, now) for column in exchange.renews]
        claims = [self._claim(_frozen(column), exchange, now) for column in exchange.claims]
        self._forget(now)
        return ColumnResult(claims, completes, releases, renews)

    async def close(self) -> None:
        """Nothing to give back; the records stay as long as the object."""

    async def init(self) -> None:
        """Nothing to set up."""

    async def check(self) -> list[str]:
        """Nothing that could be wrong."""
        return []

    async def cleanup(self) -> int:
        """Drop what is forgotten, which exchanges do as well; return how many records."""
        return self._forget(self._clock())

    def _complete(self, column: Column, exchange: ColumnExchange, now: float) -> Answered[Ack]:
        blocks, others = self._under_way(column, now)
        for block in blocks:
            block.outcome, block.owner = column.outcome, column.unrecorded
            block.leased_until, block.kept_until = now, now + exchange.retention
            self._written.move_to_end(block)
        if not others:
            return Answered(len(column.ids), {})
        asked = ColumnExchange(completes=[_part(column, others)], retention=exchange.retention)
        return _answered(column, others, self._decide(of_columns(asked), now).completes, Ack.OK)

    def _release(self, column: Column, exchange: ColumnExchange, now: float) -> Answered[Ack]:
        asked = ColumnExchange(releases=[column], retention=exchange.retention)
        return _answered(column, range(len(column.ids)), self._decide(of_columns(asked), now).releases, Ack.OK)

    def _renew(self, column: Column, exchange: ColumnExchange, now: float) -> Answered[Ack]:
        blocks, others = self._under_way(column, now)
        for block in blocks:
            block.owner, block.leased_until = exchange.owner, now + exchange.lease
            block.kept_until = block.leased_until + exchange.retention
            self._written.move_to_end(block)
        if not others:
            return Answered(len(column.ids), {})
        asked = ColumnExchange(renews=[_part(column, others)], lease=exchange.lease, retention=exchange.retention, owner=exchange.owner)
        return _answered(column, others, self._decide(of_columns(asked), now).renews, Ack.OK)

    def _claim(self, column: Column, exchange: ColumnExchange, now: float) -> Answered[ClaimAnswer]:
        known = self._days.get(column.day, {})
        fresh, others = column, list[int]()
        if not known.keys().isdisjoint(column.ids):
            others = [place for place, key_id in enumerate(column.ids) if key_id in known]
            fresh = _part(column, [place for place, key_id in enumerate(column.ids) if key_id not in known])
        leased_until = now + exchange.lease
        block = _Block(fresh, column.attempt, exchange.owner, leased_until, leased_until + exchange.retention)
        records = dict.fromkeys(fresh.ids, block)
        if len(records) < len(fresh.ids):  # one key twice, which is the caller's mistake
            records, others = {}, list(range(len(column.ids)))
        if records:
            self._days.setdefault(column.day, {}).update(records)
            self._written[block] = None
        if not others:
            return Answered(len(column.ids), {})
        asked = ColumnExchange([_part(column, others)], (), (), (), exchange.lease, exchange.retention, exchange.owner, exchange.gone)
        return _answered(column, others, self._decide(of_columns(asked), now).claims, FIRST)

    def _under_way(self, column: Column, now: float) -> tuple[list[_Block], Sequence[int]]:
        """The blocks under way that have some of the keys with these tokens, and no others; and the places of the other keys."""
        known = self._days.get(column.day)
        if not known or not column.ids:
            return [], range(len(column.ids))
        block = known.get(column.ids[0])
        is_whole = isinstance(block, _Block) and block.left == len(column.ids) and block.is_under_way(now)
        if isinstance(block, _Block) and is_whole and block.tokens == column.tokens and block.ids == column.ids:
            return [block], ()
        if len(set(column.ids)) < len(column.ids):  # one key twice, which is the caller's mistake
            return [], range(len(column.ids))
        places: dict[_Block, list[int]] = {}
        others: list[int] = []
        last: Record | _Block | None = None
        mine, tokens = others, dict[bytes, int]()
        for place, (key_id, token) in enumerate(zip(column.ids, column.tokens, strict=True)):
            if (found := known.get(key_id)) is not last:
                last, mine, tokens = found, others, {}
                if isinstance(found, _Block) and found.is_under_way(now):
                    mine, tokens = places.setdefault(found, []), found.tokens_by_id()
            (mine if tokens.get(key_id) == token else others).append(place)
        return [self._only(block, _part(column, some)) for block, some in places.items() if some], others

    def _only(self, block: _Block, part: Column) -> _Block:
        """The block, or a new one of this part of its keys."""
        if block.left == len(part.ids):
            return block
        some = _Block(part, block.attempt, block.owner, block.leased_until, block.kept_until)
        self._days[part.day].update(dict.fromkeys(part.ids, some))
        self._written[some] = None
        self._leave(block, some.left)
        return some

    def _leave(self, block: _Block, keys: int) -> None:
        block.left -= keys
        if not block.left:
            del self._written[block]

    def _decide(self, exchange: Exchange, now: float) -> ExchangeResult:
        """Answer key by key; what is written has its own record from then on."""
        result, written = decide(self._find, exchange, now)
        for place, record in written.items():
            self._write(place, record)
        return result

    def _find(self, place: Place) -> Record | None:
        key_id, day = place
        found = self._days[day].get(key_id) if day in self._days else None
        return found.record(key_id) if isinstance(found, _Block) else found

    def _write(self, place: Place, record: Record) -> None:
        key_id, day = place
        known = self._days.setdefault(day, {})
        if isinstance(before := known.get(key_id), _Block):
            self._leave(before, 1)
        known[key_id] = record
        self._written[place] = None
        self._written.move_to_end(place)

    def _forget(self, now: float) -> int:
        """Drop the records that `decide` takes for unknown anyway; return how many.

        With one retention for all, what was written first is forgotten first, up to the length of a lease: so the
        first one to keep ends the search.
        """
        forgotten = 0
        while self._written:
            first = next(iter(self._written))
            day, ids = (first.day, first.ids) if isinstance(first, _Block) else (first[1], first[:1])
            known = self._days[day]
            found = first if isinstance(first, _Block) else known[first[0]]
            if found.kept_until > now:
                break
            del self._written[first]
            for key_id in ids:
                if known.get(key_id) is found:
                    del known[key_id]
                    forgotten += 1
            if not known:
                del self._days[day]
        return forgotten


def _frozen(column: Column) -> Column:
    """A copy that is not changed any more."""
    tokens = column.tokens if isinstance(column.tokens, range) else tuple(column.tokens)
    return column._replace(ids=tuple(column.ids), tokens=tokens)


def _part(column: Column, places: Sequence[int]) -> Column:
    if len(places) == len(column.ids):
        return column
    return column._replace(ids=tuple(map(column.ids.__getitem__, places)), tokens=tuple(map(column.tokens.__getitem__, places)))


def _answered(column: Column, places: Sequence[int], answers: Iterable[AnyAnswer], well: AnyAnswer) -> Answered[AnyAnswer]:
    return Answered(len(column.ids), {place: answer for place, answer in zip(places, answers, strict=True) if answer != well})


def from_url(url: str) -> MemoryStore:
    """A new, empty store for `memory://`. Raises `ConfigurationError` if the URL says more than that."""
    if url != "memory://":
        raise ConfigurationError("the URL of the memory store is memory:// and nothing else; it has no path and no options")
    return MemoryStore()
