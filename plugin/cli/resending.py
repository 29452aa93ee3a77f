"""What the commands that send again share: options, a bar, signals that finish a portion, and how the outcome is printed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.console import shown, to_stderr, to_stdout
from ackwise.plugin.pages.table import Table, count

if TYPE_CHECKING:
    import asyncio

    from ackwise.plugin.resend.candidate import Resent

__all__ = ["Sending", "Yes", "end", "print_commands", "progress", "stop_by_signal", "table_of"]

#: Commands that are listed.
_COMMANDS: Final = 50

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, nothing is changed, and what would be done is shown.")]


@dataclass(frozen=True)
class Sending:
    """How it is sent again. Raises `ConfigurationError` for what is no rate."""

    execute: Yes = False
    rate: Annotated[float, typer.Option(metavar="N", help="At most so many copies per second.")] = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise ConfigurationError(f"--rate is {self.rate:g}; it must be a number above 0, copies per second")


def stop_by_signal() -> asyncio.Event:
    """Set by the signals that ask for an end."""
    import asyncio

    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    return stop


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar on stderr, where somebody looks on: what to call with the total, and with what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = to_stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.update(task, total=number), lambda done: bar.advance(task, done)


def table_of(outcome: Resent, *columns: str) -> Table:
    """How many had which fate, by the kind that `columns` name but the last, which is what is counted."""
    rows = [(*kind, count(fates[fate]), fate.value) for kind, fates in outcome.counts.items() for fate in fates]
    return Table("", (*columns, "fate"), rows)


def _print(outcome: Resent, fates: Table, nothing: str, *, executed: bool) -> None:
    """For people: who had which fate, and what is left to do."""
    console = to_stdout()
    console.print(shown(fates) if outcome.counts else nothing)
    if outcome.earlier:
        console.print(f"an earlier call was done with {outcome.earlier:,} of them", soft_wrap=True)
    for fate, places in outcome.places.items():
        console.print(f"[yellow]left[/] {fate.value}: {escape(', '.join(places[:5]))}{' …' if len(places) > 5 else ''}", soft_wrap=True)
    if not outcome.recorded:
        console.print("[yellow]the app has no Events[/], so no reconciliation learns what was sent again", soft_wrap=True)
    if outcome.stopped:
        console.print("stopped; call it again to go on", soft_wrap=True)
    elif not executed and outcome.counts:
        console.print("nothing was changed; add --yes to do it", soft_wrap=True)


def end(
    outcome: Resent, fates: Table, facts: dict[str, Any], nothing: str, commands: Sequence[str] = (), *, executed: bool, as_json: bool
) -> NoReturn:
    """Print what became of messages, and leave with the code for it; `commands` are left for somebody to call."""
    if as_json:
        left = {fate.value: places for fate, places in outcome.places.items()}
        typer.echo(json.dumps({"executed": executed, "stopped": outcome.stopped, "left": left, **facts}))
    else:
        _print(outcome, fates, nothing, executed=executed)
        print_commands(commands)
    raise typer.Exit(128 + signal.SIGINT if outcome.stopped else int(not outcome.is_done or bool(commands)))


def print_commands(commands: Iterable[str]) -> None:
    """Rows that are parked are for whoever knows why: the first commands that let them go."""
    for command in islice(commands, _COMMANDS):
        to_stdout().print(f"[yellow]for you to call[/] once the cause is mended: {escape(command)}", soft_wrap=True)
