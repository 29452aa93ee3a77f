"""Delay topic: how long each of its partitions waits, and which one a copy is written to. Pure; durations are seconds.

Partition 0 has cancellations only. Partition p waits for rung (p - 1) mod 26: 13 waits for retries, then the same 13 for delayed sends, so
that a million of those do not delay the retries. The waits are part of the format and no setting changes them: another ladder would be
another topic.

A delayed send is a record with the message's own key and value. A block like that of a copy follows its headers: version, group and
handler, which are frozen over all versions, then the due time and the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Headers
from ackwise.middleware.message.outgoing import MESSAGE_ID, Outgoing
from ackwise.middleware.message.wire import SEND_TOPIC, VERSION, ForeignCopy, due_ms
from ackwise.middleware.policies.retry import MAX_DELAY

#: The partition of cancellations.
CANCELLATIONS: Final = 0

#: What the rungs wait, the most useful first, for topics with few partitions.
WAITS: Final = (10, 60, 1, 600, 3600, 30, 120, 300, 1800, 5, 2, 21_600, 86_400)

_KINDS: Final = 2
_CYCLE: Final = _KINDS * len(WAITS)

#: A copy takes a rung that is longer than what is left by this: later by half a second at most, and a hop less.
EARLY: Final = 0.5

#: Less than this is not worth another hop, whatever rungs there are.
_LEAST: Final = 1.0

#: Hops of a delayed send that would take more are refused where it is sent.
MOST_HOPS: Final = 100

#: Where no shorter rung takes a copy, a longer one may, up to this: an outage must not make what is due in seconds wait for a day.
_LONGEST_DETOUR: Final = 10

#: What can't be moved is written to a rung from the first to the second of these, by the time since it was due.
_SHORTEST_FALLBACK, _LONGEST_FALLBACK = 10.0, 600.0


class Rung(NamedTuple):
    """Partitions that wait for equally long."""

    wait: int
    partitions: tuple[int, ...]


def wait_of(partition: int) -> int:
    """For how long `partition` waits, which is not that of cancellations."""
    return WAITS[_rung_of(partition) % len(WAITS)]


def is_for_sends(partition: int) -> bool:
    """Return whether `partition` is for messages that are sent later, where there are enough partitions for both kinds."""
    return _rung_of(partition) >= len(WAITS)


def width(*, lanes: int = 1, delayed_sends: bool = False) -> int:
    """Return the number of partitions of a new delay topic."""
    return 1 + _CYCLE * lanes if lanes > 1 or delayed_sends else 1 + len(WAITS)


def _rung_of(partition: int) -> int:
    if partition <= CANCELLATIONS:
        raise ValueError(f"partition {partition} of a delay topic waits for nothing")
    return (partition - 1) % _CYCLE


class Ladder:
    """Return the rungs of a delay topic with `partitions` partitions. A missing one is replaced by the other kind, or shorter ones."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        found: tuple[dict[int, tuple[int, ...]], ...] = ({}, {})
        for partition in range(1, partitions):
            of_kind, wait = found[is_for_sends(partition)], wait_of(partition)
            of_kind[wait] = (*of_kind.get(wait, ()), partition)
        retries, sends = found
        self._rungs = tuple([Rung(wait, each[wait]) for wait in sorted(each)] for each in (sends | retries, retries | sends))
        self._waits = [rung.wait for rung in self._rungs[0]]  # those that one kind lacks are the other's

    def __bool__(self) -> bool:
        """Return whether there is any rung."""
        return bool(self._waits)

    @property
    def shortest(self) -> int:
        """The shortest wait that there is."""
        return self._waits[0]

    @property
    def least(self) -> float:
        """Less than this is waited for in memory, and not on a rung."""
        return max(_LEAST, self.shortest - EARLY)

    @property
    def longest(self) -> int:
        """The longest wait that there is."""
        return self._waits[-1]

    @property
    def missing(self) -> list[int]:
        """The waits for which there is no partition of either kind, shortest first."""
        return sorted({*WAITS}.difference(self._waits))

    def rung(self, left: float, *, sends: bool = False) -> Rung:
        """The rung for a copy that is due in `left` seconds: the longest that is not longer by more than `EARLY`, or else the shortest."""
        return self._rungs[sends][self._place(left)]

    def fallback(self, overdue: float, *, sends: bool = False) -> Rung:
        """The rung for a copy that can't be moved, so long after it was due: the longest that is not longer than that, from 10 s to 10 m.

        `overdue` is infinite for copies that this worker can't read.
        """
        return self.rung(min(max(overdue, _SHORTEST_FALLBACK), _LONGEST_FALLBACK) - EARLY, sends=sends)

    def ways(self, left: float, *, sends: bool = False, spread: int = 0) -> Iterator[int]:
        """The partitions for such a copy, the best first: where one takes nothing, the next shorter rung does.

        Then the longer ones do, up to 10 s, or the next longer than the shortest.

        `spread`: any number, by which copies are distributed over the partitions of one rung.
        """
        rungs, chosen = self._rungs[sends], self._place(left)
        longest = max([_LONGEST_DETOUR, *(rung.wait for rung in rungs[:2])])
        for rung in (*rungs[chosen::-1], *(rung for rung in rungs[chosen + 1 :] if rung.wait <= longest)):
            first = spread % len(rung.partitions)
            yield from (*rung.partitions[first:], *rung.partitions[:first])

    def hops(self, delay: float) -> int:
        """Return how often a copy is written that is due in `delay` seconds, its first time included; 0 without a delay."""
        left, hops = delay, 0
        while left >= self.least or (left > 0 and not hops):
            wait = self.rung(left).wait
            on_it = max(0, int((left - max(wait - EARLY, self.least)) // wait)) + 1
            left, hops = left - on_it * wait, hops + on_it
        return hops

    def _place(self, left: float) -> int:
        return max(0, bisect_right(self._waits, left + EARLY) - 1)


@cache
def ladder_of(partitions: int) -> Ladder:
    """`Ladder(partitions)`, made once."""
    return Ladder(partitions)


#: Stands where a copy names its handler: no handler gets such a record.
HANDLER: Final = "-"

_VERSION, _GROUP, _HANDLER, _DUE = "ackwise-version", "ackwise-group", "ackwise-handler", "ackwise-due"
_PARTITION: Final = "ackwise-send-partition"


def refuse_too_late(topic: str, due: int, now_ms: int) -> None:
    """Raise `ConfigurationError` if `due` is more than three days from now: the relay would cut it, and send too early."""
    if due > now_ms + round(MAX_DELAY * 1000):
        days = (due - now_ms) / 86_400_000
        raise ConfigurationError(f"a message to {topic!r} is to be sent in {days:.1f} days; {MAX_DELAY / 86400:g} days are the most")


def send_later(message: Outgoing, due: int, *, now_ms: int, group: str, topic: str, clock_skew: float) -> Outgoing:
    """Return the record for the delay topic of `group` that sends `message` at `due`; times are epoch milliseconds.

    `clock_skew` (seconds) is added, so that it is never early between clocks that differ by less. What is due already is sent as it is.
    """
    if due <= now_ms:
        return message
    block: Headers = (
        (_VERSION, b"%d" % VERSION),
        (_GROUP, group.encode()),
        (_HANDLER, HANDLER.encode()),
        (_DUE, b"%d" % (due + round(clock_skew * 1000))),
        (SEND_TOPIC, message.topic.encode()),
        *(() if message.partition is None else ((_PARTITION, b"%d" % message.partition),)),
    )
    return replace(message, topic=topic, partition=None, headers=(*message.headers, *block))


def due_of_send(headers: Headers) -> int | None:
    """Return when a delayed send is due, epoch milliseconds; `None` for any other message. Its sender chooses a rung by it."""
    if not any(name == SEND_TOPIC for name, _ in headers):
        return None
    found = next((value for name, value in reversed(headers) if name == _DUE), None)
    return int(found) if found is not None and found.isdigit() else None


def to_send(key: bytes | None, value: bytes | None, headers: Headers, group: str) -> Outgoing:
    """The message of such a record of `group`. Raises `ForeignCopy` or `OtherWire` if it is none."""
    due_ms(headers, group)
    start = max(place for place, (name, _) in enumerate(headers) if name == _VERSION)
    fields = {name: found for name, found in headers[start:] if found is not None}
    try:
        topic = fields[SEND_TOPIC].decode()
        partition = int(fields[_PARTITION]) if _PARTITION in fields else None
        message_id = fields[MESSAGE_ID].decode("utf-8", "surrogateescape")
        return Outgoing(topic, value, key, headers[:start], partition, message_id)
    except (KeyError, ValueError, ConfigurationError) as error:
        raise ForeignCopy(f"where it goes can't be read ({type(error).__name__}: {error})") from None
