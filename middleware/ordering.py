"""Order of messages, and attempts in place: what a handler with an order does with a message that fails. Pure.

Rules from RocketMQ 5.3: `ConsumeMessageOrderlyService.processConsumeResult`, `submitConsumeRequestLater`, `checkReconsumeTimes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ackwise.middleware.disposition import DONE, Dead, Disposition, Done, Later, Reason, Suspended
from ackwise.middleware.duration import format_duration, parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.retry import ConsumeLater

__all__ = ["LONGEST_DELAY", "SHORTEST_DELAY", "Order", "RetryInPlace", "nothing_done_behind"]

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

    RocketMQ's limit is `Integer.MAX_VALUE` unless it is set, which blocks a partition for ever: here it has to be chosen. Raises
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

    def decide(self, later: Later, reconsume_times: int, policy: ConsumeLater, error: BaseException | None = None) -> Suspended | Dead:
        """What becomes of a message that failed after `reconsume_times` further attempts; the limit beats what was asked.

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

    def _seconds(self, later: Later, policy: ConsumeLater) -> float:
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
    first = next((place for place, each in enumerate(dispositions) if isinstance(each, Later)), None)
    if first is None:
        return list(dispositions), 0
    behind = [dispositions[first] if isinstance(each, Done) else each for each in dispositions[first:]]
    return [*dispositions[:first], *behind], sum(each is DONE for each in dispositions[first:])
