"""Limits: what a partition or an agent may have in hand, and how many messages a handler may begin in a second. Pure, time is passed in.

The bucket of `RateLimit` is our own: the limiters on PyPI wait inside of themselves, and here a message waits where it is held, without a
claim and without an attempt. Source of the rates: RocketMQ has none in the consumer; of the thresholds: `pullThresholdForQueue`,
`pullThresholdSizeForQueue`, `consumeConcurrentlyMaxSpan`, `pullThresholdForTopic`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.keys import check_key_function, key_from
from ackwise.middleware.keytable import KeyTable
from ackwise.middleware.log import Log
from ackwise.middleware.message import Message
from ackwise.middleware.run import Run, Stage, pick
from ackwise.middleware.usercode import Raised, Stops, class_name

__all__ = ["Bucket", "Limiter", "RateLimit", "Thresholds", "check_threshold", "share_of"]

log = Log()

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h)", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}

#: Seconds' worth of messages that wait for each other: at 500/s they come up again 50 at a time, not one by one.
_PORTION: Final = 0.1

#: Seconds between looks at the bucket of a key whether it is full, or as long as one token takes; a bit more than it needs for that.
_LOOK_AGAIN: Final = 1.001

_WHY: Final = "RateLimit lets it wait"


class Thresholds(NamedTuple):
    """What a partition may have in hand before its fetching pauses; `None`: as much as everywhere."""

    messages: int | None = None
    bytes: int | None = None
    span: int | None = None
    """Of offsets, from the smallest that is not finished to the last that was fetched."""


def share_of(limit: int | None, partitions: int) -> int | None:
    """What each of `partitions` has of a limit for all of them; at least 1 (F06)."""
    return None if limit is None else max(1, limit // max(1, partitions))


def check_threshold(name: str, value: object) -> None:
    """Refuse what no messages, bytes or offsets could be counted by. Raises `ConfigurationError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}; it must be a whole number, 1 or more")


@dataclass(frozen=True)
class RateLimit:
    """Each handler begins at most `rate` messages in this process, such as `"500/s"`, `"30/m"` or `"1000/h"`. What is above it waits.

    After a rest `burst` may begin at once; unless given, as many as in a second, at least one. With `key`, a function of the message,
    each key has a rate of its own. Waiting is no attempt. Raises `ConfigurationError`.
    """

    rate: Annotated[str, "messages that a handler may begin, such as `500/s`, `30/m`; turns RateLimit on"]
    burst: Annotated[int | None, "messages that may begin at once after a rest; those of a second unless set"] = None
    key: Callable[[Message[Any]], object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rate, str) or (found := _RATE.fullmatch(self.rate.strip())) is None or not float(found[1]):
            raise ConfigurationError(f"rate of RateLimit is {self.rate!r}; write a number above 0 and its time, such as '500/s', '30/m'")
        if self.burst is not None and (isinstance(self.burst, bool) or not isinstance(self.burst, int) or self.burst < 1):
            raise ConfigurationError(f"burst of RateLimit is {self.burst!r}; it must be a whole number, 1 or more")
        if self.key is not None and not callable(self.key):
            raise ConfigurationError(f"key of RateLimit is {self.key!r}; it must be a function that takes a message")
        if self.key is not None:
            check_key_function(self.key, "the key function of RateLimit")

    @property
    def per_second(self) -> float:
        """The rate, in messages per second."""
        found = _RATE.fullmatch(self.rate.strip())
        assert found is not None
        return float(found[1]) / _SECONDS[found[2]]

    @property
    def most(self) -> int:
        """How many may begin at once."""
        return self.burst or max(1, math.ceil(self.per_second))


class Bucket:
    """Tokens, which come back at `rate` per second until there are `most`. It begins full. Times are monotonic seconds."""

    __slots__ = ("_at", "_most", "_rate", "_tokens")

    def __init__(self, rate: float, most: int, now: float) -> None:
        self._rate = rate
        self._most = most
        self._tokens = float(most)
        self._at = now

    def take(self, number: int, now: float) -> int:
        """Take as many of `number` tokens as there are; returns how many."""
        self._refill(now)
        taken = min(number, int(self._tokens + 1e-9))
        self._tokens -= taken
        return taken

    def wait(self, number: int, now: float) -> float:
        """Seconds until there are `number` tokens, if nobody takes one meanwhile; for more than it holds, until so many have come."""
        self._refill(now)
        return max(0.0, (number - self._tokens) / self._rate)

    def is_full(self, now: float) -> bool:
        """Whether nothing says that it was ever used."""
        self._refill(now)
        return self._tokens >= self._most

    def _refill(self, now: float) -> None:
        self._tokens = min(float(self._most), self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now


class Limiter:
    """The rate of one handler."""

    def __init__(self, policy: RateLimit, handler: str) -> None:
        self._policy = policy
        self._handler = handler
        self._portion = max(1, int(policy.per_second * _PORTION))
        seconds = _LOOK_AGAIN * max(1.0, 1 / policy.per_second)
        self._buckets = KeyTable(lambda now: Bucket(policy.per_second, policy.most, now), seconds)
        self._has_warned = False

    def admit(self, runs: list[Run], now: float) -> BaseException | None:
        """Let those of `runs` that are decoded begin as far as the rate allows; the others are WITHHELD until there may be room.

        Returns what stops the app if the key function raised that.
        """
        waiting = [run for run in runs if run.stage is Stage.FETCHED and run.prepared and not run.paid]
        if self._policy.key is not None:
            return self._admit_by_key(runs, waiting, self._policy.key, now)
        bucket, ahead = self._buckets.of(None, now), 0
        for run in sorted(waiting, key=_first):
            taken = 0 if ahead else bucket.take(len(run), now)
            if taken == len(run):
                run.paid = True
                continue
            if taken:
                head = run.cut(taken)
                head.paid = True
                runs.append(head)
            ahead += min(len(run), self._portion)
            self._withhold(run, now + bucket.wait(ahead, now))
        return None

    def _admit_by_key(
        self, runs: list[Run], waiting: list[Run], key_of: Callable[[Message[Any]], object], now: float
    ) -> BaseException | None:
        ahead: dict[Hashable, int] = {}
        for run in sorted(waiting, key=_first):
            late: dict[int, float] = {}
            for place, message in enumerate(run.messages()):
                key = self._key(key_of, message)
                if isinstance(key, Stops):
                    return key.error
                bucket = self._buckets.of(key, now)
                if not ahead.get(key) and bucket.take(1, now):
                    continue
                ahead[key] = ahead.get(key, 0) + 1
                late[place] = now + bucket.wait(ahead[key], now)
            for single, until in zip(pick(runs, run, late), late.values(), strict=True):
                self._withhold(single, until)
            if run.stage is Stage.FETCHED:
                run.paid = True
        return None

    def _key(self, key_of: Callable[[Message[Any]], object], message: Message[Any]) -> Hashable | Stops:
        """What the function says; what it fails on, or what is no key, is all of one key: a limit must not cost an attempt."""
        key = key_from(key_of, message)
        if not isinstance(key, Raised):
            return key
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the key function of RateLimit raised, its messages share one rate", handler=self._handler, error=class_name(key.error)
            )
        return None

    def _withhold(self, run: Run, until: float) -> None:
        run.stage = Stage.WITHHELD
        run.postpone(until, _WHY)


def _first(run: Run) -> int:
    return run.first
