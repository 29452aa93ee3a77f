"""`ackwise explain`: what an app does with its messages, as tables or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ackwise.plugin.cli.console import new_table, to_stdout
from ackwise.plugin.cli.target import Target, find_app

if TYPE_CHECKING:
    from ackwise.plugin.inspect.explain import Explanation

__all__ = ["explain", "print_explanation"]


def explain(
    target: Target, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False
) -> None:
    """Show what an app does with its messages: its chain, each setting with its source, and what each failure leads to.

    Nothing is connected to or started, and no broker is needed. Passwords are not shown.

    Exit code 0: the app would start, as far as that can be told here. 1: it would be refused, for the reasons given.
    2: there is no such app, or a setting can't be used.
    """
    found = find_app(target).explain()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
    else:
        print_explanation(found, to_stdout())
    raise typer.Exit(int(bool(found.refusals)))


def print_explanation(found: Explanation, console: Console) -> None:
    """Print `found` as tables, what keeps the app from starting last."""
    console.print(Text(f"Group {found.group}", style="bold"))
    _print(console, "What a message passes", ("phase", "step", "how"), found.chain)
    _print(console, "Settings", ("setting", "value", "from"), found.settings)
    _print(console, "Topics", ("topic", "what is in it"), found.topics)
    rows = [(row.when, row.then, row.after, row.attempts, row.ends, row.offset) for row in found.failures]
    _print(console, "What happens when", ("when", "the message", "after", "attempts", "ends on", "its offset passes"), rows)
    for style, word, sentences in (("yellow", "warning", found.warnings), ("red", "refused at start", found.refusals)):
        for sentence in sentences:
            console.print(Text.assemble("\n", (word, style), f" {sentence}"), soft_wrap=True)


def _print(console: Console, title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
    table = new_table(*columns)
    for row in rows:
        cells = row if isinstance(row, tuple) else dataclasses.astuple(row)
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))
    console.print(Text(f"\n{title}", style="bold"))
    console.print(table)
