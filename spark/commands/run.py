"""One run of the job over the folders of a command, with its files in a folder of its own."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.spark.commands.engines import Computing, choose, computing, need, require
from ackwise.spark.commands.options import EngineName
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.session.engine import Engine

if TYPE_CHECKING:
    from ackwise.spark.events.executors import Executors
    from ackwise.spark.frames import SparkSession
    from ackwise.spark.report.report import RunReport
    from ackwise.spark.storeclaims.comparison import Claims
    from ackwise.spark.storeclaims.table import ClaimTable

__all__ = ["Request", "check", "examine", "new_run_id", "run"]

#: The files of a run in its folder; all others belong to somebody else.
_OURS: Final = {
    "ranges", "verdicts", "logical", "missing", "produced", "claims", "plan.jsonl", ".plan.jsonl", "plan.progress.jsonl",
    "report.html", ".report.html", "summary.json", ".summary.json", ".live", ".reach",
}  # fmt: skip
#: The files of an earlier run that are removed before this one begins.
_CONCLUSIONS: Final = ("summary.json", "report.html", "plan.jsonl", "plan.progress.jsonl")


@dataclass(frozen=True, slots=True)
class Request:
    """What is judged, and by which engine: the options of a command."""

    roots: Sequence[Path]
    config: ReconcileConfig
    produced: Path | None
    claims: str | None
    brokers: str | None
    asked: EngineName
    engine: Engine
    begun: Callable[[EngineName, Engine], Computing] = computing
    """Returns the engine of this name."""


def new_run_id() -> str:
    """Return the name of a run; names sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def check(request: Request) -> None:
    """Raise `ConfigurationError` for what can't be judged, before anything is written."""
    require(request.asked, request.engine)
    try:
        from ackwise.spark.events.sources import check_root
        from ackwise.spark.judge.produced import produced_files
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"reconcile needs {error.name}, which is not installed: pip install 'ackwise[local]'") from error
    # A log that can't be rolled is read where it is, so a warning for each is left out.
    logging.getLogger("ackwise").addHandler(logging.NullHandler())
    for root in request.roots:
        check_root(root)
    if request.produced is not None:
        produced_files(request.produced)


def examine(request: Request, progress: Callable[[str], None]) -> Executors:
    """Check that Spark's executors have what they need. Raises `ConfigurationError`, which names what is missing."""
    try:
        from ackwise.spark.events.executors import check_executors
        from ackwise.spark.session.spark import local_session
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--check-cluster needs {error.name}, which is not installed: pip install 'ackwise[spark]'") from error
    from ackwise.spark.events.sources import exported

    files = [file for root in request.roots for file in exported(root).files]
    engine = request.engine
    progress(f"starting Spark on {engine.master}")
    with local_session(master=engine.master, driver_memory=engine.driver_memory, conf=engine.conf) as spark:
        progress("asking the executors")
        found = check_executors(spark, files)
    progress("done")
    return found


def run(request: Request, folder: Path, run_id: str, progress: Callable[[str], None]) -> RunReport:
    """Judge what was asked for, once; the results go to `folder`. Raises `AckwiseError` if nothing could be concluded."""
    from ackwise.spark.commands.lastcommits import commits_at, is_app
    from ackwise.spark.events.damage import without_damaged
    from ackwise.spark.events.sources import gathered, refuse_nothing
    from ackwise.spark.job import reconcile as judge

    roots = request.roots
    table = None if request.claims is None else _claim_table(request.claims)
    try:
        if request.brokers is not None:
            progress("asking for the last commits")
        last = () if request.brokers is None else commits_at(request.brokers, roots)
        with _prepared(folder):
            progress("gathering the events")
            with gathered(roots, folder / ".live") as evidence:
                refuse_nothing(evidence)
                chosen = request.begun(
                    choose(request.asked, need(evidence), shutil.disk_usage(folder).free, request.engine), request.engine
                )
                progress(f"{chosen.starting} {len(evidence.files)} files, {evidence.size / 1e6:.1f} MB")
                with _explained(chosen), chosen.begin(evidence, folder) as spark:
                    judged = partial(
                        judge,
                        spark,
                        out=folder,
                        run_id=run_id,
                        config=request.config,
                        produced=request.produced,
                        claims=None if table is None else _read(table, spark, progress),
                        last_commits=last,
                        engine=chosen.name,
                        app=next((name for name in (request.brokers, request.claims) if name is not None and is_app(name)), ""),
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
        raise AckwiseError(f"{_worded(error, folder)}; nothing was concluded") from error


def _worded(error: OSError, folder: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{error.filename or folder}: no space left on the device; make room there, or give another folder to --out"
    # Arrow puts names of its own functions into `strerror`.
    return f"{error.filename or folder}: {os.strerror(error.errno) if error.errno else error}"


@contextmanager
def _explained(chosen: Computing) -> Iterator[None]:
    try:
        yield
    except chosen.failures as error:
        raise AckwiseError(f"{chosen.explain(error)}; nothing was concluded") from error


def _claim_table(claims: str) -> ClaimTable:
    from ackwise.spark.storeclaims.table import claim_table  # here, since it asks for the store's own package

    return claim_table(claims)


def _read(table: ClaimTable, session: SparkSession, progress: Callable[[str], None]) -> Claims:
    progress(f"reading the claims in {table.address}")
    return table.read_here(session)


@contextmanager
def _prepared(folder: Path) -> Iterator[None]:
    """Make the folder to write to, and remove an earlier run's conclusions; after a failure, remove what was made."""
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
        if folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        for path in made[1:]:
            with suppress(OSError):
                path.rmdir()
        raise
