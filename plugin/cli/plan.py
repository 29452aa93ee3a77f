"""What the commands that send again share: options, a bar, signals that finish a portion, and how the outcome is printed.

`ackwise plan show` and `apply`: print a repair plan, and carry it out.
"""

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


#: Commands that are listed.
_COMMANDS: Final = 50

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, nothing is changed, and what would be done is shown.")]


@dataclass(frozen=True)
class Sending:
    """How it is sent again. Raises `ConfigurationError` for what is no rate."""

    execute: Yes = False
    rate: Annotated[float, typer.Option(metavar="N", help="Copies per second at most.")] = 100.0

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
    """A bar on stderr, where stderr is a terminal: what to call with the total, and with what is done."""
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
    """Print what became of messages, and leave with the code for it; `commands` are left for the operator."""
    if as_json:
        left = {fate.value: places for fate, places in outcome.places.items()}
        typer.echo(json.dumps({"executed": executed, "stopped": outcome.stopped, "left": left, **facts}))
    else:
        _print(outcome, fates, nothing, executed=executed)
        print_commands(commands)
    raise typer.Exit(128 + signal.SIGINT if outcome.stopped else int(not outcome.is_done or bool(commands)))


def print_commands(commands: Iterable[str]) -> None:
    """The first commands that release parked rows, which the operator has to decide on."""
    for command in islice(commands, _COMMANDS):
        to_stdout().print(f"[yellow]for you to call[/] once the cause is fixed: {escape(command)}", soft_wrap=True)


HELP: Final = "What would repair what reconcile found: look at it, or do it."

#: Steps that are listed.
_SHOWN: Final = 50

_Plan = Annotated[
    Path, typer.Argument(metavar="PLAN", help="The [bold]plan.jsonl[/bold] that reconcile wrote.", show_default=False, readable=False)
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def show(plan: _Plan, as_json: _AsJson = False) -> None:
    """Show what a plan would do, by action and step by step. Nothing is connected to.

    Exit code 0: it can be read. 2: it is no plan, or a line of it is damaged.
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
        console.print("nothing is to be repaired")
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
        bool, typer.Option("--with-review", help="Do also what may run a message twice if the verdict on it was wrong.")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Send again what a plan says was lost, if that is still right. Changes nothing without --yes.

    It goes to the group's retry topic. Each record is fetched from its topic, and its key is claimed in the app's store: what
    was done meanwhile, is being run, or is there no longer, is left alone and said. A copy keeps key, value and headers. What
    was done is noted beside the plan, so a call that was interrupted goes on where it ended. Ctrl-C finishes what is in flight.
    Rows that are parked in an outbox are left to you: the commands that let them go are shown.

    Exit code 0: nothing is left to do. 1: something is, for the reasons shown. 2: it could not be done; one sentence says
    why. 130: interrupted.
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
    end(outcome, fates, facts, "nothing is to be repaired", requeues, executed=sending.execute, as_json=as_json)


async def _carry_out(plan: Path, group: Group, offsets: int, sending: Sending, with_review: bool) -> Resent:
    from ackwise.plugin.operate.resendplan import carry_out

    with progress("offsets", offsets) as (_, on_progress):
        return await carry_out(
            plan, group, execute=sending.execute, with_review=with_review, rate=sending.rate, stop=stop_by_signal(),
            on_progress=on_progress,
        )  # fmt: skip


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")
