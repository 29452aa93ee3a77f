"""Holding: the shards that a relay owns, and until when it may believe so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from ackwise.middleware.outbox import SHARDS

__all__ = ["Holding", "fair_share"]


@dataclass(frozen=True, slots=True)
class Holding:
    """Shards with their fencing tokens. `until` is a time of the monotonic clock of this process.

    It is counted from before the database was asked, so the lease in the database ends later: nothing that is begun before `until` is
    begun by two relays. A process that was stopped finds the time over when it goes on.
    """

    tokens: Mapping[int, int] = field(default_factory=dict)
    until: float = float("-inf")
    renew_at: float = float("-inf")

    @classmethod
    def renewed(cls, tokens: Mapping[int, int], *, asked_at: float, lease: float, is_short: bool, hurry: float) -> Holding:
        """What the answer to a question of the time `asked_at` gives. Who `is_short` of its share asks again after `hurry` seconds."""
        return cls(dict(tokens), asked_at + lease, asked_at + (min(hurry, lease / 3) if is_short else lease / 3))

    def is_late(self, now: float, patience: float) -> bool:
        """Whether shards should have been renewed so many seconds ago; never before the first are owned."""
        return self.renew_at != float("-inf") and now >= self.renew_at + patience

    def is_over(self, now: float) -> bool:
        """Whether others may own the shards by now."""
        return now >= self.until


def fair_share(relays: int) -> int:
    """How many shards one of so many relays owns."""
    return ceil(SHARDS / max(1, relays))
