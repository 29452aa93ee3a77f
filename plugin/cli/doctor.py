"""`ackwise doctor`: prints what the doctor found, a line each, as a table or as JSON."""

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
        str | None, typer.Argument(metavar="MODULE:APP", help="Look at what this App needs as well: brokers, topics, claims, events.")
    ] = None,
    brokers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask these brokers, several with commas between. Default: those of the App.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Look whether a worker can run here, and say what to do where it can't. Changes nothing.

    Python and its packages, Java, limits, space and the clock; with an app or --brokers the brokers; with an app its
    topics, its groups, and whether claims and events can be written.

    Exit code 0: no problem; there may be warnings. 1: a problem. 2: it could not look, since there is no such app.
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
            to_stderr().print("Kafka was not looked at: ackwise doctor MODULE:APP, or --brokers HOST:PORT.")
    raise typer.Exit(code)


def _show(findings: Sequence[Finding]) -> None:
    table = new_table("verdict", "what", "found, and what to do")
    for finding in findings:
        advice = f"\n[bold]{escape(finding.advice)}[/bold]" if finding.advice else ""
        colour = _COLOURS[finding.verdict]
        table.add_row(f"[{colour}]{finding.verdict}[/{colour}]", escape(finding.subject), escape(finding.found) + advice)
    to_stdout().print(table)
