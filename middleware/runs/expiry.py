"""`Expiry`: messages that are too old for their handler become dead letters, with the reason `expired`, where they would run.

A message has expired once its header `expires` is past, or once it is older than `max_age` of its agent, counted from the record that its
producer wrote. It is decided on where it would start, after its claim: what ran before is a duplicate then, and not a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import Dead, Reason
from ackwise.middleware.message.message import Delivery, Headers
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, pick

log = Log()

#: The header that says until when a message may run.
EXPIRES: Final = "expires"

#: Epoch milliseconds of 2001 and of the end of 9999. Beyond is no time that a producer means, such as one in seconds or microseconds.
_FIRST, _LAST = 10**12, 253_402_300_799_999

_DIGITS: Final = re.compile(rb"[0-9]{13,15}")

#: Seconds between two lines about headers that can't be read.
_QUIET: Final = 60.0


class Expiry:
    """What has expired of the messages of `agent`. True if the agent asks for it. `wall` and `monotonic` are in seconds."""

    def __init__(self, agent: Agent, *, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._handler = agent.name
        self._max_age_ms = agent.max_age * 1000
        self._by_header = agent.expires
        self._wall = wall
        self._monotonic = monotonic
        self.messages = 0  #: that have expired here
        self._unreadable = 0  #: headers that could not be read, and of which the log has not told
        self._quiet_until = 0.0  #: monotonic seconds

    def __bool__(self) -> bool:
        return self._by_header or self._max_age_ms > 0

    def is_over(self, run: Run) -> bool:
        """Return whether all messages of `run` have expired."""
        return len(self.places(run)) == len(run)

    def places(self, run: Run) -> list[int]:
        """The places of the messages of `run` that have expired. What an operator redrove never does."""
        if any(isinstance(record, Delivery) and record.replay_id is not None for record in run.records):
            return []
        now_ms = self._wall() * 1000
        ages = self._max_age_ms > 0
        return [
            place
            for place, record in enumerate(run.records)
            if (ages and _is_older(run.origin_at(place).timestamp_ms, now_ms - self._max_age_ms))
            or (self._by_header and (until := expires_ms(record.headers)) is not None and until <= now_ms)
        ]

    def bury(self, runs: list[Run], run: Run) -> bool:
        """Rule that what has expired of `run` is a dead letter, and falls out of it; return whether something is left that may run."""
        places = self.places(run)
        is_whole = len(places) == len(run)
        self.messages += len(places)
        for single in pick(runs, run, places):
            single.exec_ids = None  # those of its last attempt, which was reported: no other one starts
            single.rule(Dead(Reason.EXPIRED, single.failure))
        return not is_whole

    def log_unreadable(self, runs: Sequence[Run]) -> None:
        """Log once a minute that `runs` start although their headers say something that can't be read."""
        if not self._by_header or not runs:
            return
        self._unreadable += sum(_is_unreadable(record.headers) for run in runs for record in run.records if record.headers)
        now, run = self._monotonic(), runs[0]
        if self._unreadable and now >= self._quiet_until:
            messages, self._unreadable, self._quiet_until = self._unreadable, 0, now + _QUIET
            log.warning(
                "expiry headers could not be read",
                handler=self._handler,
                messages=messages,
                topic=run.origin.topic,
                partition=run.origin.partition,
                offset=run.origin.offset,
            )


def expires_ms(headers: Headers) -> int | None:
    """The time of the last header `expires`, epoch milliseconds; `None` without one, and for one that can't be read.

    A message whose time can't be read runs: a dead letter could only be redriven by hand, for the fault of a producer.
    """
    given = _given(headers)
    if given is None or _DIGITS.fullmatch(given) is None:
        return None
    return time if _is_time(time := int(given)) else None


def has_expired(run: Run) -> bool:
    """Return whether `run` is a dead letter since it expired: no handler had it, as one may have that gives this reason itself."""
    return isinstance(run.disposition, Dead) and run.disposition.reason == Reason.EXPIRED and run.exec_ids is None


def _given(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    return next((value for name, value in reversed(headers) if name == EXPIRES), None)


def _is_unreadable(headers: Headers) -> bool:
    return _given(headers) is not None and expires_ms(headers) is None


def _is_older(timestamp_ms: int, oldest_ms: float) -> bool:
    """A record without a time, or with one that means something else, has no age."""
    return _is_time(timestamp_ms) and timestamp_ms <= oldest_ms


def _is_time(time_ms: int) -> bool:
    return _FIRST <= time_ms <= _LAST
