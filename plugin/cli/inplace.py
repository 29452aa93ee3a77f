"""`ackwise inplace`: lists, retries and buries messages that failed and wait in place, from outside of the workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from ackwise.plugin.cli.command import Target, find_app, wait_for
from ackwise.plugin.cli.console import new_table, to_stdout

if TYPE_CHECKING:
    from ackwise.middleware.flow.controlrecords import Do


HELP: Final = "Messages that failed and wait in place, under an order."

_Message = Annotated[str, typer.Argument(metavar="MESSAGE", help="TOPIC/PARTITION/OFFSET, such as [bold]orders/3/17[/bold].")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a sentence.")]


def show_list(
    target: Target,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the messages that failed and wait in place, under an order, with the messages that wait after them.

    The list is as of the last commit of each partition, up to one commit interval ago; no worker is asked. In a worker,
    [bold]app.waiting()[/bold] returns more.

    Exit code 0: shown. 2: the app broadcasts, or the brokers do not answer.
    """
    from ackwise.plugin.operate.inplaceoutside import look_outside

    group = find_app(target).group()
    found = wait_for(look_outside(group))
    if as_json:
        messages = [{"message": str(each.at), **{name: value for name, value in each._asdict().items() if name != "at"}} for each in found]
        typer.echo(json.dumps({"group": group.settings.group, "as_of": "last commit", "waiting": messages}))
        return
    console, name = to_stdout(), escape(group.settings.group)
    if not found:
        console.print(f"nothing of group {name} waits in place, as of its last commits", soft_wrap=True)
        return
    console.print(f"what waits in place in group {name}, as of the last commit of each partition", soft_wrap=True)
    table = new_table("message", "key", "attempts", "age s", "due in s", "after it", "")
    for each in found:
        table.add_row(
            escape(str(each.at)),
            "-" if each.key is None else escape(each.key),
            str(each.attempts),
            "record gone" if each.age is None else f"{each.age:.0f}",
            f"{each.due_in:.1f}",
            "-" if each.depth is None else str(each.depth),
            "to be buried" if each.is_buried else "",
        )
    console.print(table)


def retry(target: Target, message: _Message, as_json: _AsJson = False) -> None:
    """Retry a message that waits in place at once, in the worker that has it. This cancels an earlier [bold]bury[/bold].

    Exit code 0: the command was written to the control topic. 2: the app does not read the topic, there is no control topic,
    or the brokers do not answer.
    """
    _tell(target, message, "retry", as_json, "is due: if it waits in place, it is retried at once")


def bury(target: Target, message: _Message, as_json: _AsJson = False) -> None:
    """Turn a message that waits in place into a dead letter with the reason [bold]buried[/bold]; the messages after it continue.

    Its handler is not called again. If the handler is running it now, the message is buried if that attempt fails. The worker that
    has the message buries it, even after a crash. The message must have waited in place at the last commit.

    Exit code 0: the command was written to the control topic. 2: the message does not wait, there is no control topic, or the brokers
    do not answer.
    """
    _tell(target, message, "bury", as_json, "will be buried: it becomes a dead letter before its handler is called again")


def _tell(target: str, message: str, do: Do, as_json: bool, done: str) -> None:
    from ackwise.middleware.flow.controlrecords import message_at
    from ackwise.plugin.operate.inplaceoutside import tell, topics_of
    from ackwise.plugin.topics.topicpatterns import topics_about

    group = find_app(target).group()
    at = message_at(message, {*topics_of(group), *topics_about(message, group.agents)})
    wait_for(tell(group, at, do))
    if as_json:
        typer.echo(json.dumps({"group": group.settings.group, "message": str(at), "do": do}))
    else:
        to_stdout().print(f"{escape(str(at))} of group {escape(group.settings.group)} {done}", soft_wrap=True)
