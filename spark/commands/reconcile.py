"""`ackwise reconcile`: judges the events below one or more folders, prints the result and writes a page."""

from __future__ import annotations

import enum
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.spark.commands.times import begin_of, time_of
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.session.engine import HEAP, LOCAL, Engine, engine_of

if TYPE_CHECKING:
    from ackwise.spark.claims.table import ClaimTable
    from ackwise.spark.report.report import RunReport

__all__ = ["reconcile"]

#: What a run leaves in its folder. Anything else there is somebody else's.
_OURS: Final = {
    "verdicts", "logical", "missing", "produced", "claims", "plan.jsonl", ".plan.jsonl", "plan.progress.jsonl",
    "report.html", ".report.html", "summary.json", ".summary.json", ".live", ".reach",
}  # fmt: skip
#: As many messages as fit into the driver with all their events.
_MOST_SAMPLED: Final = 100_000
#: What must not be left of an earlier run while this one has not ended.
_CONCLUSIONS: Final = ("summary.json", "report.html", "plan.jsonl", "plan.progress.jsonl")


class Format(enum.StrEnum):
    """The form in which `reconcile` prints; the files of a run are the same."""

    TABLES = "tables"
    JSON = "json"
    HTML = "html"


def reconcile(
    events: Annotated[
        list[Path],
        # Not checked by typer, whose answer to a folder that may not be read is not a sentence.
        typer.Argument(metavar="EVENTS", help="The folders that [bold]Events[/bold] was given.", show_default=False, readable=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where report.html, summary.json and the tables go. Default: runs/ in the first folder.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Judge as of this ISO 8601 time. Default: what the events tell.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|DURATION",
            help="Judge only what has happened since, and what was open then; a duration is counted back from --as-of, or from now.",
        ),
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How late a retry or a lease may be before it counts as lost or stuck.")
    ] = "1m",
    lateness: Annotated[
        str, typer.Option(metavar="DURATION", help="How late events may come to the folders; anomalies that are younger are provisional.")
    ] = "0s",
    writer_timeout: Annotated[str, typer.Option(metavar="DURATION", help="A writer that is silent for longer is dead.")] = "10m",
    lease: Annotated[str | None, typer.Option(metavar="DURATION", help="The lease of Dedup. Default: what the workers wrote.")] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long Dedup remembers a key. Default: what the workers wrote.")
    ] = None,
    produced: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="What was produced, as Parquet or JSON: says what was lost on the way, or never sent."),
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(metavar="URL|MODULE:APP", help="Compare with the claims in a PostgreSQL store: its URL, or the app that uses it."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep there what is folded from the events, so that each file is folded once."),
    ] = None,
    verify_sample: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=_MOST_SAMPLED, help="Judge N messages once more, by other means; a difference fails the run."),
    ] = 0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 also if messages were run again, or may have been, and no verdict says so, or if nobody produced them.",
        ),
    ] = False,
    plan_provisional: Annotated[
        bool, typer.Option("--plan-provisional", help="Put anomalies that events may still mend into the repair plan, too.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="What is printed: tables, summary.json, or the page.")] = Format.TABLES,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    master: Annotated[str, typer.Option(help="The Spark master.")] = LOCAL,
    driver_memory: Annotated[str, typer.Option(help="The driver's heap.")] = HEAP,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Configuration of Spark, such as spark.executor.memory=4g; repeatable.")
    ] = None,
) -> None:
    """Prove from the exported events what became of every message: as tables, and as a page whose path is printed last.

    Where a worker died before it could say whether it had run a message, nobody can prove that it ran once: such messages
    are counted and listed as in doubt.

    Exit code 0: no anomaly. 1: anomalies; with --strict also messages in doubt. 2: it could not be done. 3: no anomaly, but
    events are missing that could show one.
    """
    config = ReconcileConfig(
        as_of=None if as_of is None else time_of(as_of),
        since=None if since is None else begin_of(since, as_of),
        grace=parse_duration(grace, what="--grace"),
        lateness=parse_duration(lateness, what="--lateness"),
        writer_timeout=parse_duration(writer_timeout, what="--writer-timeout"),
        lease=None if lease is None else parse_duration(lease, what="--lease"),
        retention=None if retention is None else parse_duration(retention, what="--retention"),
        verify_sample=verify_sample,
        strict=strict,
        plan_provisional=plan_provisional,
    )
    report = _run(events, out, config, produced, claims, state, engine_of(master, driver_memory, conf or ()))
    _print(report, Format.JSON if as_json else output)
    raise typer.Exit(int(report.exit_code))


def _print(report: RunReport, output: Format) -> None:
    match output:
        case Format.HTML:
            typer.echo(Path(report.page).read_text("utf-8"), nl=False)
        case Format.JSON:
            from ackwise.spark.report.report import to_json

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
    state: Path | None,
    engine: Engine,
) -> RunReport:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
        from pyspark.errors import PySparkException

        from ackwise.spark.events.reach import require_reach
        from ackwise.spark.events.sources import check_root, gathered, refuse_nothing
        from ackwise.spark.fold.cache import opened
        from ackwise.spark.job import reconcile as judge
        from ackwise.spark.judge.produced import produced_files
        from ackwise.spark.session.spark import explain, local_session
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"reconcile needs {error.name}, which is not installed: pip install 'ackwise[spark]'") from error
    # A log that can't be rolled is read where it is, so nobody has to be told of each.
    logging.getLogger("ackwise").addHandler(logging.NullHandler())
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    started = time.monotonic()
    console = to_stderr()

    def progress(step: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s  {step}[/]")

    for root in roots:
        check_root(root)
    if produced is not None:
        produced_files(produced)
    table = None if claims is None else _claim_table(claims)
    folder = out or roots[0] / "runs" / run_id
    try:
        with _prepared(folder), nullcontext() if state is None else opened(state, roots) as known:
            progress("gathering the events")
            with gathered(roots, folder / ".live") as evidence:
                if known is None or not known.deltas():
                    refuse_nothing(evidence)
                progress(f"starting Spark for {len(evidence.files)} files, {evidence.size / 1e6:.1f} MB")
                with local_session(evidence.size, master=engine.master, driver_memory=engine.driver_memory, conf=engine.conf) as spark:
                    require_reach(spark, evidence.files, folder)
                    return judge(
                        spark,
                        evidence,
                        out=folder,
                        run_id=run_id,
                        config=config,
                        produced=produced,
                        state=known,
                        claims=None if table is None else table.read(spark, progress),
                        progress=progress,
                    )
    except OSError as error:
        raise AckwiseError(f"{error.filename or folder}: {error.strerror or error}; nothing was concluded") from error
    except (PySparkException, Py4JError) as error:
        raise AckwiseError(f"Spark failed: {explain(error)}; nothing was concluded") from error


def _claim_table(claims: str) -> ClaimTable:
    from ackwise.spark.claims.table import claim_table  # here, since it asks for the store's own package

    return claim_table(claims)


@contextmanager
def _prepared(folder: Path) -> Iterator[None]:
    """Makes the folder to write to, without the conclusions of an earlier run; if nothing comes of it, no empty one is left."""
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
