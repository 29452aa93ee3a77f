"""Joins with a frame whose number of rows is known."""

from __future__ import annotations

from typing import Final

from ackwise.spark.frames import DataFrame, F

__all__ = ["sized"]

#: Rows that are sent to every task.
_FEW: Final = 100_000


def sized(rows: DataFrame, number: int) -> DataFrame:
    """Return the `number` rows of a frame for a join. Few are broadcast, without a shuffle; Spark can't know their number."""
    return rows.limit(0) if not number else F.broadcast(rows) if number <= _FEW else rows
