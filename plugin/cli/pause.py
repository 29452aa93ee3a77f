"""Commands to running workers: `ackwise pause` and `ackwise resume` a handler or a partition, `ackwise cancel` waiting messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ackwise.plugin.cli.command import Target, find_app, wait_for
from ackwise.plugin.cli.console import shown, to_stdout
from ackwise.plugin.operate.table import Table

if TYPE_CHECKING:
    from ackwise.middleware.flow.controlrecords import ControlRecord
    from ackwise.middleware.flow.pausing import Target as Paused
    from ackwise.plugin.topics.group import Group


_What = typer.Argument(metavar="WHAT", help="A handler, such as [bold]bill[/bold], or a partition, such as [bold]orders/3[/bold].")


def pause(
    target: Target,
    what: Annotated[str | None, _What] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Pause a handler or a partition in every worker of the group. Without WHAT, list the paused ones.

    Running calls finish, nothing is lost, and no attempt is counted. Workers that start later are paused too, until
    [bold]ackwise resume[/bold].

    Exit code 0: the command was written to the control topic. 2: there is no such handler or partition, there is no
    control topic, or the brokers do not answer.
    """
    group = find_app(target).group()
    if what is None:
        _show(group, as_json)
        return
    _tell(group, what, paused=True, dead=False, as_json=as_json)


def resume(
    target: Target,
    what: Annotated[str, _What],
    dead: Annotated[
        bool, typer.Option("--dead", help="Release the dead letters that a breaker withholds, until a value can be decoded again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a sentence.")] = False,
) -> None:
    """Resume what [bold]ackwise pause[/bold] paused, and let a handler that a breaker has stopped try at once.

    Pauses from an app's own code stay.

    Exit code 0: the command was written to the control topic. 2: there is no such handler or partition, there is no
    control topic, or the brokers do not answer.
    """
    _tell(find_app(target).group(), what, paused=False, dead=dead, as_json=as_json)


def _tell(group: Group, what: str, *, paused: bool, dead: bool, as_json: bool) -> None:
    from ackwise.plugin.topics.controltopic import write_control

    named = _named(group, what, dead=dead)
    wait_for(write_control(group.settings, group.names, named, paused=paused, dead=dead))
    if as_json:
        typer.echo(json.dumps({"group": group.settings.group, "what": what, "paused": paused, "dead": dead}))
        return
    done = "paused" if paused else "resumed, its withheld dead letters released" if dead else "resumed"
    to_stdout().print(f"{escape(what)} of group {escape(group.settings.group)} is {done}; workers read it at once", soft_wrap=True)


def _named(group: Group, what: str, *, dead: bool) -> Paused:
    from ackwise.middleware.errors import ConfigurationError
    from ackwise.middleware.flow.pausing import target_of
    from ackwise.plugin.topics.topicpatterns import topics_about

    named = target_of(what, handlers=[agent.name for agent in group.agents], topics={*topics_about(what, group.agents), group.names.retry})
    if dead and named.handler is None:
        raise ConfigurationError(f"{what!r} is a partition, and --dead is for handlers; name the handler")
    return named


def _show(group: Group, as_json: bool) -> None:
    from ackwise.plugin.topics.controltopic import read_control

    found = wait_for(read_control(group.settings, group.names))
    paused = sorted((record for record in found.values() if record.paused), key=lambda record: str(record.target))
    if as_json:
        typer.echo(json.dumps({"paused": [{"what": str(record.target), "at_ms": record.at_ms} for record in paused]}))
    elif not paused:
        to_stdout().print("nothing is paused by command")
    else:
        to_stdout().print(shown(Table("", ("paused", "since"), [(str(record.target), _since(record)) for record in paused]), 1_000))


def _since(record: ControlRecord) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat(timespec="seconds")


def cancel(
    target: Target,
    message_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="TOPIC/PARTITION/OFFSET of the first record, such as [bold]orders/3/120[/bold].")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")] = False,
) -> None:
    """Cancel messages that wait in the delay topic. The answer for each is accepted, too late or unknown.

    Accepted: it will not be delivered. Too late: it is due, or was delivered already. Unknown: no message with that id waits.

    Exit code 0: all were accepted. 1: some were too late or unknown. 2: the brokers do not answer, or an id is invalid.
    """
    from ackwise.plugin.delays.cancellations import cancel as cancel_all

    answers = wait_for(cancel_all(find_app(target).group(), message_ids))
    if as_json:
        typer.echo(json.dumps(answers))
    else:
        console = to_stdout()
        for message_id, answer in answers.items():
            console.print(f"{escape(message_id)}: {answer}", soft_wrap=True)
    raise typer.Exit(int(any(answer != "accepted" for answer in answers.values())))
