"""A table of the page as values: one template draws them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ackwise.spark.report.page.matrices import shade
from ackwise.spark.report.tone import Tone, tone_of
from ackwise.spark.vocabulary import Verdict

__all__ = ["MOST_ROWS", "Cell", "Table", "code", "counts", "head", "number", "percent", "shaded", "share", "text"]

#: Rows of a table, before it says how many more there are: a page must not grow with the cluster.
MOST_ROWS: Final = 200


class Cell(NamedTuple):
    """One cell: `kind` is its class."""

    text: str
    kind: str = ""
    tone: Tone = "plain"
    is_head: bool = False
    is_code: bool = False
    bar: float | None = None
    """The length of a bar beside it, from 0 to 1."""
    parts: Sequence[tuple[str, str, Tone]] = ()
    """Numbers with their names, in place of a text."""

    @property
    def classes(self) -> str:
        """Its classes in the page."""
        return " ".join(filter(None, (self.kind, "" if self.tone == "plain" else self.tone)))


class Table(NamedTuple):
    """A table; each row has a cell for each column."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    foot: Sequence[Cell] = ()
    noun: str = "rows"
    is_matrix: bool = False

    @property
    def shown(self) -> Sequence[Sequence[Cell]]:
        """The rows that the page shows."""
        return self.rows[:MOST_ROWS]

    @property
    def hidden(self) -> int:
        """The number of the others."""
        return max(0, len(self.rows) - MOST_ROWS)


def text(value: str, tone: Tone = "plain") -> Cell:
    """Return a cell of words."""
    return Cell(value or "–", "", tone)


def head(value: object, tone: Tone = "plain", *, is_code: bool = False) -> Cell:
    """Return the cell that says what a row is about; a tone other than plain is shown by a sign, too."""
    return Cell(str(value) or "–", "n" if isinstance(value, int) else "", tone, is_head=True, is_code=is_code)


def code(value: str) -> Cell:
    """Return a cell with a name that a program knows."""
    return Cell(value or "–", is_code=bool(value))


def number(value: int, tone: Tone = "plain") -> Cell:
    """Return a count, in its tone unless it is 0."""
    return Cell(f"{value:,}", "n" if value else "n zero", tone if value else "plain")


def shaded(value: int, tone: Tone, most: int) -> Cell:
    """Return a count in a matrix: the darker, the more."""
    return Cell(f"{value:,}", f"n shade-{shade(value, most)}" if value else "n zero", tone if value else "plain")


def share(value: int, total: int, tone: Tone = "plain", *, is_said: bool = True) -> Cell:
    """Return the share of a total as a bar, and in percent."""
    return Cell(percent(value, total) if is_said else "", "share", tone, bar=value / total if total else 0.0)


def counts(numbers: Mapping[Verdict, int]) -> Cell:
    """Return the verdicts that there are, with their numbers."""
    return Cell("–", parts=[(verdict.name, f"{value:,}", tone_of(verdict)) for verdict, value in numbers.items() if value])


def percent(value: int, total: int) -> str:
    """Return a share as a percentage. Only exactly 0 and 1 become 0 % and 100 %."""
    part = value / total if total else 0.0
    if 0 < part < 0.001:
        return "< 0.1 %"
    if 0.999 < part < 1:
        return "> 99.9 %"
    return f"{100 * part:.1f}".removesuffix(".0") + " %"
