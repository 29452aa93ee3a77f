"""The transition table of the claim protocol as pure functions: a record and a request in, a record and an answer out.

The memory store and SQLite decide with these functions, the model check explores them, and the conformance suite
compares every other store with them, so there is one table. It is explained row by row in `docs/store-protocol.md`.
Your own store may call `decide` too, as `examples/custom_store.py` does; a store whose server decides sends each request as a row.
Instants are seconds on the store's own clock.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ackwise.middleware.storage.claimstore import (
    Ack,
    Acquired,
    AlreadyDone,
    Busy,
    ClaimAnswer,
    Exchange,
    ExchangeResult,
    Outcome,
    Stale,
)

_RELEASED = 0
"""The token of a released claim; the tokens that callers choose are positive."""

_FIRST = Acquired(1)
"""The answer to the first claim of a key."""

Place = tuple[bytes, int | None]
"""Where a record is kept: key id and day. The attempt is a question about the record, not a part of its identity."""


class Record(NamedTuple):
    """The record of one key. Without a record, or with one past `kept_until`, the key is unknown."""

    token: int
    """The token of the claim that holds or completed it; 0 once released."""
    epoch: int
    next_attempt: int
    """Claims of a smaller attempt are stale."""
    lost: int
    """How many claims of `next_attempt` ended without being completed or released."""
    took_unreleased: bool
    """Whether the holder took over such a claim; kept, so that a repeated claim is answered as the first time."""
    outcome: Outcome | None
    """How it was completed; `None` while it is not."""
    leased_until: float
    """When others may take over; without meaning once completed."""
    kept_until: float
    """When the record is forgotten: one retention after completion, or after the end of the lease."""

    @property
    def owner(self) -> str:
        """The process that holds the claim, if it named itself; of a completed one, what could not be recorded. If the store keeps that."""
        return ""

    def held_by(self, owner: str) -> Record:
        """The same record with an owner. It is no field: a store that knows nothing of owners stores a record as ever."""
        return _Owned.of(self, owner) if owner else self


class _Owned(Record):
    _owner = ""

    @classmethod
    def of(cls, record: Record, owner: str) -> _Owned:
        made = cls._make(record)
        made._owner = owner
        return made

    @property
    def owner(self) -> str:
        return self._owner


def claim(
    record: Record | None,
    token: int,
    attempt: int,
    now: float,
    lease: float,
    retention: float,
    owner: str = "",
    gone: Collection[str] = (),
) -> tuple[Record | None, ClaimAnswer]:
    """May `token` of `owner` run this attempt of the key? What an owner that is `gone` holds is as good as expired."""
    leased_until = now + lease
    kept_until = leased_until + retention
    if record is None or now >= record.kept_until:
        return Record(token, 1, attempt, 0, False, None, leased_until, kept_until).held_by(owner), _FIRST
    if record.outcome is not None:
        return record, AlreadyDone(record.outcome, record.owner)
    # Before BUSY and take-over: a copy with a later attempt exists, and this one must neither wait for it nor run.
    if attempt < record.next_attempt:
        return record, Stale()
    if record.token == token:
        mine = Record(token, record.epoch, record.next_attempt, record.lost, record.took_unreleased, None, leased_until, kept_until)
        return mine.held_by(owner), Acquired(record.epoch, record.lost, record.took_unreleased)
    released = record.token == _RELEASED
    # A released claim is free even if the clock was set back since.
    died = record.owner != "" and record.owner in gone
    if not released and now < record.leased_until and not died:
        return record, Busy(record.leased_until - now, record.owner)
    epoch = record.epoch + 1
    lost = 0 if attempt > record.next_attempt else record.lost + (not released)
    taken = Record(token, epoch, attempt, lost, not released, None, leased_until, kept_until)
    return taken.held_by(owner), Acquired(epoch, lost, not released)


def complete(
    record: Record | None, token: int, attempt: int, outcome: Outcome, now: float, retention: float, unrecorded: str = ""
) -> tuple[Record | None, Ack]:
    """The holder of `token` finished. An expired lease does not matter as long as no worker took over: the work is done.

    A success with token 0 is that of a replay, which holds its own key: it counts whichever worker holds this one.
    """
    if record is None or now >= record.kept_until:
        return Record(token, 1, attempt, 0, False, outcome, now, now + retention).held_by(unrecorded), Ack.RESTORED
    is_replay = outcome is Outcome.OK and token == _RELEASED and record.outcome is None
    if is_replay or (outcome is Outcome.OK and record.outcome is Outcome.DEAD):
        # Its dead letter was sent again and succeeded: what has the key from now on is a duplicate of that success. Where the store
        # has not heard of the death yet, the holder of the key is late, and its death takes no success away.
        succeeded = Record(token, record.epoch, record.next_attempt, 0, False, outcome, now, now + retention)
        return succeeded.held_by(unrecorded), Ack.OK
    if record.outcome is not None:
        return record, Ack.OK if record.token == token else Ack.LOST_DONE
    if record.token != token:
        return record, Ack.LOST
    done = Record(token, record.epoch, record.next_attempt, record.lost, record.took_unreleased, outcome, now, now + retention)
    return done.held_by(unrecorded), Ack.OK


def release(record: Record | None, token: int, sent_back: int | None, now: float, retention: float) -> tuple[Record | None, Ack]:
    """The holder of `token` gives the key back; with `sent_back`, every attempt before that one is stale from now on."""
    record = _remembered(record, now)
    if record is None or record.outcome is not None or record.token != token:
        return record, Ack.LOST
    next_attempt, lost = (record.next_attempt, record.lost) if sent_back is None else (sent_back, 0)
    return Record(_RELEASED, record.epoch, next_attempt, lost, False, None, now, now + retention), Ack.OK


def renew(record: Record | None, token: int, now: float, lease: float, retention: float, owner: str = "") -> tuple[Record | None, Ack]:
    """Renew the lease of `token`, now of `owner`. An expired lease starts again as long as no worker took over."""
    record = _remembered(record, now)
    if record is None or record.outcome is not None or record.token != token:
        return record, Ack.LOST
    leased_until = now + lease
    kept_until = leased_until + retention
    fields = (token, record.epoch, record.next_attempt, record.lost, record.took_unreleased)
    return Record(*fields, None, leased_until, kept_until).held_by(owner), Ack.OK


def decide(find: Callable[[Place], Record | None], exchange: Exchange, now: float) -> tuple[ExchangeResult, dict[Place, Record]]:
    """Answer a whole exchange at the instant `now`; return the answers and the records that are to be written.

    `find` gives the stored record of a place, or `None`.
    """
    lease, retention, owner, gone = exchange.lease, exchange.retention, exchange.owner, exchange.gone
    written: dict[Place, Record] = {}
    completes: list[Ack] = []
    releases: list[Ack] = []
    renews: list[Ack] = []
    claims: list[ClaimAnswer] = []
    # Four loops that look alike: one that is given the transition and its arguments takes half as long again.
    for key, token, outcome, unrecorded in exchange.completes:
        place = key[:2]
        before = written.get(place) or find(place)
        after, ack = complete(before, token, key[2], outcome, now, retention, unrecorded)
        if after is not before and after is not None:
            written[place] = after
        completes.append(ack)
    for key, token, sent_back in exchange.releases:
        place = key[:2]
        before = written.get(place) or find(place)
        after, ack = release(before, token, sent_back, now, retention)
        if after is not before and after is not None:
            written[place] = after
        releases.append(ack)
    for key, token in exchange.renews:
        place = key[:2]
        before = written.get(place) or find(place)
        after, ack = renew(before, token, now, lease, retention, owner)
        if after is not before and after is not None:
            written[place] = after
        renews.append(ack)
    for key, token in exchange.claims:
        place = key[:2]
        before = written.get(place) or find(place)
        after, answer = claim(before, token, key[2], now, lease, retention, owner, gone)
        if after is not before and after is not None:
            written[place] = after
        claims.append(answer)
    return ExchangeResult(claims, completes, releases, renews), written


def _remembered(record: Record | None, now: float) -> Record | None:
    return record if record is not None and now < record.kept_until else None


class Kind(enum.IntEnum):
    """The request for a key."""

    CLAIM = 0
    COMPLETE = 1
    RELEASE = 2
    RENEW = 3


class Asked(NamedTuple):
    """One request of an exchange."""

    place: Place
    token: int
    attempt: int
    kind: Kind
    value: int | None
    """The outcome of a complete; what a release sends back."""
    position: int
    """Among all requests of the exchange."""
    unrecorded: str = ""
    """Set for a complete alone."""


Answer = ClaimAnswer | Ack


def asked(exchange: Exchange) -> list[Asked]:
    """All requests in the order in which they are applied: completes, releases, renews, claims."""
    every: list[Asked] = []
    for key, token, outcome, unrecorded in exchange.completes:
        every.append(Asked(key[:2], token, key.attempt, Kind.COMPLETE, outcome, len(every), unrecorded))
    for key, token, sent_back in exchange.releases:
        every.append(Asked(key[:2], token, key.attempt, Kind.RELEASE, sent_back, len(every)))
    for key, token in exchange.renews:
        every.append(Asked(key[:2], token, key.attempt, Kind.RENEW, None, len(every)))
    for key, token in exchange.claims:
        every.append(Asked(key[:2], token, key.attempt, Kind.CLAIM, None, len(every)))
    return every


def result(exchange: Exchange, answers: Sequence[Any]) -> ExchangeResult:
    """`answers` by position, as the lists of the protocol."""
    released = len(exchange.completes)
    renewed = released + len(exchange.releases)
    claimed = renewed + len(exchange.renews)
    return ExchangeResult(
        list(answers[claimed:]), list(answers[:released]), list(answers[released:renewed]), list(answers[renewed:claimed])
    )


def rounds(every: Iterable[Asked], at_once: int) -> Iterator[list[Asked]]:
    """Each key once and `at_once` at most, sorted by day and key so that two workers never wait for each other in a circle."""
    some: dict[Place, Asked] = {}
    for one in every:
        if one.place in some or len(some) == at_once:
            yield _sorted(some.values())
            some = {}
        some[one.place] = one
    if some:
        yield _sorted(some.values())


def _sorted(some: Iterable[Asked]) -> list[Asked]:
    return sorted(some, key=lambda one: (one.place[1] is not None, one.place[1] or 0, one.place[0]))
