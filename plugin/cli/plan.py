"""`ackwise plan show` and `apply`: print a repair plan, and carry it out."""

from __future__ import annotations

import json
import math
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.console import new_table, to_stderr, to_stdout
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.waiting import wait_for

if TYPE_CHECKING:
    from rich.console import Console

    from ackwise.middleware.repairplan import RepairStep
    from ackwise.plugin.group.group import Group
    from ackwise.plugin.repair.carrying import Carried

__all__ = ["HELP", "apply", "show"]

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

    title = read_title(plan)
    steps, offsets, first = Counter[tuple[str, str, str, str]](), Counter[tuple[str, str, str, str]](), list[RepairStep]()
    for step in read_steps(plan):
        kind = step.group, step.action.value, step.verdict, step.risk.value
        steps[kind] += 1
        offsets[kind] += step.offsets
        if len(first) < _SHOWN:
            first.append(step)
    if as_json:
        kinds = [
            {"group": group, "action": action, "verdict": verdict, "risk": risk, "steps": number, "offsets": offsets[kind]}
            for kind, number in sorted(steps.items())
            for group, action, verdict, risk in [kind]
        ]
        typer.echo(json.dumps({"plan_id": title.plan_id, "as_of": _time(title.as_of), "actions": kinds}))
        return
    console = to_stdout()
    console.print(f"Plan {escape(title.plan_id)}, judged as of {_time(title.as_of)}", soft_wrap=True)
    if not steps:
        console.print("nothing is to be repaired")
        return
    table = new_table("group", "action", "for", "risk", "steps", "offsets")
    for kind, number in sorted(steps.items()):
        table.add_row(*map(escape, kind), f"{number:,}", f"{offsets[kind]:,}")
    console.print(table)
    table = new_table("action", "offsets", "handler", "verdict", "attempts", "last event")
    for step in first:
        table.add_row(
            step.action, escape(_place(step)), escape(step.handler or "–"), step.verdict, str(step.attempt), step.last_event or "–"
        )
    console.print(table)
    _print_commands(console, (step.command for step in first))
    if sum(steps.values()) > len(first):
        console.print(f"[dim]and {sum(steps.values()) - len(first):,} more steps in {escape(str(plan))}[/]", soft_wrap=True)


def apply(
    plan: _Plan,
    target: Target,
    execute: Annotated[bool, typer.Option("--yes", help="Do it. Without, nothing is changed, and what would be done is shown.")] = False,
    with_review: Annotated[
        bool, typer.Option("--with-review", help="Do also what may run a message twice if the verdict on it was wrong.")
    ] = False,
    rate: Annotated[float, typer.Option(metavar="N", help="At most so many copies per second.")] = 100.0,
    as_json: _AsJson = False,
) -> None:
    """Send again what a plan says was lost, if that is still right. Changes nothing without --yes.

    It goes to the group's retry topic. Each record is fetched from its topic, and its key is claimed in the app's store: what
    was done meanwhile, is being run, or is there no longer, is left alone and said. A copy keeps key, value and headers. What
    was done is noted beside the plan, so a call that was interrupted goes on where it ended. Ctrl-C finishes what is in hand.
    Rows that are parked in an outbox are left to you: the commands that let them go are shown.

    Exit code 0: nothing is left to do. 1: something is, for the reasons shown. 2: it could not be done; one sentence says
    why. 130: interrupted.
    """
    if not 0 < rate < math.inf:
        raise ConfigurationError(f"--rate is {rate:g}; it must be a number above 0, copies per second")
    from ackwise.middleware.repairplan import read_steps
    from ackwise.plugin.repair.carrying import Carried, steps_for

    group = find_app(target).group()
    _, steps, offsets = steps_for(plan, group.settings.group)
    requeues = [step.command for step in read_steps(plan) if step.command]
    carried = Carried()
    if steps or not requeues:
        carried = wait_for(_carry_out(plan, group, offsets, execute=execute, with_review=with_review, rate=rate))
    if as_json:
        typer.echo(json.dumps(_plain(carried, executed=execute) | {"requeue": requeues}))
    else:
        _print(carried, executed=execute)
        _print_commands(to_stdout(), requeues)
    if carried.stopped:
        raise typer.Exit(128 + signal.SIGINT)
    raise typer.Exit(int(not carried.is_done or bool(requeues)))


async def _carry_out(plan: Path, group: Group, offsets: int, *, execute: bool, with_review: bool, rate: float) -> Carried:
    import asyncio

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ackwise.plugin.repair.carrying import carry_out

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = to_stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("offsets", total=offsets)
        return await carry_out(
            plan, group, execute=execute, with_review=with_review, rate=rate, stop=stop, on_progress=lambda done: bar.advance(task, done)
        )


def _plain(carried: Carried, *, executed: bool) -> dict[str, object]:
    kinds = [{"action": action, "verdict": verdict, "messages": dict(fates)} for (action, verdict), fates in carried.counts.items()]
    left = {fate.value: places for fate, places in carried.places.items()}
    return {"executed": executed, "earlier": carried.earlier, "stopped": carried.stopped, "actions": kinds, "left": left}


def _print(carried: Carried, *, executed: bool) -> None:
    console = to_stdout()
    table = new_table("action", "for", "messages", "")
    for (action, verdict), fates in carried.counts.items():
        for fate, number in sorted(fates.items()):
            table.add_row(action, verdict, f"{number:,}", fate)
    if carried.counts:
        console.print(table)
    else:
        console.print("nothing is to be repaired")
    if carried.earlier:
        console.print(f"an earlier call was done with {carried.earlier:,} of them", soft_wrap=True)
    for fate, places in carried.places.items():
        console.print(f"[yellow]left[/] {fate}: {escape(_listed(places))}", soft_wrap=True)
    if carried.stopped:
        console.print("stopped; call it again to go on", soft_wrap=True)
    elif not executed and carried.counts:
        console.print("nothing was changed, and no store was asked; add --yes to do it", soft_wrap=True)


def _listed(places: Sequence[str]) -> str:
    return ", ".join(places[:5]) + (" …" if len(places) > 5 else "")


def _print_commands(console: Console, commands: Iterable[str | None]) -> None:
    """Rows that are parked are for whoever knows why: the first commands that let them go."""
    for command in islice(filter(None, commands), _SHOWN):
        console.print(f"[yellow]for you to call[/] once the cause is mended: {escape(command)}", soft_wrap=True)


def _place(step: RepairStep) -> str:
    if step.outbox is not None:
        return f"row {step.start}" + (f"–{step.end - 1}" if step.offsets > 1 else "") + f" of {step.outbox or 'an outbox'}"
    return f"{step.topic}/{step.partition}/{step.start}" + (f"–{step.end - 1}" if step.offsets > 1 else "")


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")
