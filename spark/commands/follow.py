"""`ackwise reconcile --follow`: the same audit again and again, on a terminal, and until a signal."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.console import to_stderr, to_stdout
from ackwise.spark.commands.collect import Source
from ackwise.spark.commands.engines import Computing, computing
from ackwise.spark.commands.options import EngineName, Format
from ackwise.spark.commands.run import Request, check, new_run_id, run
from ackwise.spark.commands.times import begin_of
from ackwise.spark.session.engine import Engine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ackwise.spark.events.sources import Evidence
    from ackwise.spark.follow.alarms import Change
    from ackwise.spark.frames import SparkSession
    from ackwise.spark.report.report import RunReport
    from ackwise.spark.topic.landing import Landing

__all__ = ["Stop", "follow"]

#: Seconds: more often, updates would only read what they have read.
_SHORTEST: Final = 1.0
_LONGEST: Final = 86_400.0


def follow(
    request: Request,
    out: Path | None,
    since: str | None,
    as_of: str | None,
    topic: str | None,
    client_config: Path | None,
    every: str,
    fail_fast: bool,
    webhook: str | None,
    metrics: Path | None,
    output: Format,
) -> int:
    """Audit until a signal, or with `fail_fast` until the first alarm, and return the exit code."""
    interval = _interval(every)
    if as_of is not None:
        raise ConfigurationError("--as-of is one time, and --follow judges as time goes on; leave one of them out")
    if output is Format.HTML:
        raise ConfigurationError("--follow prints lines: give --format tables or json; the page is report.html in the folder of --out")
    source = _source(topic, client_config, request)
    request = request if source is None else replace(request, asked=EngineName.SPARK)
    check(request)
    from ackwise.spark.follow.folder import opened
    from ackwise.spark.follow.following import Following
    from ackwise.spark.follow.metrics import Standing
    from ackwise.spark.follow.webhook import Webhook, url_of

    hook = None if webhook is None else Webhook(url_of(webhook))
    _check_metrics(metrics)
    teller = _Lines() if output is Format.JSON else _Terminal()
    with opened(out or request.roots[0] / "runs" / "follow") as folder, Stop() as stop, ExitStack() as sessions:
        folder.discard_unfinished()
        kept = _Kept(sessions, stop)
        request = replace(request, begun=kept.begun)
        following = Following(
            judge=partial(_judge, request, since, lambda: None if source is None else kept.land(source, request)),
            new_run_id=new_run_id,
            folder=folder,
            teller=teller,
            standing=Standing([str(root) for root in request.roots]),
            lateness=request.config.lateness,
            every=interval,
            fail_fast=fail_fast,
            webhook=hook,
            metrics_file=metrics,
        )
        to_stderr().print(f"audit every {interval:g} s in {folder.path}, until Ctrl-C", markup=False, soft_wrap=True)
        return int(following.follow(stop.wait))


def _source(topic: str | None, client_config: Path | None, request: Request) -> Source | None:
    if topic is None:
        if client_config is not None:
            raise ConfigurationError("--client-config is for --topic; add that, or leave --client-config out")
        return None
    if request.asked is EngineName.LOCAL:
        raise ConfigurationError("the local engine has no --topic; leave it out, or give --engine spark")
    source = Source.of(topic, client_config)
    try:
        source.check(request.roots[0])
        (request.roots[0] / "events").mkdir(exist_ok=True)  # until the first are there
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or request.roots[0]} can't be written ({error.strerror}); give another folder"
        ) from error
    return source


def _judge(request: Request, since: str | None, fetch: Callable[[], object], folder: Path, run_id: str) -> RunReport:
    """Judge once, after what is new was fetched. A duration in `since` is counted back from each update."""
    fetch()
    config = request.config if since is None else replace(request.config, since=begin_of(since, None))
    return run(replace(request, config=config), folder, run_id, lambda step: None)


def _interval(every: str) -> float:
    found = parse_duration(every, what="--every")
    if not _SHORTEST <= found <= _LONGEST:
        raise ConfigurationError(f"--every is {every!r}; it must be from 1s to 1d")
    return found


def _check_metrics(path: Path | None) -> None:
    from ackwise.spark.follow.metrics import check as check_file

    if path is None:
        return
    try:
        check_file(path)
    except OSError as error:
        raise ConfigurationError(f"--metrics {path} can't be written ({error.strerror}); give a file in a folder that is there") from error


class Stop:
    """SIGINT and SIGTERM end the waiting, and an update that is under way comes to its end. A second one is as without this."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self._before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        self.arm()
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        os.close(self._read)
        os.close(self._write)

    def arm(self) -> None:
        """Take the signals, also from Spark, which sets a handler of its own when it begins."""
        if not self.wait(0):
            for each in self._before:
                signal.signal(each, self._take)

    def wait(self, seconds: float) -> bool:
        """Wait so many seconds, or until a signal has come; return whether one has."""
        return bool(select.select([self._read], [], [], seconds)[0])

    def _take(self, *_: object) -> None:
        os.write(self._write, b".")
        for each, handler in self._before.items():
            signal.signal(each, handler)


class _Kept:
    """Spark, which starts with the first update that needs it and ends with the command."""

    def __init__(self, sessions: ExitStack, stop: Stop) -> None:
        self._sessions = sessions
        self._stop = stop
        self._spark: SparkSession | None = None

    def land(self, source: Source, request: Request) -> Landing:
        """Land what a topic has beyond what was landed before. Raises `AckwiseError` and `OSError`."""
        return source.land(self._started(request.engine), request.roots[0], lambda step: None)

    def begun(self, name: EngineName, engine: Engine) -> Computing:
        """Return the engine of this name, which finds Spark started."""
        found = computing(name, engine)
        return found._replace(begin=partial(self._begin, found, engine)) if name is EngineName.SPARK else found

    def _begin(self, found: Computing, engine: Engine, evidence: Evidence, folder: Path) -> AbstractContextManager[SparkSession]:
        self._started(engine)
        return found.begin(evidence, folder)

    def _started(self, engine: Engine) -> SparkSession:
        from ackwise.spark.session.spark import local_session

        if self._spark is None:
            started = local_session(master=engine.master, driver_memory=engine.driver_memory, conf=engine.conf)
            self._spark = self._sessions.enter_context(started)
            self._stop.arm()
        return self._spark


class _Terminal:
    """A line for each update, and one for each kind of findings that is new or gone."""

    def audited(self, report: RunReport, change: Change, now: float, took: float) -> None:
        from ackwise.spark.follow.words import headline, sentences

        console, colour = to_stdout(), {0: "green", 1: "red"}.get(int(report.exit_code), "yellow")
        console.print(f"{_clock(now)}  {headline(report, now)}; took {took:.1f} s", style=colour, markup=False, soft_wrap=True)
        for sentence in sentences(change):
            console.print(f"  {sentence}", markup=False, soft_wrap=True)
        if change:
            console.print(f"  report: {report.page}", markup=False, soft_wrap=True)

    def failed(self, sentence: str) -> None:
        import time

        to_stderr().print(f"{_clock(time.time())}  {sentence}", style="red", markup=False, soft_wrap=True)


class _Lines:
    """A JSON object on a line for each update."""

    def audited(self, report: RunReport, change: Change, now: float, took: float) -> None:
        from ackwise.spark.follow.words import as_json

        typer.echo(json.dumps({"at": round(now, 3), "took": round(took, 3), **as_json(report, change)}))

    def failed(self, sentence: str) -> None:
        typer.echo(json.dumps({"error": sentence}))


def _clock(now: float) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(now, UTC):%H:%M:%S}"
