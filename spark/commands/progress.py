"""The progress of `reconcile`: a line for each step, with the share of the work that is done when it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from rich.console import Console
from rich.markup import escape

__all__ = ["STEPS", "Progress"]

#: What is done, in percent, when a step begins, by its first words. Measured with either engine over 98,000 events, and
#: averaged: a run of Spark over fewer events spends more in the second step, one over many more in the last five.
STEPS: Final[Mapping[str, int]] = {
    "looking at the folders": 0,
    "asking for the last commits": 0,
    "gathering the events": 1,
    "starting Spark": 5,
    "judging in this process": 5,
    "reading": 25,
    "folding": 28,
    "surveying the events": 30,
    "looking for missing events": 36,
    "reading the commits": 42,
    "counting what was produced": 48,
    "judging the messages": 50,
    "comparing messages of one key": 75,
    "accounting for every offset": 80,
    "comparing the claims": 86,
    "drawing the page": 88,
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
