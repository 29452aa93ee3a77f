"""`ackwise topics skip`: pass records that nobody can read, by their coordinates."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape

from ackwise.plugin.cli.console import to_stdout
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.waiting import wait_for

__all__ = ["skip"]


def skip(
    target: Target,
    records: Annotated[str, typer.Argument(metavar="RECORDS", help="TOPIC/PARTITION/FIRST-LAST, such as [bold]orders/3/120-128[/bold].")],
    execute: Annotated[bool, typer.Option("--yes", help="Do it. Without, nothing is changed, and what would be passed is shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")] = False,
) -> None:
    """Pass records that nobody can read, so that their partition goes on. Changes nothing without --yes.

    They are never handled, and the events say why. The group must have no members, and the records must be where it stands: at
    most the record batch that can't be read. They stay in the topic. In the mode `offsets` of Transactional they are passed in
    the database as well.

    Exit code 0: passed, or shown what would be. 2: it is not what can't be read, the group has members, or the brokers or the
    database do not answer.
    """
    from ackwise.plugin.group.skipping import parse_passage
    from ackwise.plugin.group.skipping import skip as pass_over

    passage = parse_passage(records)
    found = wait_for(pass_over(find_app(target).group(), passage, execute=execute))
    if as_json:
        facts = {
            "records": str(passage),
            "batch": list(found.batch),
            "error": found.error,
            "recorded": found.has_events,
            "done": found.is_done,
        }
        typer.echo(json.dumps(facts))
        return
    console = to_stdout()
    first, last = found.batch
    console.print(f"{escape(str(passage))} can't be read ({escape(found.error)}), in a record batch of {first} to {last}", soft_wrap=True)
    if not found.has_events:
        console.print("[yellow]the app has no Events[/], so nothing will say later that this was on purpose", soft_wrap=True)
    done = f"passed; the group goes on at {passage.last + 1}" if found.is_done else "nothing was changed; add --yes to pass it"
    console.print(done, soft_wrap=True)
