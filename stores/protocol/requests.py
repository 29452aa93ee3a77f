"""The requests of an exchange in the order in which they are applied, and in rounds that can travel together.

For stores whose server decides: what each of them asks is one row of a statement.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ackwise.middleware.store import Ack, ClaimAnswer, Exchange, ExchangeResult
from ackwise.stores.protocol.transitions import Place


class Kind(enum.IntEnum):
    """What is asked for a key."""

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
    """Of a complete."""


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
