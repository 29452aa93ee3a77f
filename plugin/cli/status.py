"""`ackwise status`: shows a whole group over all its workers, once or repeatedly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.cli import deadletteroptions
from ackwise.plugin.cli.command import wait_for, with_options
from ackwise.plugin.cli.console import shown, text, to_stdout

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ackwise.plugin.operate.deadlettertopics import Place
    from ackwise.plugin.operate.groupstatus import Standing


@with_options
def status(
    whose: deadletteroptions.Whose,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="With --watch: time between two refreshes.")] = 2.0,
    where: deadletteroptions.Where,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables, or with --watch one per line.")] = False,
) -> None:
    """Show a group over all its workers: the owner and progress of each partition, what waits and why, and dead letters.

    The progress is as of the last commit of each partition. Each worker writes its state to the control topic every 10 seconds: host,
    process, version, messages in flight, waiting messages with reasons, pauses, and obstacles.

    Exit code 0: nothing needs attention, or --watch was ended. 1: a line under the table names what needs attention: no worker, no
    relay, a partition without an owner, a blocked worker, a pause by command, or open dead letters. 2: there is no such group, or the
    brokers do not answer.
    """
    if not 0.1 <= interval <= 3600:
        raise ConfigurationError(f"--interval is {interval:g}; it must be between 0.1 and 3600 seconds")
    place = where.place(whose)
    first = wait_for(_look(place))
    if watch:
        _watch(place, first, interval, as_json)
        return
    _print(first, as_json)
    from ackwise.plugin.operate.groupstatus import findings

    raise typer.Exit(int(bool(findings(first))))


async def _look(place: Place) -> Standing:
    from ackwise.plugin.operate.statusreader import look_at

    return await look_at(place)


def _print(standing: Standing, as_json: bool) -> None:
    from ackwise.plugin.operate.groupstatus import facts

    if as_json:
        typer.echo(json.dumps(facts(standing)))
    else:
        to_stdout().print(_drawn(standing))


def _drawn(standing: Standing) -> RenderableType:
    """For people."""
    from rich.console import Group
    from rich.text import Text

    from ackwise.plugin.operate.groupstatus import shown as values_of

    found = values_of(standing)
    findings = (Text.assemble(("! ", "red"), text(finding.sentence)) for finding in found.findings)
    letters = [text(found.letters)] if found.letters else []
    tables = (shown(table, 1_000) for table in found.tables)
    return Group(text(found.headline), *tables, *letters, *findings, Text(found.unknown, style="dim"))


def _watch(place: Place, standing: Standing, interval: float, as_json: bool) -> None:
    """Refresh until Ctrl-C. It keeps running while brokers are unavailable."""
    try:
        with _screen() as draw:
            if as_json:
                _print(standing, as_json)
            else:
                draw(_drawn(standing))
            while True:
                time.sleep(interval)
                try:
                    standing = wait_for(_look(place))
                except Unavailable as error:
                    typer.echo(json.dumps({"error": str(error)})) if as_json else draw(text(str(error)))
                else:
                    _print(standing, as_json) if as_json else draw(_drawn(standing))
    except KeyboardInterrupt:
        return


@contextmanager
def _screen() -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that redraws in place on a terminal, and prints one after the other elsewhere."""
    console = to_stdout()
    if not console.is_terminal:
        yield console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda drawn: live.update(drawn, refresh=True)
