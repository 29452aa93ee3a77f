"""Consoles of the command line: results go to stdout, everything else to stderr."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ackwise.middleware.log import plain
from ackwise.plugin.operate.table import Cell, Value
from ackwise.plugin.operate.table import Table as Values

#: Characters of a cell.
_CELL: Final = 160

_STYLES: Final = {"good": "green", "bad": "red", "doubt": "yellow"}

#: Columns where stdout is no terminal. A table that is piped is read by a program or a pager, which both want it whole; COLUMNS
#: is not asked, since it may be that of a terminal far up the tree of processes.
_PIPED: Final = 1000


def to_stdout() -> Console:
    """For results."""
    return _console(stderr=False)


def to_stderr() -> Console:
    """For progress, advice and errors, so that stdout holds the result alone."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPED)


def new_table(*columns: str) -> Table:
    """A table whose cells are folded where the terminal is too narrow, and never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def shown(found: Values, limit: int = _CELL) -> Table:
    """`found` as a terminal shows it: cells are cut, and nothing of one is a command to the terminal."""
    table = new_table(*found.columns)
    for row in found.rows:
        table.add_row(*(_cell(value, limit) for value in ([row] if isinstance(row, Cell) else row)))
    return table


def text(words: str, limit: int = 1_000) -> Text:
    """Words as they are, cut, with what does not print spelled out."""
    return Text(plain(words, limit))


def _cell(value: Value, limit: int) -> Text:
    if not isinstance(value, Cell):
        return text("" if value is None else str(value), limit)
    return Text(plain(value.text, limit), style=_STYLES.get(value.kind, ""))


def say_error(sentence: str) -> None:
    """One sentence on stderr, as it is: brackets in it are no markup."""
    console = to_stderr()
    console.print("[red]error[/red]", end=" ")
    console.print(sentence, markup=False, soft_wrap=True)
