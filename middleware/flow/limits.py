"""Limits: how much a partition or an agent may have in flight, and how many messages a handler may start per second. Pure.

`RateLimit` has its own token bucket: the limiters on PyPI block the caller, and here a message waits without a claim and without an
attempt; time is passed in. `KeyTable` drops the keys whose state has become the default. Source of the thresholds: RocketMQ's
`pullThresholdForQueue`, `pullThresholdSizeForQueue`, `consumeConcurrentlyMaxSpan`, `pullThresholdForTopic`; it has no rates in the
consumer.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.message.keys import check_key_function, key_from
from ackwise.middleware.message.message import Message
from ackwise.middleware.runs.run import Run, Stage, divide
from ackwise.middleware.usercode import Raised, Stops, class_name

#: Keys that are looked at for each one that is asked for: the table shrinks faster than it grows, and no call walks through all of it.
_LOOKS: Final = 2


class Kept(Protocol):
    """What is kept of one key."""

    def is_full(self, now: float) -> bool:
        """Return whether it is as a new one."""
        ...


KeptT = TypeVar("KeptT", bound=Kept)


class KeyTable(Generic[KeptT]):
    """What `make` returns for each key, until it is as a new one again. A key is looked at every `seconds` after its first use."""

    def __init__(self, make: Callable[[float], KeptT], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._kept: dict[Hashable, KeptT] = {}
        self._looks: deque[tuple[float, Hashable]] = deque()  #: each key once, with when it is looked at, the next one first

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: Hashable, now: float) -> KeptT:
        """Return the state of `key`. Use it before you ask for another key."""
        self._forget_some(now)
        if (kept := self._kept.get(key)) is None:
            kept = self._kept[key] = self._make(now)
            self._looks.append((now + self._seconds, key))
        return kept

    def _forget_some(self, now: float) -> None:
        for _ in range(_LOOKS):
            if not self._looks or self._looks[0][0] > now:
                return
            _, key = self._looks.popleft()
            if self._kept[key].is_full(now):
                del self._kept[key]
            else:
                self._looks.append((now + self._seconds, key))


log = Log()

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h)", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}

#: Seconds' worth of messages that wait for each other: at 500/s they come up again 50 at a time, not one by one.
_PORTION: Final = 0.1

#: Seconds between looks at the bucket of a key whether it is full, or as long as one token takes; a bit more than it needs for that.
_LOOK_AGAIN: Final = 1.001

#: Seconds for which what was not spent is kept for who waits, and in which no more than the rate and the burst are spent.
_SECOND: Final = 1.0

#: Seconds that a message waits for its rate at least, and the part of a token that is none.
_SHORTEST: Final = 0.001
_ALMOST: Final = 1e-9

_WHY: Final = "RateLimit lets it wait"


class Thresholds(NamedTuple):
    """What a partition may have in flight before its fetching pauses; `None`: as much as everywhere."""

    messages: int | None = None
    bytes: int | None = None
    span: int | None = None
    """Of offsets, from the smallest that is not finished to the last that was fetched."""


def share_of(limit: int | None, partitions: int) -> int | None:
    """Return the part of a limit that each of `partitions` has; at least 1 (F06)."""
    return None if limit is None else max(1, limit // max(1, partitions))


class Share:
    """What one agent may have in flight. Its partitions have equal parts of it: `part` returns the share of each of `n` partitions."""

    __slots__ = ("_part", "_partitions", "thresholds")

    def __init__(self, part: Callable[[int], Thresholds]) -> None:
        self._part = part
        self._partitions = 0
        self.thresholds = part(1)  #: of each partition

    def change(self, partitions: int) -> None:
        """So many partitions are added, or taken away where it is below zero."""
        self._partitions += partitions
        self.thresholds = self._part(self._partitions)


def check_threshold(name: str, value: object) -> None:
    """Refuse what no messages, bytes or offsets could be counted by. Raises `ConfigurationError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}; it must be a whole number, 1 or more")


@dataclass(frozen=True)
class RateLimit:
    """Each handler starts at most `rate` messages in this process, such as `"500/s"`, `"30/m"` or `"1000/h"`. What is above it waits.

    After a rest `burst` may start at once; by default as many as in a second, at least one. With `key`, a function of the message,
    each key has its own rate. Waiting is no attempt. Raises `ConfigurationError`.
    """

    rate: Annotated[str, "messages that a handler may start, such as `500/s`, `30/m`; turns RateLimit on"]
    burst: Annotated[int | None, "messages that may start at once after a rest; default: those of a second"] = None
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
        """Return the number of messages that may start at once."""
        return self.burst or max(1, math.ceil(self.per_second))


class Bucket:
    """Tokens, which come back at `rate` per second until there are `most`. It starts full. Times are monotonic seconds.

    While a batch waits for tokens those of a second are kept as well, so that one that checks late has lost none. In no second more
    than `rate` and `most` together are spent.
    """

    __slots__ = ("_at", "_most", "_rate", "_recent", "_spent", "_tokens", "_wanted_until")

    def __init__(self, rate: float, most: int, now: float) -> None:
        self._rate = rate
        self._most = most
        self._tokens = float(most)
        self._at = now
        self._wanted_until = now  #: when the batch that waits will have checked
        self._recent: deque[tuple[float, int]] = deque()  #: what was spent within a second, and when
        self._spent = 0  #: their sum

    def available(self, now: float, ahead: float = 0.0) -> int:
        """Return the number of tokens available now, or in `ahead` seconds."""
        self._refill(now)
        return int(self._tokens + ahead * self._rate + _ALMOST)

    def due(self, number: int, now: float) -> float:
        """Seconds until `number` tokens will have come, were it to hold that many."""
        self._refill(now)
        seconds = max(0.0, (number - self._tokens) / self._rate)
        self._wanted_until = now + seconds + _SECOND
        return seconds

    def wait(self, number: int, now: float) -> float:
        """Seconds until `number` tokens may be spent; for more than it ever holds, until it has as many as it can."""
        self._refill(now)
        number = min(number, int(max(self._most, self._rate)))
        missing = number - self._tokens
        seconds = max(missing / self._rate if missing > _ALMOST else 0.0, self._wait_for_room(number, now))
        if not seconds:
            return 0.0
        self._wanted_until = now + seconds + _SECOND
        return seconds

    def spend(self, number: int, now: float) -> None:
        """Take `number` tokens; who takes more than there are has waited as long as that helps."""
        self._refill(now)
        self._tokens -= number
        if self._recent and int(self._recent[-1][0] / _SHORTEST) == int(now / _SHORTEST):  # there are a thousand at most
            self._recent[-1] = now, self._recent[-1][1] + number
        else:
            self._recent.append((now, number))
        self._spent += number

    def is_full(self, now: float) -> bool:
        """Return whether nothing says that it was ever used."""
        self._refill(now)
        return self._tokens >= self._most and not self._recent

    def _wait_for_room(self, number: int, now: float) -> float:
        """Seconds until so little was spent within a second that `number` may be."""
        over, until = self._spent + number - self._rate * _SECOND - self._most, now
        for at, spent in self._recent:
            if over <= _ALMOST:
                break
            over -= spent
            until = at + _SECOND
        return until - now

    def _refill(self, now: float) -> None:
        most = max(float(self._most), self._rate * _SECOND) if now <= self._wanted_until else float(self._most)
        self._tokens = min(most, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        while self._recent and self._recent[0][0] <= now - _SECOND:
            self._spent -= self._recent.popleft()[1]


class Limiter:
    """The rate of one handler. Admitted messages count against later batches, and spend a token when they start."""

    def __init__(self, policy: RateLimit, handler: str) -> None:
        self._policy = policy
        self._handler = handler
        self._portion = max(1, int(policy.per_second * _PORTION))
        seconds = _LOOK_AGAIN * max(1.0, 1 / policy.per_second)
        self._buckets = KeyTable(lambda now: Bucket(policy.per_second, policy.most, now), seconds)
        self._expected: Counter[Hashable] = Counter()
        self._has_warned = False

    def admit(self, runs: list[Run], now: float, *, ahead: float = 0.0, but: Collection[Run] = ()) -> BaseException | None:
        """Let those of `runs` that are decoded be claimed as far as the rate lets them start within `ahead` seconds.

        The others are WITHHELD until there may be room; those of `but` never start. Returns what stops the app if the key function
        raised that.
        """
        waiting = [run for run in runs if run.stage is Stage.FETCHED and run.prepared and run not in but]
        self.forget(waiting)
        behind: Counter[Hashable] = Counter()
        for run in sorted(waiting, key=_first):
            keys = self._keys(run)
            if isinstance(keys, Stops):
                return keys.error
            run.rate_keys = keys
            self._withhold(runs, run, self._late(keys, behind, now, ahead))
        return None

    def _late(self, keys: Sequence[Hashable], behind: Counter[Hashable], now: float, ahead: float) -> dict[float, list[int]]:
        """The places of those that have to wait, by when they come up again; the others are expected from now on."""
        rooms: dict[Hashable, int] = {}
        late: dict[Hashable, list[int]] = {}
        for place, key in enumerate(keys):
            if key not in rooms:
                rooms[key] = 0 if behind[key] else self._buckets.of(key, now).available(now, ahead) - self._expected[key]
            if rooms[key] > 0:
                rooms[key] -= 1
                self._expected[key] += 1
            else:
                late.setdefault(key, []).append(place)
        until: dict[float, list[int]] = {}
        for key, places in late.items():
            behind[key] += min(len(places), self._portion)
            seconds = self._buckets.of(key, now).due(self._expected[key] + behind[key], now) - ahead
            until.setdefault(now + max(seconds, _SHORTEST), []).extend(places)
        return until

    def _withhold(self, runs: list[Run], run: Run, late: Mapping[float, list[int]]) -> None:
        """Those that come up again together stay together."""
        for part, until in zip(divide(runs, run, [sorted(places) for places in late.values()]), late, strict=True):
            part.stage = Stage.WITHHELD
            part.postpone(until, _WHY)
        run.is_expected = run.stage is Stage.FETCHED and len(run) > 0

    def wait(self, runs: Iterable[Run], now: float) -> float:
        """Seconds until all messages of `runs` may start together."""
        numbers = Counter(key for run in runs for key in run.rate_keys or (None,) * len(run))
        return max((self._buckets.of(key, now).wait(number, now) for key, number in numbers.items()), default=0.0)

    def start(self, runs: Iterable[Run], now: float) -> None:
        """All messages of `runs` start now."""
        for run in runs:
            for key, number in Counter(run.rate_keys or (None,) * len(run)).items():
                self._buckets.of(key, now).spend(number, now)
        self.forget(runs)

    def forget(self, runs: Iterable[Run]) -> None:
        """They have started, or are not going to."""
        for run in runs:
            if run.is_expected:
                run.is_expected = False
                self._expected.subtract(run.rate_keys or ())
                for key in {*(run.rate_keys or ())}:
                    if not self._expected[key]:
                        del self._expected[key]

    def _keys(self, run: Run) -> Sequence[Hashable] | Stops:
        """Return the key of each message of `run`."""
        if self._policy.key is None:
            return [None] * len(run)
        keys: list[Hashable] = []
        for message in run.messages():
            if isinstance(key := self._key(self._policy.key, message), Stops):
                return key
            keys.append(key)
        return keys

    def _key(self, key_of: Callable[[Message[Any]], object], message: Message[Any]) -> Hashable | Stops:
        """Return the function's key. A failure or an invalid key counts as one shared key: a limit must not cost an attempt."""
        key = key_from(key_of, message)
        if not isinstance(key, Raised):
            return key
        if not self._has_warned:
            self._has_warned = True
            log.warning("key function of RateLimit raised", handler=self._handler, error=class_name(key.error))
        return None


def _first(run: Run) -> int:
    return run.first
