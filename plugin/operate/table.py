"""`Table`: columns and rows as values. A terminal, a page and JSON show the same one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["", "link", "command", "block", "good", "bad", "doubt"]


class Cell(NamedTuple):
    """A cell of some kind. Its text may hold any character and be of any size."""

    text: str
    kind: Kind = ""
    target: str = ""
    """Where a link leads, or the command."""
    value: object = None
    """As JSON has it; `None`: the text."""


Value = Cell | str | int | float | bool | None


class Table(NamedTuple):
    """A table with a caption. A row that is a cell takes the whole width."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value] | Cell]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON has them, by their columns."""
        return [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows if not isinstance(row, Cell)]


def count(number: int) -> Cell:
    """A number, with its thousands apart for people."""
    return Cell(f"{number:,}", value=number)


def link(target: str, text: str) -> Cell:
    """A link to a page of our own."""
    return Cell(text, "link", target)


def command(words: str, text: str = "") -> Cell:
    """A command to copy, after `text`."""
    return Cell(text, "command", words)


def _plain(value: Value) -> object:
    return value if not isinstance(value, Cell) else value.text if value.value is None else value.value
