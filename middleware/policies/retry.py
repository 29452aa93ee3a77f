"""Retry policies: when a failed message is redelivered, and when it becomes a dead letter. Pure.

They are RocketMQ's delay levels and custom policies, the attempts in place of a handler with an order, and the journey of a message that
fails every time. Rules from RocketMQ 5.3: `MessageStoreConfig.messageDelayLevel`, `AbstractSendMessageProcessor.consumerSendMsgBack`,
`ExponentialRetryPolicy`, `CustomizedRetryPolicy`; for orders `ConsumeMessageOrderlyService.processConsumeResult`,
`submitConsumeRequestLater`, `checkReconsumeTimes`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol

from ackwise.middleware.duration import format_duration, parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import raising
from ackwise.middleware.message.disposition import DONE, Dead, Delayed, Disposition, Done, Reason, Suspended
from ackwise.middleware.message.keys import refuse_async
from ackwise.middleware.usercode import Returned, called, class_name, close_coroutine, is_a, leaves, plain, shown

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

#: Seconds: the longest delay that may be asked for unless `max_delay` says otherwise, as in RocketMQ.
MAX_DELAY: Final = 3 * 86400.0

#: RocketMQ's: in the default table the first retry is at level 3, 10 s.
_FIRST_RETRY_LEVEL: Final = 3


@dataclass(frozen=True, slots=True, init=False)
class DelayLevels:
    """A table of delays, shortest first; level 1 is the first entry.

    Retries rise through it from level 1, in the default table from level 3, as in RocketMQ.
    """

    seconds: tuple[float, ...]

    def __init__(self, table: str | Sequence[float | str] = DEFAULT_LEVELS) -> None:
        entries = table.split() if isinstance(table, str) else list(table)
        seconds = tuple(parse_duration(entry, what="a delay level") for entry in entries)
        if not seconds or any(a >= b for a, b in zip((0.0, *seconds), seconds, strict=False)):
            raise ConfigurationError(f"delay levels {table!r} must be at least one duration above 0, each longer than the one before")
        object.__setattr__(self, "seconds", seconds)

    def __len__(self) -> int:
        return len(self.seconds)

    def __str__(self) -> str:
        return " ".join(self.names())

    def names(self) -> list[str]:
        """The levels as topic names spell them: `["1s", "5s", …]`."""
        return [format_duration(seconds) for seconds in self.seconds]

    def clamp(self, level: int) -> int:
        """`level`, or the last one if the table is shorter; at least 1."""
        return max(1, min(level, len(self.seconds)))

    def delay(self, level: int) -> float:
        """Seconds of `level`, clamped to the table."""
        return self.seconds[self.clamp(level) - 1]

    def after(self, reconsume_times: int) -> int:
        """The level of the next delivery of a message that was sent back `reconsume_times` times."""
        first = _FIRST_RETRY_LEVEL if self == _DEFAULT else 1
        return self.clamp(first + max(0, reconsume_times))

    def fitting(self, seconds: float) -> int | None:
        """The largest level that is not longer than `seconds`; `None` if even the first is."""
        fits = [level for level, delay in enumerate(self.seconds, 1) if delay <= seconds]
        return fits[-1] if fits else None


_DEFAULT: Final = DelayLevels()


class RetryPolicy(Protocol):
    """How long to wait after a failed attempt."""

    def delay(self, attempt: int) -> float:
        """Seconds until the delivery after `attempt` (1 is the first). Raises `ValueError` below 1."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """`initial * multiplier ** (attempt - 1)`, at most `maximum`, spread by ± `jitter` (a share of it)."""

    initial: float | str = 5.0
    multiplier: float = 2.0
    maximum: float | str = 7200.0
    jitter: float = 0.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        initial = parse_duration(self.initial, what="initial of Exponential")
        maximum = parse_duration(self.maximum, what="maximum of Exponential")
        if not (0 < initial <= maximum and self.multiplier >= 1 and 0 <= self.jitter < 1):
            raise ConfigurationError(f"{self!r} needs initial > 0, maximum >= initial, multiplier >= 1 and 0 <= jitter < 1")
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "maximum", maximum)
        refuse_async(self.draw, "draw of Exponential")

    def delay(self, attempt: int) -> float:
        """See the class; saturates at `maximum` instead of overflowing."""
        maximum = float(self.maximum)
        try:
            seconds = float(self.initial) * float(self.multiplier) ** (_checked(attempt) - 1)
        except OverflowError:
            seconds = maximum
        return min(maximum, min(seconds, maximum) * (1 + self.jitter * (2 * self.draw() - 1)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The delays in a list, one per attempt; the last one goes on forever."""

    delays: tuple[float, ...]

    def __init__(self, *delays: float | str) -> None:
        if not delays:
            raise ConfigurationError("Schedule() needs at least one delay, such as Schedule('1s', '10s')")
        object.__setattr__(self, "delays", tuple(parse_duration(delay, what="a delay of Schedule") for delay in delays))

    def delay(self, attempt: int) -> float:
        """The delay of `attempt`, or the last one."""
        return self.delays[min(_checked(attempt), len(self.delays)) - 1]


def Fixed(delay: float | str) -> Schedule:
    """The same delay after every attempt."""
    return Schedule(delay)


def _checked(attempt: int) -> int:
    if attempt < 1:
        raise ValueError(f"attempt is {attempt}; the first one is 1")
    return attempt


@dataclass(frozen=True, slots=True)
class SendBack:
    """A copy comes back after `delay` seconds; `level` is the delay level that this is, or the largest within it."""

    delay: float
    level: int
    charged: bool = True
    """Whether an attempt is charged. Otherwise the copy has the attempt that it had, and the claim is plainly released: told of a
    later one, the store would take this copy for stale, and no worker would have it."""


class DelayRefused(ConfigurationError):
    """A delay that is longer than `max_delay`."""


class ConsumeLater(Exception):
    """The policy of messages that are consumed later: `ConsumeLater(16, levels="1s 10s 1m", retry=Exponential(), no_retry=BadInput)`.

    It is for `app.use`; a handler raises `Later`. It is an exception only so that raising it explains this. A message is
    delivered at most `max_reconsume_times + 1` times. Without `retry`, the retries rise through `levels`. `retry_by_error` picks
    another policy by the class of the exception; classes in `no_retry` are dead letters at once. Nobody may ask for more than
    `max_delay`; what a record says beyond that is not believed.

    Raises `ConfigurationError` for settings that can't work.
    """

    def __init__(
        self,
        max_reconsume_times: Annotated[int | None, "times that a message is sent back before it is a dead letter"] = None,
        *,
        levels: Annotated[str | Sequence[float | str] | None, "delay levels, shortest first"] = None,
        retry: RetryPolicy | None = None,
        retry_by_error: Mapping[type[BaseException], RetryPolicy] | None = None,
        no_retry: Sequence[type[BaseException]] | type[BaseException] = (),
        max_delay: Annotated[float | str | None, "longest delay of a handler, a policy or a level"] = None,
    ) -> None:
        super().__init__()
        if max_reconsume_times is not None and (not _is_whole(max_reconsume_times) or max_reconsume_times < 0):
            raise ConfigurationError(
                f"max_reconsume_times is {shown(max_reconsume_times, repr)}; it must be a whole number, 0 or more. To ask for a delay, a "
                "handler raises Later('30s')"
            )
        self.max_reconsume_times = 16 if max_reconsume_times is None else max_reconsume_times
        self.levels = _DEFAULT if levels is None else DelayLevels(levels)
        self.retry = retry
        self.retry_by_error = dict(retry_by_error or {})
        self.no_retry = (no_retry,) if isinstance(no_retry, type) else tuple(no_retry)
        self.max_delay = MAX_DELAY if max_delay is None else parse_duration(max_delay, what="max_delay of ConsumeLater")
        for kind in (*self.no_retry, *self.retry_by_error):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigurationError(
                    f"{kind!r} in no_retry or retry_by_error is not an exception class; give the class, such as ValueError"
                )
        for policy in (retry, *self.retry_by_error.values()):
            if policy is not None and not callable(getattr(policy, "delay", None)):
                raise ConfigurationError(f"{policy!r} is not a retry policy; it needs a method delay(attempt) that answers seconds")
            if policy is not None:
                refuse_async(policy.delay, f"the method delay of {class_name(policy)}")
        self.require_delays()

    def __str__(self) -> str:
        return f"ConsumeLater({self.max_reconsume_times}, levels={str(self.levels)!r})"

    def changed(self, **attributes: object) -> ConsumeLater:
        """The same policy, of the same class, with other attributes, which are taken as they are."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__ | attributes)
        return made

    def require_delays(self) -> None:
        """Raise `DelayRefused` if a level or a policy has a delay above `max_delay`; what a policy of the user's answers shows later."""
        delays: dict[str, float] = {"the longest delay level": self.levels.seconds[-1]}
        for policy in (self.retry, *self.retry_by_error.values()):
            if isinstance(policy, Schedule):
                delays[f"the longest delay of {policy!r}"] = max(policy.delays)
            elif isinstance(policy, Exponential):
                delays[f"maximum of {policy!r}"] = float(policy.maximum)
        for what, delay in delays.items():
            self._allowed(delay, what)

    def decide(self, later: Delayed, reconsume_times: int, error: BaseException | None = None) -> SendBack | Dead:
        """Return where a message for later goes; the limit takes precedence over the level.

        RocketMQ: at `max_reconsume_times` or a negative level it is a dead letter, whatever else was asked. Raises what
        a policy of the user's raises, `ConfigurationError` if it answers something that is not a duration, and `DelayRefused`
        for a delay above `max_delay`.
        """
        if self.buries(error):
            return Dead(Reason.NOT_RETRIED, later.failure)
        if reconsume_times >= self.max_reconsume_times:
            return Dead(Reason.MAX_RECONSUME_TIMES, later.failure)
        if later.delay_level < 0:
            return Dead(Reason.NEGATIVE_DELAY_LEVEL, later.failure)
        if later.delay is not None:
            return self._after(self._allowed(later.delay, "the delay that was asked for"))
        if later.delay_level > 0:
            return self._at(later.delay_level)
        policy = self._policy(error)
        if policy is None:
            return self.by_level(reconsume_times)
        delay, what = policy.delay(reconsume_times + 1), f"the delay of {shown(policy, repr)}"
        close_coroutine(delay)
        return self._after(self._allowed(parse_duration(delay, what=what), what))

    def buries(self, error: BaseException | None) -> bool:
        """Return whether `no_retry` names `error`, or all that is in it if it is a group."""
        if error is None:
            return False
        if is_a(error, *(kind for kind in self.no_retry if issubclass(kind, BaseExceptionGroup))):
            return True
        return all(is_a(leaf, *self.no_retry) and not is_a(leaf, raising.Later) for leaf in leaves(error))

    def _policy(self, error: BaseException | None) -> RetryPolicy | None:
        """The one that `retry_by_error` has for `error`, or for all that is in it if it is a group that has none itself."""
        if error is None:
            return self.retry
        groups = [kind for kind in type(error).__mro__ if kind in self.retry_by_error and issubclass(kind, BaseExceptionGroup)]
        found = [] if groups else [self._policy_of(type(leaf)) for leaf in leaves(error)]
        if found and all(policy is found[0] for policy in found):
            return found[0]
        return self._policy_of(type(error))

    def _policy_of(self, kind: type[BaseException]) -> RetryPolicy | None:
        return next((self.retry_by_error[base] for base in kind.__mro__ if base in self.retry_by_error), self.retry)

    def by_level(self, reconsume_times: int) -> SendBack:
        """Return the decision by the delay levels alone."""
        return self._at(self.levels.after(reconsume_times))

    def _allowed(self, delay: float, what: str) -> float:
        if delay > self.max_delay:
            raise DelayRefused(
                f"{what} is {format_duration(delay)}, and max_delay of ConsumeLater is {format_duration(self.max_delay)}; ask for less, "
                "or raise max_delay in all workers of the group"
            )
        return delay

    def _at(self, level: int) -> SendBack:
        return SendBack(self.levels.delay(level), self.levels.clamp(level))

    def _after(self, delay: float) -> SendBack:
        return SendBack(delay, self.levels.fitting(delay) or 0)


def all_levels(*policies: ConsumeLater | None) -> DelayLevels:
    """Return the delay levels of all of `policies`, shortest first."""
    return DelayLevels(sorted({seconds for policy in policies if policy is not None for seconds in policy.levels.seconds}))


def _is_whole(value: object) -> bool:
    return type(plain(value)) is int


Order = Literal["key", "partition"] | None

#: Seconds that a message waits in place, at least and at most, whatever was asked. RocketMQ: 10 ms and 30 s.
SHORTEST_DELAY: Final = 0.01
LONGEST_DELAY: Final = 30.0


@dataclass(frozen=True, slots=True)
class RetryInPlace:
    """A message that fails waits in memory and runs again; what must not overtake it waits behind it. Nothing goes to the retry topic.

    `max_reconsume_times` attempts follow the first one. Then it is a dead letter; with `on_dead="block"` it is tried every 30 s
    instead, and nothing passes it until it succeeds. `delay` is in seconds, or a text such as `"500ms"`; a handler may ask for another
    one (`raise Later(5)`). Each is cut to 10 ms to 30 s.

    RocketMQ's limit is `Integer.MAX_VALUE` unless it is set, which blocks a partition forever: here it has to be chosen. Raises
    `ConfigurationError`.
    """

    max_reconsume_times: int
    delay: float | str = 1.0
    on_dead: Literal["continue", "block"] = "continue"

    def __post_init__(self) -> None:
        limit = self.max_reconsume_times
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ConfigurationError(f"max_reconsume_times of RetryInPlace is {limit!r}; it must be a whole number, 0 or more")
        seconds = parse_duration(self.delay, what="delay of RetryInPlace")
        if not SHORTEST_DELAY <= seconds <= LONGEST_DELAY:
            raise ConfigurationError(f"delay of RetryInPlace is {self.delay!r}; it must be 10ms to 30s, since others wait behind it")
        if self.on_dead not in ("continue", "block"):
            raise ConfigurationError(f"on_dead of RetryInPlace is {self.on_dead!r}; it is one of 'continue', 'block'")
        object.__setattr__(self, "delay", seconds)

    def __str__(self) -> str:
        return f"RetryInPlace({self.max_reconsume_times}, delay={format_duration(float(self.delay))!r}, on_dead={self.on_dead!r})"

    def decide(self, later: Delayed, reconsume_times: int, policy: ConsumeLater, error: BaseException | None = None) -> Suspended | Dead:
        """Return the decision on a message that failed after `reconsume_times` further attempts; the limit takes precedence.

        Of `policy` count `no_retry` and the delay levels.
        """
        if policy.buries(error):
            return Dead(Reason.NOT_RETRIED, later.failure)
        if later.delay_level < 0:
            return Dead(Reason.NEGATIVE_DELAY_LEVEL, later.failure)
        if reconsume_times >= self.max_reconsume_times:
            if self.on_dead == "continue":
                return Dead(Reason.MAX_RECONSUME_TIMES, later.failure)
            return Suspended(LONGEST_DELAY, later.failure)
        return Suspended(self._seconds(later, policy), later.failure)

    def _seconds(self, later: Delayed, policy: ConsumeLater) -> float:
        asked = later.delay
        if asked is None and later.delay_level > 0:
            asked = policy.levels.delay(later.delay_level)
        if asked is None or asked < 0:
            asked = float(self.delay)
        return max(SHORTEST_DELAY, min(asked, LONGEST_DELAY))


def nothing_done_behind(dispositions: Sequence[Disposition]) -> tuple[list[Disposition], int]:
    """`dispositions` of a batch in order `partition`: behind the first that comes later, nothing is done. Returns how many that changed.

    A dead letter has left the partition, so others may pass it.
    """
    first = next((place for place, each in enumerate(dispositions) if isinstance(each, Delayed)), None)
    if first is None:
        return list(dispositions), 0
    behind = [dispositions[first] if isinstance(each, Done) else each for each in dispositions[first:]]
    return [*dispositions[:first], *behind], sum(each is DONE for each in dispositions[first:])


_LATER: Final = Delayed()

#: Attempts that are looked at. What a policy answers to later ones is known by then.
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Journey:
    """`attempts` deliveries with `delays` between them (seconds; the first thousand), then a dead letter for the reason `end`."""

    delays: tuple[float, ...]
    attempts: int
    end: str


def journey(policy: ConsumeLater, later: Delayed = _LATER, error: BaseException | None = None, *, draw: float = 0.5) -> Journey:
    """The journey of a message that is ruled `later`, because of `error` if that is given, on every attempt.

    Where a policy spreads its delays at random, `draw` picks from 0 (the shortest) to 1 (the longest).
    """
    asked, delays = _with_draw(policy, draw), list[float]()
    for reconsume_times in range(min(asked.max_reconsume_times, _LOOKED_AT)):
        decision = _decision(asked, later, reconsume_times, error)
        if isinstance(decision, Dead):
            return Journey(tuple(delays), reconsume_times + 1, decision.reason)
        delays.append(decision.delay)
    last = _decision(asked, later, asked.max_reconsume_times, error)
    assert isinstance(last, Dead), "the limit beats everything"
    return Journey(tuple(delays), asked.max_reconsume_times + 1, last.reason)


def longest_delay(policy: ConsumeLater) -> float:
    """The longest delay in seconds that `policy` knows: a handler may ask for any of its levels. 0 if nothing is ever sent back."""
    if policy.max_reconsume_times == 0:
        return 0.0
    alone = [policy.changed(retry=retry, retry_by_error={}) for retry in (policy.retry, *policy.retry_by_error.values())]
    return max(policy.levels.seconds[-1], *(max(journey(each, draw=1.0).delays, default=0.0) for each in alone))


def _decision(policy: ConsumeLater, later: Delayed, reconsume_times: int, error: BaseException | None) -> SendBack | Dead:
    """Like `fate.decide`: the policy may be the user's, and the delay levels stand in for one that raises."""
    decision = called(policy.decide, later, reconsume_times, error)
    return decision.value if isinstance(decision, Returned) else policy.by_level(reconsume_times)


def _with_draw(policy: ConsumeLater, draw: float) -> ConsumeLater:
    """`policy` whose random delays are all drawn as `draw`."""

    def fixed(retry: RetryPolicy) -> RetryPolicy:
        return dataclasses.replace(retry, draw=lambda: draw) if isinstance(retry, Exponential) else retry

    return policy.changed(
        retry=None if policy.retry is None else fixed(policy.retry),
        retry_by_error={kind: fixed(retry) for kind, retry in policy.retry_by_error.items()},
    )
