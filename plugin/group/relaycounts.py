"""Counts of the relay of one worker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DelayCounts"]


@dataclass(slots=True)
class DelayCounts:
    """Copies since the start of the worker."""

    cut: int = 0  #: those that were due later than `max_delay` allows
    cancelled: int = 0  #: those that were dropped since their message was cancelled
