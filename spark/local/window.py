"""`Window`: the rows that a function looks at, as PySpark writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ackwise.spark.local.column import identifier

__all__ = ["Window"]


@dataclass(frozen=True)
class _Rows:
    sql: str

    def orderBy(self, *names: str) -> _Rows:  # PySpark's name, as are those below
        return _Rows(f"{self.sql} ORDER BY {', '.join(map(identifier, names))}")

    def rowsBetween(self, first: int, last: int) -> _Rows:
        begin = "UNBOUNDED PRECEDING" if first == Window.unboundedPreceding else f"{-first} PRECEDING"
        return _Rows(f"{self.sql} ROWS BETWEEN {begin} AND {-last} PRECEDING")


class Window:
    """Where a definition of rows begins."""

    unboundedPreceding: Final = -(2**63)

    @staticmethod
    def partitionBy(*names: str) -> _Rows:
        return _Rows(f"PARTITION BY {', '.join(map(identifier, names))}")
