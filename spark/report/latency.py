"""The latency of messages, from the timestamp of the record to its success, in classes that grow by a tenth.

Classes of two runs, or of two parts of one, add up; percentiles do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

__all__ = ["GROWTH", "NEGATIVE", "Latency"]

#: Each class ends this much later than the one before. Its middle is at most 5 % from what is in it.
GROWTH: Final = 1.1
#: The class of what was done before its record was written, by the clocks of two machines. The next one, 0, is below a millisecond.
NEGATIVE: Final = -1


@dataclass(frozen=True)
class Latency:
    """The messages of one topic, as one group reads it, that were run with success."""

    group: str
    topic: str
    classes: Mapping[int, int]
    """Messages by class."""

    @cached_property
    def messages(self) -> int:
        """The number of measured messages."""
        return sum(self.classes.values())

    @property
    def negative(self) -> int:
        """The number of messages that were done before they were written, by the clocks."""
        return self.classes.get(NEGATIVE, 0)

    def percentile(self, share: float) -> int:
        """Return the latency, in microseconds, that `share` (0 to 1) of them did not exceed; at most 5 % off."""
        seen = 0
        for number, messages in sorted(self.classes.items()):
            seen += messages
            if seen >= share * self.messages:
                return _middle(number)
        return 0

    def survival(self) -> list[tuple[int, float]]:
        """Return the end of each class, in microseconds, and the share that took longer: from below 1 down to 0."""
        beyond, found = self.messages, []
        for number, messages in sorted(self.classes.items()):
            beyond -= messages
            if number != NEGATIVE:
                found.append((_end(number), beyond / self.messages))
        return found


def _end(number: int) -> int:
    return round(1000 * GROWTH**number)


def _middle(number: int) -> int:
    return 0 if number <= 0 else round(1000 * math.sqrt(GROWTH ** (number - 1) * GROWTH**number))
