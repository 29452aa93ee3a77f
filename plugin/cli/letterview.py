"""How dead letters are printed on a terminal. Nothing of a message reaches it as a command to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.markup import escape

from ackwise.middleware.plaintext import plain
from ackwise.plugin.cli.console import new_table

if TYPE_CHECKING:
    from rich.table import Table

    from ackwise.plugin.deadletters.causes import Causes

__all__ = ["causes_table", "letters_table", "shown"]


def shown(text: str, limit: int = 160) -> str:
    """As `plain`, for a console that takes markup."""
    return escape(plain(text, limit))


def causes_table(causes: Causes) -> Table:
    """Causes with their counts, the most frequent first."""
    from ackwise.plugin.deadletters.shown import CAUSE_COLUMNS, cause_row  # here, since a help needs none of it

    now_ms = time.time() * 1000
    table = new_table(*CAUSE_COLUMNS)
    for kind, tally in causes.ordered:
        table.add_row(*map(shown, cause_row(kind, tally, now_ms)))
    return table


def letters_table(causes: Causes) -> Table:
    """Letters one by one, the newest first."""
    from ackwise.plugin.deadletters.shown import LETTER_COLUMNS, letter_row

    table = new_table(*LETTER_COLUMNS)
    for letter, state in causes.newest:
        table.add_row(*map(shown, letter_row(letter, state)))
    return table
