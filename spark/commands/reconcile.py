"""`ackwise reconcile`: judges the events below one or more folders, prints the result and writes a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.spark.commands import options
from ackwise.spark.commands.interrupting import interruptible
from ackwise.spark.commands.options import EngineName, Format
from ackwise.spark.commands.progress import Progress
from ackwise.spark.commands.run import Request, check, examine, new_run_id, run
from ackwise.spark.session.engine import HEAP, LOCAL, engine_of

if TYPE_CHECKING:
    from ackwise.spark.report.report import RunReport

__all__ = ["reconcile"]


def reconcile(
    events: options.EventFolders,
    out: options.Out = None,
    as_of: options.AsOf = None,
    since: options.Since = None,
    grace: options.Grace = "1m",
    lateness: options.Lateness = "0s",
    writer_timeout: options.WriterTimeout = "10m",
    lease: options.Lease = None,
    retention: options.Retention = None,
    produced: options.Produced = None,
    claims: options.Claims = None,
    brokers: options.Brokers = None,
    verify_sample: options.VerifySample = 0,
    strict: options.Strict = False,
    plan_provisional: options.PlanProvisional = False,
    verdicts: options.VerdictRows = options.Verdicts.EXCEPTIONS,
    followed: options.Follow = False,
    topic: options.Topic = None,
    client_config: options.ClientConfig = None,
    every: options.Every = None,
    fail_fast: options.FailFast = False,
    webhook: options.Webhook = None,
    metrics: options.Metrics = None,
    output: options.PrintAs = Format.TABLES,
    as_json: options.Json = False,
    asked: options.Computed = EngineName.AUTO,
    master: options.Master = LOCAL,
    driver_memory: options.DriverMemory = HEAP,
    conf: options.Conf = None,
    check_cluster: options.CheckCluster = False,
) -> None:
    """Read the events of all workers and report what happened to every message: tables here, and a page whose path is printed last.

    A worker that was killed may have run messages without recording it. They are counted and listed as [bold]in doubt[/bold].

    Exit code 0: no anomaly. 1: anomalies; with --strict also doubts. 2: it could not run; one sentence says why. 3: no anomaly, but
    events are missing that could show one.
    """
    judging = options.config_of(
        as_of=as_of, since=since, grace=grace, lateness=lateness, writer_timeout=writer_timeout, lease=lease, retention=retention
    )
    every_row = verdicts is options.Verdicts.ROWS
    config = replace(judging, verify_sample=verify_sample, strict=strict, plan_provisional=plan_provisional, verdict_rows=every_row)
    request = Request(events, config, produced, claims, brokers, asked, engine_of(master, driver_memory, conf or ()))
    chosen = Format.JSON if as_json else output
    if check_cluster:
        with interruptible():
            typer.echo(_check_cluster(request))
        return
    following = {
        "--topic": topic,
        "--client-config": client_config,
        "--every": every,
        "--fail-fast": fail_fast or None,
        "--webhook": webhook,
        "--metrics": metrics,
    }
    if followed:
        from ackwise.spark.commands.follow import follow

        raise typer.Exit(follow(request, out, since, as_of, topic, client_config, every or "1m", fail_fast, webhook, metrics, chosen))
    if alone := [name for name, value in following.items() if value is not None]:
        raise ConfigurationError(f"{alone[0]} is an option of --follow; add that, or leave {alone[0]} out")
    with interruptible():
        report = _once(request, out)
    _print(report, chosen)
    raise typer.Exit(int(report.exit_code))


def _check_cluster(request: Request) -> str:
    if request.asked is EngineName.LOCAL:
        raise ConfigurationError("--check-cluster is about Spark's executors; leave --engine local out")
    progress = Progress(to_stderr())
    progress("looking at the folders")
    check(request)
    return str(examine(request, progress))


def _once(request: Request, out: Path | None) -> RunReport:
    run_id, progress = new_run_id(), Progress(to_stderr())
    progress("looking at the folders")
    check(request)
    return run(request, out or request.roots[0] / "runs" / run_id, run_id, progress)


def _print(report: RunReport, output: Format) -> None:
    match output:
        case Format.HTML:
            typer.echo(Path(report.page).read_text("utf-8"), nl=False)
        case Format.JSON:
            from ackwise.spark.report.summary import to_json

            typer.echo(to_json(report))
        case Format.TABLES:
            from ackwise.spark.report.terminal import show

            show(report, to_stdout())
