"""Journey of a message that fails every time: its delays in order and its end, as the retry policy decides. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.disposition import Dead, Later
from ackwise.middleware.retry import ConsumeLater, Exponential, RetryPolicy, SendBack
from ackwise.middleware.usercode import Returned, called

__all__ = ["Journey", "journey", "longest_delay"]

_LATER: Final = Later()

#: Attempts that are looked at. What a policy answers to later ones is known by then.
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Journey:
    """`attempts` deliveries with `delays` between them (seconds; the first thousand), then a dead letter for the reason `end`."""

    delays: tuple[float, ...]
    attempts: int
    end: str


def journey(policy: ConsumeLater, later: Later = _LATER, error: BaseException | None = None, *, draw: float = 0.5) -> Journey:
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


def _decision(policy: ConsumeLater, later: Later, reconsume_times: int, error: BaseException | None) -> SendBack | Dead:
    """As `fate.decide`: the policy may be the user's, and the delay levels stand in for one that raises."""
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
