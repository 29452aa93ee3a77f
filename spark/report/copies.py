"""The retry books: of the copies that were sent back at each attempt, how many came again, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ackwise.spark.vocabulary import CopyFate

__all__ = ["RetryBook"]


@dataclass(frozen=True, slots=True)
class RetryBook:
    """The copies of messages of one handler and topic that were sent back at one attempt, by what became of them."""

    group: str
    handler: str
    topic: str
    attempt: int
    fates: Mapping[CopyFate, int]

    @property
    def sent(self) -> int:
        """How many copies there are to account for."""
        return sum(self.fates.values())
