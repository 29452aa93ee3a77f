"""Sequence numbers as runs without a hole, from a column of Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Run", "joined", "runs_in", "without"]

Run = tuple[int, int]
"""From the first to before the second."""


def runs_in(numbers: Any) -> list[Run]:
    """Return the numbers of an Arrow column as runs in order. One may be there several times, and nulls are passed over."""
    import pyarrow as pa
    from pyarrow.compute import call_function as call

    once = call("unique", [numbers]).drop_null()
    if not len(once):
        return []
    ends = call("min_max", [once]).as_py()
    if len(once) == ends["max"] + 1 - ends["min"]:
        return [(ends["min"], ends["max"] + 1)]
    ordered = once.take(call("array_sort_indices", [once]))
    steps = call("subtract", [ordered[1:], ordered[:-1]])
    breaks = call("indices_nonzero", [call("greater", [steps, pa.scalar(1, steps.type)])]).to_pylist()
    firsts, lasts = ordered.take(pa.array([0, *(at + 1 for at in breaks)])), ordered.take(pa.array([*breaks, len(ordered) - 1]))
    return [(first, last + 1) for first, last in zip(firsts.to_pylist(), lasts.to_pylist(), strict=True)]


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
