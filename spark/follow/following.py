"""`Following`: the audit again and again, until it is stopped. One that fails does not stop the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.spark.events.sources import NoEvents
from ackwise.spark.follow import metrics
from ackwise.spark.follow.alarms import Change, Patience, Red, Told
from ackwise.spark.follow.folder import FollowFolder
from ackwise.spark.follow.ranges import Findings
from ackwise.spark.follow.red import red_of
from ackwise.spark.follow.webhook import Undelivered, Webhook
from ackwise.spark.follow.words import as_json, headline, sentences
from ackwise.spark.report.report import RunReport
from ackwise.spark.vocabulary import ExitCode

__all__ = ["Following", "Teller"]


class Teller(Protocol):
    """Whoever watches: a terminal, or a program that reads lines of JSON."""

    def audited(self, report: RunReport, change: Change, now: float, took: float) -> None:
        """Show the result of an audit; the times are seconds."""
        ...

    def failed(self, sentence: str) -> None:
        """Show what went wrong."""
        ...


@dataclass
class Following:
    """Audits at a fixed interval, in seconds, and reports what is new. `judge` audits once, in the folder of a run."""

    judge: Callable[[Path, str], RunReport]
    new_run_id: Callable[[], str]
    folder: FollowFolder
    teller: Teller
    standing: metrics.Standing
    lateness: float
    every: float
    fail_fast: bool = False
    webhook: Webhook | None = None
    metrics_file: Path | None = None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    last: RunReport | None = None
    """The last audit."""
    _told: Told = field(default_factory=Told)
    _delivered: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        self._patience = Patience(self.lateness)
        self._delivered = Told(self.folder.told())

    def follow(self, wait: Callable[[float], bool]) -> ExitCode:
        """Audit until `wait`, given seconds, returns True. Return the exit code of the last audit.

        Raises `ConfigurationError` if the first audit can't be done as things are, and `AckwiseError` if none was ever done.
        """
        while True:
            began = self.clock()
            is_alarm = self._update(began)
            if (is_alarm and self.fail_fast) or wait(max(0.0, self.every - (self.clock() - began))):
                return self._exit_code()

    def _update(self, began: float) -> bool:
        """Audit once; return whether there is a new finding that is red."""
        run_id = self.new_run_id()
        try:
            report = self.judge(self.folder.path / run_id, run_id)
            red = red_of(report)
            self.folder.publish(report)
        except (AckwiseError, OSError) as error:
            shutil.rmtree(self.folder.path / run_id, ignore_errors=True)
            if self.last is None and isinstance(error, ConfigurationError) and not isinstance(error, NoEvents):
                raise  # no later update could do better
            self._fail(error)
            return False
        self.last = report
        due = self._patience.due(red, began)
        change = self._told.change(red, due)
        self._told.take(change)
        self.teller.audited(report, change, self.now(), self.clock() - began)
        self._count(report, change)
        self._deliver(report, red, due)
        self._write_metrics()
        return bool(change.new)

    def _fail(self, error: AckwiseError | OSError) -> None:
        self.standing.failed += 1
        kept = "none has succeeded yet" if self.last is None else f"the last is {round(self.now() - self.standing.updated)} s old"
        self.teller.failed(f"audit failed, {kept}: {_worded(error)}; next try in {self.every:g} s")
        self._write_metrics()

    def _count(self, report: RunReport, change: Change) -> None:
        standing = self.standing
        standing.updated, standing.as_of, standing.failed = self.now(), report.as_of / 1e6, 0
        standing.exit_code, standing.anomalies, standing.verdicts = int(report.exit_code), report.anomalies, report.verdicts
        standing.alarms += bool(change.new)

    def _deliver(self, report: RunReport, red: Red, due: Findings) -> None:
        """Post what the webhook has not taken yet. What it does not take is in the post of the next update."""
        if self.webhook is None:
            return
        change = self._delivered.change(red, due)
        try:
            if change:
                self.webhook.post(_payload(report, change, self.now()))
                self._delivered.take(change)
                self.folder.keep_told(self._delivered.findings)
            self.standing.undelivered = False
        except Undelivered as error:
            self.standing.undelivered = True
            self.teller.failed(f"the alarm was not delivered: {error}; next try in {self.every:g} s")
        except OSError as error:
            self.teller.failed(f"the alarm was delivered, and comes again after a restart: {_worded(error)}")

    def _write_metrics(self) -> None:
        if self.metrics_file is None:
            return
        try:
            metrics.write(self.metrics_file, self.standing)
        except OSError as error:
            self.teller.failed(f"the metrics were not written: {_worded(error)}")

    def _exit_code(self) -> ExitCode:
        if self.last is None:
            raise AckwiseError("no audit was done")
        # An audit that could not be renewed proves nothing of what came after it.
        is_stale = self.standing.failed > 0 and self.last.exit_code is ExitCode.CLEAN
        return ExitCode.INCONCLUSIVE if is_stale else self.last.exit_code


def _payload(report: RunReport, change: Change, now: float) -> dict[str, Any]:
    """Return an alarm: the fields of an update, and `text`, by which chats show it."""
    lines = [f"ackwise reconcile {', '.join(report.roots)}: {headline(report, now)}", *sentences(change), f"report: {report.page}"]
    return {"text": "\n".join(lines), "roots": list(report.roots), **as_json(report, change)}


def _worded(error: AckwiseError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return str(error)
