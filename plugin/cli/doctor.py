"""`ackwise doctor`: prints the findings of the doctor as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from ackwise.plugin.cli.command import find_app, wait_for
from ackwise.plugin.cli.console import new_table, to_stderr, to_stdout

if TYPE_CHECKING:
    from ackwise.plugin.operate.machinechecks import Finding


_COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="Check what this app needs as well: brokers, topics, claims, events.")
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Check these brokers, separated by commas. Default: those of the app.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check that a worker can run on this machine, and print what to fix. Changes nothing.

    It checks Python and its packages, Java, limits, disk space and the clock. With an app or --brokers it checks the brokers; with
    an app also its topics, its groups, and write access for claims and events.

    Exit code 0: no problem; there may be warnings. 1: a problem. 2: there is no such app.
    """
    from ackwise.plugin.operate.examination import examine
    from ackwise.plugin.settings.connecting import parse_brokers

    if brokers is not None:
        parse_brokers(brokers)
    findings = wait_for(examine(None if target is None else find_app(target), brokers))
    code = int(any(finding.verdict == "problem" for finding in findings))
    if as_json:
        typer.echo(json.dumps({"findings": [dataclasses.asdict(finding) for finding in findings], "exit": code}))
    else:
        _show(findings)
        if target is None and brokers is None:
            to_stderr().print("Kafka was not checked: give ackwise doctor MODULE:APP, or --brokers HOST:PORT.")
    raise typer.Exit(code)


def _show(findings: Sequence[Finding]) -> None:
    table = new_table("verdict", "what", "found, and what to do")
    for finding in findings:
        advice = f"\n[bold]{escape(finding.advice)}[/bold]" if finding.advice else ""
        colour = _COLOURS[finding.verdict]
        table.add_row(f"[{colour}]{finding.verdict}[/{colour}]", escape(finding.subject), escape(finding.found) + advice)
    to_stdout().print(table)
