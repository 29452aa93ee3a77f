"""What the commands that send again share: options, a bar, signals that finish a portion, and how the outcome is printed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.plaintext import plain
from ackwise.plugin.cli.console import new_table, to_stderr, to_stdout

if TYPE_CHECKING:
    import asyncio

    from ackwise.plugin.resend.candidate import Resent

__all__ = ["Sending", "Yes", "end", "print_outcome", "progress", "stop_by_signal"]

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


def print_outcome(outcome: Resent, columns: Sequence[str], nothing: str, *, executed: bool) -> None:
    """For people: how many had which fate, by the kind that `columns` name, and what is left to do."""
    console = to_stdout()
    table = new_table(*columns, "")
    for kind, fates in sorted(outcome.counts.items()):
        for fate, number in sorted(fates.items()):
            table.add_row(*(escape(plain(word, 160)) for word in kind), f"{number:,}", fate.value)
    console.print(table if outcome.counts else nothing)
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


def end(outcome: Resent, facts: dict[str, Any] | None, *, executed: bool, is_done: bool) -> NoReturn:
    """Leave with the code for it, after `facts` and what is left were printed, if it is printed as JSON."""
    if facts is not None:
        left = {fate.value: places for fate, places in outcome.places.items()}
        typer.echo(json.dumps({"executed": executed, "stopped": outcome.stopped, "left": left, **facts}))
    raise typer.Exit(128 + signal.SIGINT if outcome.stopped else int(not is_done))
