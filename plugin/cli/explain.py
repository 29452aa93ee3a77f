"""`ackwise explain`: shows how an app handles its messages, as tables or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ackwise.plugin.cli.command import Target, find_app
from ackwise.plugin.cli.console import shown, to_stdout

if TYPE_CHECKING:
    from ackwise.plugin.operate.explanation import Explanation
    from ackwise.plugin.operate.failurepaths import FailurePath


#: Characters of a cell, whatever the width of the terminal.
_CELL: Final = 100_000


def explain(
    target: Target, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False
) -> None:
    """Show how an app handles its messages: its chain, each setting with its source, and the consequence of each failure.

    It connects to nothing, starts nothing and needs no broker. Passwords are not shown.

    Exit code 0: no reason against a start was found. 1: the start would be refused, for the reasons shown. 2: there is no such app,
    or a setting can't be used.
    """
    found = find_app(target).explain()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
    else:
        print_explanation(found, to_stdout())
    raise typer.Exit(int(bool(found.refusals)))


def print_explanation(found: Explanation, console: Console) -> None:
    """Print `found` as tables; reasons against a start come last."""
    console.print(Text(f"Group {found.group}", style="bold"))
    for table in found.tables:
        console.print(Text(f"\n{table.caption}", style="bold"))
        console.print(shown(table, _CELL))
    console.print(Text("\nWhat happens when", style="bold"))
    for consequence, causes in _by_consequence(found.failures).items():
        for cause in causes:
            console.print(Text(cause))
        console.print(Padding(Text(consequence), (0, 0, 0, 4), expand=False))
    for style, word, sentences in (("yellow", "warning", found.warnings), ("red", "refused at start", found.refusals)):
        for sentence in sentences:
            console.print(Text.assemble("\n", (word, style), f": {sentence}"), soft_wrap=True)


def _by_consequence(failures: Iterable[FailurePath]) -> dict[str, list[str]]:
    """Return the causes of each consequence, in order: a table of both would be wider than a terminal."""
    causes: dict[str, list[str]] = {}
    for failure in failures:
        causes.setdefault(_consequence(failure), []).append(failure.when)
    return causes


def _consequence(failure: FailurePath) -> str:
    attempts = "" if failure.attempts is None else str(failure.attempts)
    named = {"wait": failure.after, "attempts": attempts, "ends on": failure.ends, "its offset passes": failure.offset}
    return "; ".join([failure.then, *(f"{name}: {value}" for name, value in named.items() if value)])
