"""The progress of `reconcile`: a line for each step, with the share of the work that is done when it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console
from rich.markup import escape

__all__ = ["STEPS", "Progress"]

#: What is done, in percent, when a step begins, by its first words: as Spark took 530,000 events. The local engine is ahead
#: of it in the first half; of few events, Spark's start is a larger part. The share of what is written then is an estimate.
STEPS: Final[Mapping[str, int]] = {
    "looking at the folders": 0,
    "asking for the last commits": 0,
    "gathering the events": 1,
    "starting Spark": 4,
    "judging in this process": 4,
    "folding": 9,
    "surveying the events": 11,
    "looking for missing events": 18,
    "reading the commits": 27,
    "counting what was produced": 42,
    "judging the messages": 47,
    "counting messages": 67,
    "writing what is wrong": 80,
    "comparing the claims": 85,
    "drawing the page": 89,
    "done": 100,
}


class Progress:
    """Prints each step with the seconds since the beginning. A step without a share of its own has that of the one before it."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._started, self._percent = clock(), 0

    def __call__(self, step: str) -> None:
        """Print the beginning of a step."""
        self._percent = max(self._percent, *(percent for words, percent in STEPS.items() if step.startswith(words)), 0)
        self._console.print(f"[dim]{self._clock() - self._started:5.1f} s  {self._percent:3} %  {escape(step)}[/]", soft_wrap=True)
