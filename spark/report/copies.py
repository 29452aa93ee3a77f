"""The accounts of retries: the fate of the copies that were sent back, by attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ackwise.spark.vocabulary import CopyFate

__all__ = ["RetryAccount"]


@dataclass(frozen=True, slots=True)
class RetryAccount:
    """The copies of messages of one handler and topic that were sent back at one attempt, by what became of them."""

    group: str
    handler: str
    topic: str
    attempt: int
    fates: Mapping[CopyFate, int]

    @property
    def sent(self) -> int:
        """The number of copies to account for."""
        return sum(self.fates.values())
