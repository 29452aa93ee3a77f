"""`ackwise reconcile`: judges the events below one or more folders, prints the result and writes a page."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.spark.commands import options
from ackwise.spark.commands.engines import Computing, choose, computing, events_in, require
from ackwise.spark.commands.options import EngineName, Format
from ackwise.spark.commands.progress import Progress
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.session.engine import HEAP, LOCAL, Engine, engine_of

if TYPE_CHECKING:
    from ackwise.spark.claims.table import ClaimTable
    from ackwise.spark.report.report import RunReport

__all__ = ["reconcile"]

#: The files of a run in its folder; all others belong to somebody else.
_OURS: Final = {
    "verdicts", "logical", "missing", "produced", "claims", "plan.jsonl", ".plan.jsonl", "plan.progress.jsonl",
    "report.html", ".report.html", "summary.json", ".summary.json", ".live", ".reach",
}  # fmt: skip
#: The files of an earlier run that are removed before this one begins.
_CONCLUSIONS: Final = ("summary.json", "report.html", "plan.jsonl", "plan.progress.jsonl")


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
    state: options.State = None,
    verify_sample: options.VerifySample = 0,
    strict: options.Strict = False,
    plan_provisional: options.PlanProvisional = False,
    output: options.PrintAs = Format.TABLES,
    as_json: options.Json = False,
    asked: options.Computed = EngineName.AUTO,
    master: options.Master = LOCAL,
    driver_memory: options.DriverMemory = HEAP,
    conf: options.Conf = None,
) -> None:
    """Prove from the exported events what became of every message: as tables, and as a page whose path is printed last.

    Where a worker died before it could say whether it had run a message, nobody can prove that it ran once: such messages
    are counted and listed as in doubt.

    Exit code 0: no anomaly. 1: anomalies; with --strict also messages in doubt, dropped, or not run since their key is that of a
    dead letter. 2: it could not be done. 3: no anomaly, but events are missing that could show one.
    """
    judging = options.config_of(
        as_of=as_of, since=since, grace=grace, lateness=lateness, writer_timeout=writer_timeout, lease=lease, retention=retention
    )
    config = replace(judging, verify_sample=verify_sample, strict=strict, plan_provisional=plan_provisional)
    report = _run(events, out, config, produced, claims, brokers, state, asked, engine_of(master, driver_memory, conf or ()))
    _print(report, Format.JSON if as_json else output)
    raise typer.Exit(int(report.exit_code))


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


def _run(
    roots: Sequence[Path],
    out: Path | None,
    config: ReconcileConfig,
    produced: Path | None,
    claims: str | None,
    brokers: str | None,
    state: Path | None,
    asked: EngineName,
    engine: Engine,
) -> RunReport:
    values = {"--since": config.since, "--produced": produced, "--claims": claims, "--state": state}
    given = {name for name, value in values.items() if value is not None}
    require(asked, given, engine)
    try:
        from ackwise.spark.commands.lastcommits import commits_at, is_app
        from ackwise.spark.events.damage import without_damaged
        from ackwise.spark.events.sources import check_root, gathered, refuse_nothing
        from ackwise.spark.fold.cache import opened
        from ackwise.spark.job import reconcile as judge
        from ackwise.spark.judge.produced import produced_files
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"reconcile needs {error.name}, which is not installed: pip install 'ackwise[local]'") from error
    # A log that can't be rolled is read where it is, so a warning for each is left out.
    logging.getLogger("ackwise").addHandler(logging.NullHandler())
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    progress = Progress(to_stderr())
    progress("looking at the folders")
    for root in roots:
        check_root(root)
    if produced is not None:
        produced_files(produced)
    table = None if claims is None else _claim_table(claims)
    folder = out or roots[0] / "runs" / run_id
    try:
        if brokers is not None:
            progress("asking for the last commits")
        last = () if brokers is None else commits_at(brokers, roots)
        with _prepared(folder), nullcontext() if state is None else opened(state, roots) as known:
            progress("gathering the events")
            with gathered(roots, folder / ".live", () if known is None else known) as evidence:
                if known is None or not known.deltas():
                    refuse_nothing(evidence)
                chosen = computing(choose(asked, events_in(evidence.files), given, engine), engine)
                progress(f"{chosen.starting} {len(evidence.files)} files, {evidence.size / 1e6:.1f} MB")
                with _explained(chosen), chosen.begin(evidence, folder) as spark:
                    judged = partial(
                        judge,
                        spark,
                        out=folder,
                        run_id=run_id,
                        config=config,
                        produced=produced,
                        state=known,
                        claims=None if table is None else table.read(spark, progress),
                        last_commits=last,
                        engine=chosen.name,
                        app=next((name for name in (brokers, claims) if name is not None and is_app(name)), ""),
                        progress=progress,
                    )
                    damage: tuple[type[Exception], ...] = (*chosen.failures, OSError)
                    try:
                        report = judged(evidence)
                    except damage:
                        readable = without_damaged(evidence)
                        if readable is None:
                            raise
                        refuse_nothing(readable)
                        progress(f"judging again without {len(evidence.files) - len(readable.files)} damaged files")
                        report = judged(readable)
                    progress("done")
                    return report
    except OSError as error:
        raise AckwiseError(f"{error.filename or folder}: {error.strerror or error}; nothing was concluded") from error


@contextmanager
def _explained(chosen: Computing) -> Iterator[None]:
    try:
        yield
    except chosen.failures as error:
        raise AckwiseError(f"{chosen.explain(error)}; nothing was concluded") from error


def _claim_table(claims: str) -> ClaimTable:
    from ackwise.spark.claims.table import claim_table  # here, since it asks for the store's own package

    return claim_table(claims)


@contextmanager
def _prepared(folder: Path) -> Iterator[None]:
    """Make the folder to write to, and remove an earlier run's conclusions; after a failure, remove it if it is empty."""
    made: list[Path] = []
    try:
        made += [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in _OURS)
        if foreign:
            raise ConfigurationError(f"{folder} holds {foreign[0]!r}, which is not of an earlier run; give an empty folder to --out")
        for name in _CONCLUSIONS:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written ({error.strerror}); give another folder to --out") from error
    try:
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise
