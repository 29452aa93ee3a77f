"""Next hop of a copy at the head of a rung: its target, memory, or another rung. Pure; times are epoch milliseconds.

A `WaitingRun` has the records of one rung that were fetched together and have had the same fate since. A `Move` is the decision about
one of them; the delay pipeline carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message.disposition import Failure, Reason
from ackwise.middleware.message.message import Headers, TopicPartition, delivery_of
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import (
    Copy,
    ForeignCopy,
    OtherWire,
    Waiting,
    dead_letter,
    has_raw_names,
    parse_copy,
    shrink,
    waiting_copy,
    with_due,
)
from ackwise.middleware.policies.delaytopic import Ladder, Rung, to_send
from ackwise.middleware.runs.run import Run, Taker
from ackwise.plugin.topics.topicnames import TopicNames

#: So long after its first sight a copy hops at the earliest: where the clocks of brokers and relays differ by more than a rung, it would
#: hop hundreds of times a second.
_BETWEEN_HOPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Go:
    """It is due: to its target."""


@dataclass(frozen=True, slots=True)
class Aside:
    """Wait for `until` in memory, then decide again. What is behind it goes on."""

    until: int


@dataclass(frozen=True, slots=True)
class Hop:
    """On to a partition of `rung`."""

    rung: Rung


def look_at(appended: int, seen: int, wait: float) -> int:
    """Return when a copy that was appended to a rung is looked at, due or not, and never later.

    A timestamp counts as far as it can be believed: not after the copy was `seen` first, and not below 0. A clock that is ahead, or a
    forged timestamp, would hold all that is behind the copy for as long as it says.
    """
    return (min(appended, seen) if appended >= 0 else seen) + round(wait * 1000)


def next_hop(now: int, due: int, *, seen: int, ladder: Ladder, sends: bool, has_room: bool) -> Go | Aside | Hop:
    """What becomes of a copy at the head of a rung whose wait is over. `seen`: when this relay saw it first.

    Nearly every copy is aside for its last half second: a writer adds `clock_skew` to what its rung waits. Without room for it in memory
    it takes the shortest rung.
    """
    if (left := due - now) <= 0:
        return Go()
    if left < ladder.least * 1000:
        return Aside(due) if has_room else Hop(ladder.rung(0.0, sends=sends))
    if now < seen + _BETWEEN_HOPS and has_room:
        return Aside(seen + _BETWEEN_HOPS)
    return Hop(ladder.rung(left / 1000, sends=sends))


def cut_due(due: int, timestamp: int, seen: int, *, max_delay: float, clock_skew: float, is_append_time: bool) -> int:
    """`due`, or the latest that is legal: a delay is at most `max_delay` seconds.

    What was asked for by the rules is never cut: a sender adds `clock_skew`, and its clock may be ahead by as much. Where the timestamp is
    the producer's, the relay's first sight of the copy counts alone: an old one would make it early.
    """
    appended = timestamp if is_append_time and timestamp >= 0 else seen
    return min(due, appended + round((max_delay + 2 * clock_skew) * 1000))


def is_given_up(due: int, now: int, max_delay: float) -> bool:
    """Return whether a copy whose target does not exist is dead: it is overdue by `max_delay` seconds."""
    return now >= due + round(max_delay * 1000)


class WaitingRun(Run):
    """A run whose records are as the client gave them. Times are epoch milliseconds."""

    def __init__(self, place: TopicPartition, records: Sequence[Any], pipeline: Taker, *, seen: int) -> None:
        super().__init__(place, records, pipeline)
        self.seen = seen  #: when this relay saw it first
        self.is_looked_at = False  #: the wait of its rung is over
        self.failing_since: float | None = None  #: when it could not be moved for the first time, monotonic seconds
        self.overdue_since: int | None = None  #: when the first of its records was due, once one was


#: How a record says that the broker set its timestamp.
_APPEND_TIME: Final = 1

#: The reason of a dead letter that was to be sent, and which its topic refuses for good.
REFUSED: Final = "send-refused"


class Bounds(NamedTuple):
    """What is legal, in seconds."""

    max_delay: float
    clock_skew: float


@dataclass(slots=True)
class Move:
    """What is to be done with a record: publish `copy`, send `message`, record `cancelled`, or, with none of them, wait `until`."""

    record: Any
    due: int  #: epoch milliseconds; what can't be read is due now
    until: int = 0
    copy: Copy | None = None
    message: Outgoing | None = None
    cancelled: Event | None = None
    is_cut: bool = False  #: it was due later than is legal
    unreadable: str = ""  #: why it can't be read here
    foreign: Exception | None = None  #: why Ackwise did not write it
    is_done: bool = False


def decide(
    run: WaitingRun,
    record: Any,
    now: int,
    *,
    names: TopicNames,
    ladder: Ladder,
    bounds: Bounds,
    cancelled: AbstractSet[bytes],
    has_room: bool,
    is_given_up: bool,
) -> Move:
    """What becomes of `record` of `run`, whose wait on its rung is over. `is_given_up`: it could not be moved for as long as it may."""
    headers: Headers = tuple(record.headers)
    try:
        if has_raw_names(headers):
            raise ForeignCopy("the name of a header is no UTF-8, and no copy has one")
        waiting = waiting_copy(headers, names.group)
        if waiting.key in cancelled and (event := _cancelled(run, record, waiting, names.group)) is not None:
            if is_given_up:  # its event can't be written now, and what is behind it can't wait for that
                return Move(record, waiting.due, copy=_fallen_back(record, headers, waiting, waiting.due, now, names, ladder))
            return Move(record, waiting.due, cancelled=event)
        due = cut_due(
            waiting.due,
            record.timestamp,
            run.seen,
            max_delay=bounds.max_delay,
            clock_skew=bounds.clock_skew,
            is_append_time=record.timestamp_type == _APPEND_TIME,
        )
        if due != waiting.due:
            headers = with_due(headers, due)
        move = Move(record, due, is_cut=due != waiting.due)
        _decide_hop(move, run, headers, waiting, now, names, ladder, has_room=has_room, is_given_up=is_given_up)
    except ForeignCopy as error:
        copy = letter(run, record, names, Reason.FOREIGN_COPY, error, now)
        if is_given_up:  # no dead letter is taken now, and what is behind it can't wait for that
            copy = replace(
                copy,
                topic=names.delay,
                headers=copy.headers if has_raw_names(headers) else headers,
                until=now + _fallback(ladder, math.inf),
            )
        return Move(record, now, copy=copy, foreign=error)
    except OtherWire as error:
        copy = Copy(names.delay, record.offset, record.key, record.value, headers, now + _fallback(ladder, math.inf))
        return Move(record, now, copy=copy, unreadable=str(error))
    return move


def _decide_hop(
    move: Move,
    run: WaitingRun,
    headers: Headers,
    waiting: Waiting,
    now: int,
    names: TopicNames,
    ladder: Ladder,
    *,
    has_room: bool,
    is_given_up: bool,
) -> None:
    record, spread = move.record, _origin_partition(waiting.key, move.record.offset)
    found = next_hop(now, move.due, seen=run.seen, ladder=ladder, sends=waiting.is_send, has_room=has_room)
    if isinstance(found, Aside):
        move.until = found.until
    elif not isinstance(found, Go):
        move.copy = Copy(names.delay, spread, record.key, record.value, headers, move.due, waiting.is_send)
    elif is_given_up:
        move.copy = _fallen_back(record, headers, waiting, move.due, now, names, ladder)
    elif waiting.is_send:
        move.message = to_send(record.key, record.value, headers, names.group)
    else:
        move.copy = Copy(names.retry, spread, record.key, record.value, headers)


def _fallen_back(record: Any, headers: Headers, waiting: Waiting, due: int, now: int, names: TopicNames, ladder: Ladder) -> Copy:
    """The copy to write to a rung again, since it can't be moved now."""
    spread, until = _origin_partition(waiting.key, record.offset), now + _fallback(ladder, (now - due) / 1000)
    return Copy(names.delay, spread, record.key, record.value, headers, until, waiting.is_send)


def _fallback(ladder: Ladder, overdue: float) -> int:
    return ladder.fallback(overdue).wait * 1000


def _origin_partition(key: bytes, otherwise: int) -> int:
    """The partition of the origin, as the key of a waiting copy has it: where its copy comes back."""
    try:
        return int(key.split(b"/", 2)[1]) % 2**31
    except (IndexError, ValueError):
        return otherwise


def _cancelled(run: WaitingRun, record: Any, waiting: Waiting, group: str) -> Event | None:
    """What is to be recorded of a cancelled copy; `None` for one that is none of this group's messages."""
    try:
        copy = parse_copy(delivery_of(run.place, record), group)
    except (ForeignCopy, OtherWire):
        return None
    origin = copy.origin
    return Event(
        EventCode.CANCELLED,
        origin.topic,
        origin.partition,
        origin.offset,
        copy.handler,
        copy.attempt,
        record_ts_ms=origin.timestamp_ms,
        phys_topic=run.place.topic,
        phys_partition=run.place.partition,
        phys_offset=record.offset,
        due_ms=waiting.due,
    )


def letter(run: WaitingRun, record: Any, names: TopicNames, reason: str, error: Exception, now: int) -> Copy:
    """The dead letter of a record that can't be moved, about its message if it is a copy of this group's."""
    read = message = delivery_of(run.place, record)
    try:
        message = parse_copy(read, names.group)
    except (ForeignCopy, OtherWire):
        message = read
    return dead_letter(
        message,
        topic=names.dead_letter,
        partition=message.origin.partition,
        group=names.group,
        handler=message.handler or "-",
        now_ms=now,
        reason=reason,
        failure=Failure.of(error),
    )


def smaller(run: WaitingRun, move: Move, names: TopicNames, refusal: Exception, now: int) -> Copy | None:
    """What to publish instead of what was refused for good: its dead letter, or that cut further; `None` if nothing is left to cut."""
    if move.copy is not None and move.copy.topic == names.dead_letter:
        return shrink(move.copy)
    return letter(run, move.record, names, REFUSED if move.message is not None else Reason.TOO_LARGE, refusal, now)
