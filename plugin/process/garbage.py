"""Garbage collection in the process of a worker: how often Python searches for cycles."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["collect_rarely"]

#: Objects made between two searches for garbage cycles. With Python's own 700 a batch of 500 is searched six times while it is
#: worked on, which takes a third of the time per message (`docs/benchmarks.md`).
_YOUNG_OBJECTS: Final = 20_000


def collect_rarely() -> None:
    """From now on. Who has switched the collector off, or made it rarer still, keeps that."""
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG_OBJECTS:
        gc.set_threshold(_YOUNG_OBJECTS, *older)
