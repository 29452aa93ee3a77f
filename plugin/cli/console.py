"""Where the command line prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console
from rich.table import Table

__all__ = ["new_table", "say_error", "to_stderr", "to_stdout"]

#: Columns where nobody looks on: a table that is piped is read by a program or a pager, which both want it whole.
_PIPED: Final = 1000


def to_stdout() -> Console:
    """For results. As wide as the terminal; without one as wide as COLUMNS says, or else as anything needs."""
    console = Console(highlight=False)
    return console if _has_width(console) else Console(highlight=False, width=_PIPED)


def to_stderr() -> Console:
    """For progress, advice and errors, so that stdout holds the result alone."""
    console = Console(stderr=True, highlight=False)
    return console if _has_width(console) else Console(stderr=True, highlight=False, width=_PIPED)


def _has_width(console: Console) -> bool:
    return console.is_terminal or "COLUMNS" in os.environ


def new_table(*columns: str) -> Table:
    """A table whose cells are folded where the terminal is too narrow, and never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def say_error(sentence: str) -> None:
    """One sentence on stderr, as it is: brackets in it are no markup."""
    console = to_stderr()
    console.print("[red]error[/red]", end=" ")
    console.print(sentence, markup=False, soft_wrap=True)
