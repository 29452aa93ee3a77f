"""`ackwise plan show` and `apply`: print a repair plan, and carry it out."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from ackwise.plugin.cli.console import shown, to_stdout
from ackwise.plugin.cli.resending import Sending, end, print_commands, progress, stop_by_signal, table_of
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.together import with_options
from ackwise.plugin.cli.waiting import wait_for
from ackwise.plugin.pages.table import Table, count

if TYPE_CHECKING:
    from ackwise.plugin.group.group import Group
    from ackwise.plugin.resend.candidate import Resent

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
    from ackwise.plugin.resend.plan import place_of

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
    was done is noted beside the plan, so a call that was interrupted goes on where it ended. Ctrl-C finishes what is in hand.
    Rows that are parked in an outbox are left to you: the commands that let them go are shown.

    Exit code 0: nothing is left to do. 1: something is, for the reasons shown. 2: it could not be done; one sentence says
    why. 130: interrupted.
    """
    from ackwise.middleware.repairplan import read_steps
    from ackwise.plugin.resend.candidate import Resent
    from ackwise.plugin.resend.plan import steps_for

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
    from ackwise.plugin.resend.plan import carry_out

    with progress("offsets", offsets) as (_, on_progress):
        return await carry_out(
            plan, group, execute=sending.execute, with_review=with_review, rate=sending.rate, stop=stop_by_signal(),
            on_progress=on_progress,
        )  # fmt: skip


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds")
