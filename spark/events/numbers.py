"""Sequence numbers as runs without a hole."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["NO_RUNS", "Run", "Runs", "joined", "runs_in", "together", "without"]

Run = tuple[int, int]
"""From the first to before the second."""
Runs = npt.NDArray[np.int64]
"""A row for each run."""

NO_RUNS: Runs = np.empty((0, 2), np.int64)


def runs_in(numbers: npt.NDArray[np.int64]) -> Runs:
    """Return the numbers as runs in order. One may be there several times."""
    once = np.unique(numbers)
    begins = np.flatnonzero(np.append(True, once[1:] != once[:-1] + 1)[: len(once)])
    return np.column_stack([once[begins], once[np.append(begins[1:], len(once))[: len(begins)] - 1] + 1])


def together(runs: Runs) -> Runs:
    """Return the same numbers in as few runs as can be, in order."""
    if not len(runs):
        return runs
    ordered = runs[np.argsort(runs[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    begins = np.flatnonzero(np.append(True, ordered[1:, 0] > reached[:-1]))
    return np.column_stack([ordered[begins, 0], reached[np.append(begins[1:], len(ordered)) - 1]])


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return the same numbers in as few runs as can be, in order."""
    apart: list[Run] = []
    for first, after in sorted(runs):
        if apart and first <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], after)
        else:
            apart.append((first, after))
    return apart


def without(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the numbers of `runs` that are in none of the others."""
    left = list(runs)
    for begin, end in others:
        pieces = [piece for first, after in left for piece in ((first, min(after, begin)), (max(first, end), after))]
        left = [(first, after) for first, after in pieces if first < after]
    return left
