"""The folder of `--follow`: the last runs whole, each in a folder of its own, and the newest page and summary at one place.

    OUT/summary.json, OUT/report.html     of the last audit, replaced at once
    OUT/{run}/                            a run as without --follow; the last ones are kept, and those whose plan was begun
    OUT/told.json                         what a webhook took
    OUT/.lock

A table is never replaced: somebody may be reading it, or carrying out the plan beside it.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.follow.ranges import NONE, Findings, Kind
from ackwise.spark.report.report import PAGE, RunReport

__all__ = ["FollowFolder", "opened"]

#: Runs that are kept: a command that was copied from a page works for as many updates.
_KEPT: Final = 10
_RUN: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")
_SUMMARY: Final = "summary.json"
_TOLD: Final = "told.json"
_LOCK: Final = ".lock"
_OURS: Final = frozenset(name for each in (_SUMMARY, PAGE, _TOLD) for name in (each, f".{each}")) | {_LOCK}


@contextmanager
def opened(folder: Path) -> Iterator[FollowFolder]:
    """The folder, locked. Raises `ConfigurationError` if it can't be written, holds what is not ours, or another command follows there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in _OURS and not _RUN.fullmatch(path.name))
        if foreign:
            raise ConfigurationError(f"{folder} holds {foreign[0]!r}, which --follow has not written; give an empty folder to --out")
        lock = (folder / _LOCK).open("a")
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written ({error.strerror}); give another folder to --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"another command follows into {folder}; end it, or give another folder to --out") from None
        yield FollowFolder(folder)


class FollowFolder:
    """Where the results of each audit go."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def publish(self, report: RunReport) -> None:
        """Put page and summary of a run where people look, and remove runs that are no longer kept. Raises `OSError`."""
        for name in (PAGE, _SUMMARY):
            self._replace(name, (self.path / report.run_id / name).read_bytes())
        runs = sorted(path for path in self.path.iterdir() if _RUN.fullmatch(path.name))
        for run in runs[:-_KEPT]:
            if not (run / "plan.progress.jsonl").exists():
                shutil.rmtree(run, ignore_errors=True)

    def discard_unfinished(self) -> None:
        """Remove runs that did not come to their end."""
        for run in self.path.iterdir():
            if _RUN.fullmatch(run.name) and not (run / _SUMMARY).exists():
                shutil.rmtree(run, ignore_errors=True)

    def told(self) -> Findings:
        """Return what `keep_told` wrote; nothing if it can't be read, so that an alarm comes twice rather than never."""
        try:
            return {Kind(*kind): [(int(start), int(end)) for start, end in ranges] for kind, ranges in json.loads(self._read(_TOLD))}
        except (OSError, ValueError, TypeError, RecursionError):
            return NONE

    def keep_told(self, findings: Findings) -> None:
        """Write down what was told, for the next start. Raises `OSError`."""
        written: list[Any] = [[kind, ranges] for kind, ranges in findings.items()]
        self._replace(_TOLD, json.dumps(written).encode())

    def _read(self, name: str) -> str:
        return (self.path / name).read_text("utf-8")

    def _replace(self, name: str, content: bytes) -> None:
        unfinished = self.path / f".{name}"
        unfinished.write_bytes(content)
        unfinished.replace(self.path / name)
