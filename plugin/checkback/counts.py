"""Counts of the check-back in one process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CheckCounts"]


@dataclass(slots=True)
class CheckCounts:
    """Half messages since the start, by what became of their checks."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0  #: answered checks that left them as they are
    unanswered: int = 0  #: nobody knew, or whoever was asked raised
    parked: int = 0

    @property
    def answered(self) -> int:
        """Checks that count."""
        return self.committed + self.rolled_back + self.unknown + self.parked
