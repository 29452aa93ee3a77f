"""The attempts that messages took, and how many ended at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ackwise.spark.vocabulary import ANOMALIES, DONE, UNDER_WAY, Verdict

__all__ = ["Attempts", "Ending", "Reached", "together"]


class Ending(StrEnum):
    """The result of an attempt."""

    DONE = "done"
    """Run with success."""
    AGAIN = "again"
    """A later attempt was seen."""
    IN_PLACE = "in_place"
    """It was to run again in place, without having been sent back."""
    DEAD = "dead"
    """In the dead-letter topic."""
    OPEN = "open"
    """In flight, waiting for a copy, or not begun."""
    ANOMALY = "anomaly"
    OTHER = "other"
    """Suppressed, skipped, cancelled or unknown."""


_ENDINGS: Final = {**dict.fromkeys(DONE, Ending.DONE), Verdict.DEAD_LETTERED: Ending.DEAD}


@dataclass(frozen=True, slots=True)
class Reached:
    """The messages that reached one attempt, by how it went on."""

    attempt: int
    endings: Mapping[Ending, int]

    @property
    def messages(self) -> int:
        """The number of messages that reached it."""
        return sum(self.endings.values())

    @property
    def ended(self) -> int:
        """The number of messages for which it was the last."""
        return self.messages - self.endings[Ending.AGAIN] - self.endings[Ending.IN_PLACE]


@dataclass(frozen=True, slots=True)
class Attempts:
    """The messages of one handler and topic by their last attempt and its verdict."""

    group: str
    handler: str
    topic: str
    last: Mapping[tuple[int, Verdict], int]
    in_place: Mapping[int, int] = field(default_factory=dict)
    """By attempt, the messages whose next one was in place."""

    @property
    def by_number(self) -> Mapping[int, int]:
        """The number of messages by their number of attempts."""
        found: Counter[int] = Counter()
        for (attempt, _), messages in self.last.items():
            found[attempt] += messages
        return dict(sorted(found.items()))

    @property
    def funnel(self) -> list[Reached]:
        """The attempts from the first to the last. A message that reached one has reached all before it."""
        rows = []
        for attempt in range(1, max(self.by_number, default=0) + 1):
            endings: Counter[Ending] = Counter()
            for (last, verdict), messages in self.last.items():
                if last >= attempt:
                    endings[Ending.AGAIN if last > attempt else _ending(verdict)] += messages
            endings[Ending.IN_PLACE] = self.in_place.get(attempt, 0)
            endings[Ending.AGAIN] -= endings[Ending.IN_PLACE]
            rows.append(Reached(attempt, {ending: endings[ending] for ending in Ending}))
        return rows


def together(attempts: Iterable[Attempts]) -> list[Reached]:
    """Return the attempts of all messages together; empty if no message took more than one."""
    total: Counter[tuple[int, Verdict]] = Counter()
    in_place: Counter[int] = Counter()
    for each in attempts:
        total.update(each.last)
        in_place.update(each.in_place)
    funnel = Attempts("", "", "", total, in_place).funnel
    return funnel if len(funnel) > 1 else []


def _ending(verdict: Verdict) -> Ending:
    if verdict in _ENDINGS:
        return _ENDINGS[verdict]
    return Ending.ANOMALY if verdict in ANOMALIES else Ending.OPEN if verdict in UNDER_WAY else Ending.OTHER
