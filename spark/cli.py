"""`ackwise reconcile`: judges the events below one or more folders and prints what it found."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.spark.config import ReconcileConfig

if TYPE_CHECKING:
    from ackwise.spark.report import RunReport

__all__ = ["reconcile"]

#: What a run leaves in its folder. Anything else there is somebody else's.
_OURS: Final = {"verdicts", "logical", "missing", "summary.json", ".summary.json", ".live"}


def reconcile(
    events: Annotated[
        list[Path], typer.Argument(metavar="EVENTS...", help="The folders that [bold]Events[/bold] was given.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Where the tables and summary.json go. Default: runs/ in the first folder.")] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="Judge as of this ISO 8601 time. Default: what the events tell.")
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How late a retry or a lease may be before it counts as lost or stuck.")
    ] = "1m",
    writer_timeout: Annotated[str, typer.Option(metavar="DURATION", help="A writer that is silent for longer is dead.")] = "10m",
    lease: Annotated[str | None, typer.Option(metavar="DURATION", help="Default: what the sessions say.")] = None,
    retention: Annotated[str | None, typer.Option(metavar="DURATION", help="Default: what the sessions say.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of tables.")] = False,
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[*]",
    driver_memory: Annotated[str, typer.Option(help="The driver's heap.")] = "2g",
) -> None:
    """Prove from the exported events what became of every message.

    Exit code 0: clean. 1: anomalies. 2: it could not be done. 3: no anomaly, but events are missing that could show one.
    """
    config = ReconcileConfig(
        as_of=None if as_of is None else _time(as_of),
        grace=parse_duration(grace, what="--grace"),
        writer_timeout=parse_duration(writer_timeout, what="--writer-timeout"),
        lease=None if lease is None else parse_duration(lease, what="--lease"),
        retention=None if retention is None else parse_duration(retention, what="--retention"),
    )
    report = _run(events, out, config, master, driver_memory)
    if as_json:
        from ackwise.spark.report import to_json

        typer.echo(to_json(report))
    else:
        from ackwise.spark.tables import show

        show(report, Console())
    raise typer.Exit(int(report.exit_code))


def _run(roots: Sequence[Path], out: Path | None, config: ReconcileConfig, master: str, driver_memory: str) -> RunReport:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
        from pyspark.errors import PySparkException

        from ackwise.spark.job import reconcile as judge
        from ackwise.spark.session import explain, local_session
        from ackwise.spark.sources import gathered
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"reconcile needs {error.name}, which is not installed: pip install 'ackwise[spark]'") from error
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder = _prepared(out or roots[0] / "runs" / run_id, roots)
    started = time.monotonic()
    console = Console(stderr=True)

    def progress(step: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s  {step}[/]", highlight=False)

    try:
        progress("gathering the events")
        with gathered(roots, folder / ".live") as evidence:
            progress(f"starting Spark for {len(evidence.files)} files, {evidence.size / 1e6:.1f} MB")
            with local_session(evidence.size, master=master, driver_memory=driver_memory) as spark:
                return judge(spark, evidence, out=folder, run_id=run_id, config=config, progress=progress)
    except OSError as error:
        raise AckwiseError(f"{error.filename or folder}: {error.strerror or error}; nothing was concluded") from error
    except (PySparkException, Py4JError) as error:
        raise AckwiseError(f"Spark failed: {explain(error)}; nothing was concluded") from error


def _prepared(folder: Path, roots: Sequence[Path]) -> Path:
    """The folder to write to, made if it is not there and without the summary of an earlier run."""
    for root in roots:
        if not root.is_dir():
            raise ConfigurationError(f"{root} is not a folder; give the folder that Events was given")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = sorted(path.name for path in folder.iterdir() if path.name not in _OURS)
        if strangers:
            raise ConfigurationError(f"{folder} holds {strangers[0]!r}, which is not of an earlier run; give an empty folder to --out")
        (folder / "summary.json").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written ({error.strerror}); give another folder to --out") from error
    return folder


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--as-of is {text!r}, which is no time; write it as 2026-01-31T12:00:00Z") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
