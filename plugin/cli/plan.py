"""`ackwise plan show` and `apply`, and what all commands that resend share: options, progress, signals, and the printed outcome."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.command import Target, find_app, wait_for, with_options
from ackwise.plugin.cli.console import shown, to_stderr, to_stdout
from ackwise.plugin.operate.table import Table, count

if TYPE_CHECKING:
    import asyncio

    from ackwise.plugin.operate.resend import Resent
    from ackwise.plugin.topics.group import Group


#: Maximum number of listed commands.
_COMMANDS: Final = 50

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without --yes the command only shows what it would do.")]


@dataclass(frozen=True)
class Sending:
    """Options of resending. Raises `ConfigurationError` for an invalid rate."""

    execute: Yes = False
    rate: Annotated[float, typer.Option(metavar="N", help="Maximum number of copies per second.")] = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise ConfigurationError(f"--rate is {self.rate:g}; it must be a number above 0, copies per second")


def stop_by_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    import asyncio

    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    return stop


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a bar if stderr is a terminal. Yield two functions: one takes the total, the other the number done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = to_stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.update(task, total=number), lambda done: bar.advance(task, done)


def table_of(outcome: Resent, *columns: str) -> Table:
    """Return a table of counts by kind and fate. The last of `columns` is what is counted, the others name the kind."""
    rows = [(*kind, count(fates[fate]), fate.value) for kind, fates in outcome.counts.items() for fate in fates]
    return Table("", (*columns, "fate"), rows)


def _print(outcome: Resent, fates: Table, nothing: str, *, executed: bool) -> None:
    """Print the fates and what is left to do."""
    console = to_stdout()
    console.print(shown(fates) if outcome.counts else nothing)
    if outcome.earlier:
        console.print(f"an earlier call has finished {outcome.earlier:,} of them", soft_wrap=True)
    for fate, places in outcome.places.items():
        console.print(f"[yellow]left[/] {fate.value}: {escape(', '.join(places[:5]))}{' …' if len(places) > 5 else ''}", soft_wrap=True)
    if not outcome.recorded:
        console.print("[yellow]the app has no Events[/], so reconciliation can't see what was resent", soft_wrap=True)
    if outcome.stopped:
        console.print("stopped; call it again to continue", soft_wrap=True)
    elif not executed and outcome.counts:
        console.print("nothing was changed; add --yes to do it", soft_wrap=True)


def end(
    outcome: Resent, fates: Table, facts: dict[str, Any], nothing: str, commands: Sequence[str] = (), *, executed: bool, as_json: bool
) -> NoReturn:
    """Print the fates of messages and `commands` left for the operator. Exit with the matching code."""
    if as_json:
        left = {fate.value: places for fate, places in outcome.places.items()}
        typer.echo(json.dumps({"executed": executed, "stopped": outcome.stopped, "left": left, **facts}))
    else:
        _print(outcome, fates, nothing, executed=executed)
        print_commands(commands)
    raise typer.Exit(128 + signal.SIGINT if outcome.stopped else int(not outcome.is_done or bool(commands)))


def print_commands(commands: Iterable[str]) -> None:
    """Print the first commands that requeue parked rows; the operator decides on them."""
    for command in islice(commands, _COMMANDS):
        to_stdout().print(f"[yellow]call this[/] after you have fixed the cause: {escape(command)}", soft_wrap=True)


HELP: Final = "The repair plan that reconcile wrote: show it, or apply it."

#: Maximum number of listed steps.
_SHOWN: Final = 50

_Plan = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The [bold]plan.jsonl[/bold] that reconcile wrote.", show_default=False, readable=False)
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def show(plan: _Plan, as_json: _AsJson = False) -> None:
    """Show the steps of a plan, and their number by action. Connects to nothing.

    Exit code 0: shown. 2: the file is not a plan, or one of its lines is damaged.
    """
    from ackwise.middleware.repairplan import RepairStep, read_steps, read_title
    from ackwise.plugin.operate.resendplan import place_of

    title = read_title(plan)
    steps, offsets, first = Counter[tuple[str, str, str, str]](), Counter[tuple[str, str, str, str]](), list[RepairStep]()
    for step in read_steps(plan):
        kind = step.group, step.action.value, step.verdict, step.risk.value
        steps[kind] += 1
        offsets[kind] += step.offsets
        if len(first) < _SHOWN:
            first.append(step)
    columns = "group", "action", "verdict", "risk", "steps", "offsets"
    kinds = Table("", columns, [(*kind, count(number), count(offsets[kind])) for kind, number in sorted(steps.items())])
    if as_json:
        typer.echo(json.dumps({"plan_id": title.plan_id, "as_of": _time(title.as_of), "actions": kinds.records}))
        return
    console = to_stdout()
    console.print(f"Plan {escape(title.plan_id)}, judged as of {_time(title.as_of)}", soft_wrap=True)
    if not steps:
        console.print("nothing to repair")
        return
    console.print(shown(kinds))
    rows = [
        (step.action.value, place_of(step, step.start, step.end), step.handler or "–", step.verdict, step.attempt, step.last_event or "–")
        for step in first
    ]
    console.print(shown(Table("", ("action", "offsets", "handler", "verdict", "attempts", "last event"), rows)))
    print_commands(step.command for step in first if step.command)
    if sum(steps.values()) > len(first):
        console.print(f"[dim]and {sum(steps.values()) - len(first):,} more steps in {escape(str(plan))}[/]", soft_wrap=True)


@with_options
def apply(
    plan: _Plan,
    target: Target,
    sending: Sending,
    with_review: Annotated[
        bool, typer.Option("--with-review", help="Include steps that run a message twice if its verdict was wrong.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Resend the lost messages of a plan, if they are still lost. Changes nothing without --yes.

    Copies go to the group's retry topic, with key, value and headers. Each record is fetched from its topic, and its key is claimed
    in the app's store. Messages that are done meanwhile, are running, or are gone are skipped and reported. Progress is written next
    to the plan, so an interrupted call continues where it stopped. Ctrl-C finishes the current portion. Parked rows of an outbox are
    left to you: the commands that requeue them are shown.

    Exit code 0: nothing is left to do. 1: steps are left, for the reasons shown. 2: it failed; one sentence gives the reason. 130:
    interrupted.
    """
    from ackwise.middleware.repairplan import read_steps
    from ackwise.plugin.operate.resend import Resent
    from ackwise.plugin.operate.resendplan import steps_for

    group = find_app(target).group()
    _, steps, offsets = steps_for(plan, group.settings.group)
    requeues = [step.command for step in read_steps(plan) if step.command]
    outcome = Resent()
    if steps or not requeues:
        outcome = wait_for(_carry_out(plan, group, offsets, sending, with_review))
    fates = table_of(outcome, "action", "verdict", "messages")
    facts = {"earlier": outcome.earlier, "actions": fates.records, "requeue": requeues}
    end(outcome, fates, facts, "nothing to repair", requeues, executed=sending.execute, as_json=as_json)


async def _carry_out(plan: Path, group: Group, offsets: int, sending: Sending, with_review: bool) -> Resent:
    from ackwise.plugin.operate.resendplan import carry_out

    with progress("offsets", offsets) as (_, on_progress):
        return await carry_out(
            plan, group, execute=sending.execute, with_review=with_review, rate=sending.rate, stop=stop_by_signal(),
            on_progress=on_progress,
        )  # fmt: skip


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")
