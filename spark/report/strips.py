"""The strip of a partition: its offsets in bins of equal width, by verdict, and where it changed hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.vocabulary import ANOMALIES, INCONCLUSIVE, Verdict

__all__ = ["BINS", "Strip", "width_of"]

#: As many bins as a narrow screen can show.
BINS: Final = 160


@dataclass(frozen=True, slots=True)
class Strip:
    """The offsets of one account. Those in no bin were done once, or are gaps; the accounts have their numbers."""

    account: PartitionAccount
    bins: Mapping[int, Mapping[Verdict, int]]
    """Number of the bin, and how many of its offsets have each verdict but EXACTLY_ONCE."""
    assigned: Sequence[int] = field(default=())
    """The bins of the positions at which a worker got the partition."""
    revoked: Sequence[int] = field(default=())

    @property
    def width(self) -> int:
        """Offsets in a bin; the last may have fewer."""
        return width_of(self.account.start, self.account.committed)

    @property
    def anomalies(self) -> int:
        """The number of anomalous offsets."""
        return self._of(ANOMALIES)

    @property
    def unknown(self) -> int:
        """The number of unknown offsets."""
        return self._of(INCONCLUSIVE)

    def _of(self, kinds: frozenset[Verdict]) -> int:
        return sum(number for verdicts in self.bins.values() for verdict, number in verdicts.items() if verdict in kinds)


def width_of(start: int, end: int) -> int:
    """Return the offsets in a bin of the range from `start` to before `end`."""
    return max(1, -(-(end - start) // BINS))
