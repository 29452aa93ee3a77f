"""The lateness of retries, by handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Delays"]


@dataclass(frozen=True, slots=True)
class Delays:
    """The last retry of each message of one handler, measured from its due time on."""

    group: str
    handler: str
    late: Mapping[int, int]
    """Milliseconds, in two digits, to messages. Below 0: it came before it was due."""

    @property
    def messages(self) -> int:
        """The number of measured messages."""
        return sum(self.late.values())

    @property
    def early(self) -> int:
        """The number that came before they were due."""
        return sum(number for late, number in self.late.items() if late < 0)

    def percentile(self, share: float) -> int:
        """Return the lateness, in milliseconds, that `share` (0 to 1) of them did not exceed."""
        seen = 0
        for late, number in sorted(self.late.items()):
            seen += number
            if seen >= share * self.messages:
                return late
        return max(self.late, default=0)
