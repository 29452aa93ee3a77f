"""`ackwise cancel`: cancel messages that wait to come back."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape

from ackwise.plugin.cli.console import to_stdout
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.waiting import wait_for

__all__ = ["cancel"]


def cancel(
    target: Target,
    message_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="TOPIC/PARTITION/OFFSET of the first record, such as [bold]orders/3/120[/bold].")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")] = False,
) -> None:
    """Cancel messages that wait to come back. Each is answered: accepted, too late or unknown.

    Accepted: it does not come back. Too late: it is due, or came back already. Unknown: no message with that id waits.

    Exit code 0: all were accepted. 1: some were too late or unknown. 2: the brokers do not answer, or that is no id.
    """
    from ackwise.plugin.relay.cancel import cancel as cancel_all

    answers = wait_for(cancel_all(find_app(target).group(), message_ids))
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        console = to_stdout()
        for message_id, answer in answers.items():
            console.print(f"{escape(message_id)}: {answer}", soft_wrap=True)
    raise typer.Exit(int(any(answer != "accepted" for answer in answers.values())))
