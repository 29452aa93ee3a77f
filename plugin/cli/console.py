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

#: Columns if stdout is not a terminal. Programs and pagers want a piped table whole. COLUMNS is ignored: it may belong to a
#: terminal far up the tree of processes.
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
    """Return a table that folds cells instead of cutting them when the terminal is too narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def shown(found: Values, limit: int = _CELL) -> Table:
    """Render `found` for a terminal. Cells are cut to `limit`; control characters are escaped."""
    table = new_table(*found.columns)
    for row in found.rows:
        table.add_row(*(_cell(value, limit) for value in ([row] if isinstance(row, Cell) else row)))
    return table


def text(words: str, limit: int = 1_000) -> Text:
    """Return `words` cut to `limit`, without markup, with unprintable characters escaped."""
    return Text(plain(words, limit))


def _cell(value: Value, limit: int) -> Text:
    if not isinstance(value, Cell):
        return text("" if value is None else str(value), limit)
    return Text(plain(value.text, limit), style=_STYLES.get(value.kind, ""))


def say_error(sentence: str) -> None:
    """Print a sentence to stderr; brackets in it are not markup."""
    console = to_stderr()
    console.print("[red]error[/red]", end=" ")
    console.print(sentence, markup=False, soft_wrap=True)
