"""The state folder: what earlier runs folded from the event files, so that each file is read once.

    STATE/state.json                                      what it is of, and in which format
    STATE/src_dt=2026-01-01/{delta}/files.json            the files of that day that the delta is folded from
    STATE/src_dt=2026-01-01/{delta}/{frame}/*.parquet     see `delta`
    STATE/src_dt=2026-01-01/{delta}/messages/rec_dt=…/    the messages, by the day of their record

A delta appears whole, by one rename, and is never changed. The day in `src_dt` is that of the folder that the files are in.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.delta import FRAMES, Delta, FoldedDeltas, delta_of, empty_delta, together
from ackwise.spark.fold import REASONS
from ackwise.spark.folded import Folded
from ackwise.spark.schema import project
from ackwise.spark.sources import Evidence, read_events

__all__ = ["State", "brought_up", "opened"]

#: Changes with whatever is kept in a delta. Reasons are kept as numbers.
_FORMAT: Final = {"format": 1, "reasons": sorted(REASONS)}
_ABOUT: Final = "state.json"
_FILES: Final = "files.json"
_UNFINISHED: Final = ".unfinished"
_DAY: Final = re.compile(r"dt=(\d{4}-\d{2}-\d{2})")
_NO_DAY: Final = "none"


@dataclass(frozen=True, slots=True)
class State:
    """A state folder that nobody else writes to."""

    folder: Path

    def lacking(self, files: Sequence[Path]) -> dict[str, list[Path]]:
        """The files that no delta is folded from, by day. One whose size has changed since is among them."""
        known = {name for delta in self.deltas() for name in json.loads((delta / _FILES).read_text())}
        lacking: dict[str, list[Path]] = defaultdict(list)
        for path in files:
            if _name(path) not in known:
                lacking[_day(path)].append(path)
        return dict(sorted(lacking.items()))

    def take(self, delta: Delta, day: str, files: Sequence[Path]) -> None:
        """Write a delta folded from `files`: whole or, if this is cut short, not at all."""
        names = sorted({_name(path) for path in files})
        key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        unfinished = self.folder / _UNFINISHED
        if unfinished.exists():
            shutil.rmtree(unfinished)
        for name in FRAMES:
            frame, days = getattr(delta, name), []
            if name == "messages":
                frame, days = frame.withColumn("rec_dt", F.to_date(F.timestamp_micros("record_ts"))), ["rec_dt"]
            frame.write.partitionBy(*days).parquet(str(unfinished / name))
        (unfinished / _FILES).write_text(json.dumps(names))
        place = self.folder / f"src_dt={day}" / key
        place.parent.mkdir(exist_ok=True)
        unfinished.rename(place)

    def read(self, spark: SparkSession) -> Delta:
        """All deltas as one."""
        empty, deltas = empty_delta(spark), self.deltas()
        return Delta(**{name: _read(spark, getattr(empty, name), _places(deltas, name)) for name in FRAMES})

    def deltas(self) -> list[Path]:
        """The folders of the deltas, oldest day first."""
        return sorted(path.parent for path in self.folder.glob(f"src_dt=*/*/{_FILES}"))


@contextmanager
def opened(folder: Path, roots: Sequence[Path]) -> Iterator[State]:
    """The state of these roots, made if there is none, for nobody else until the end.

    Raises `ConfigurationError` if it is of other roots or of another version, or in use, and `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder)
        _claim(folder, [str(root.resolve()) for root in roots])
        yield State(folder)
    finally:
        os.close(descriptor)


def brought_up(spark: SparkSession, state: State, evidence: Evidence, progress: Callable[[str], None] = lambda step: None) -> Folded:
    """Fold the files that the state lacks, a day at a time, and answer what all of them say.

    Logs that are still written are judged and not kept: their events come in files later.
    """
    places = [root / "events" for root in evidence.roots]
    kept = [path for path in evidence.files if any(path.is_relative_to(place) for place in places)]
    for day, files in state.lacking(kept).items():
        progress(f"folding {len(files)} new files of {day}")
        state.take(_folded(spark, evidence, files), day, files)
    live = sorted(set(evidence.files) - set(kept))
    deltas = [state.read(spark), *([_folded(spark, evidence, live)] if live else [])]
    return FoldedDeltas(spark, together(deltas))


def _folded(spark: SparkSession, evidence: Evidence, files: Sequence[Path]) -> Delta:
    return delta_of(spark, project(read_events(spark, replace(evidence, files=tuple(files)))))


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"another run uses {folder}; wait for its end, or give another folder to --state") from None


def _claim(folder: Path, roots: Sequence[str]) -> None:
    """See that the state is of these roots, of which there may be more now, and note them."""
    about = folder / _ABOUT
    if about.exists():
        said = _parsed(about)
        if {name: said.get(name) for name in _FORMAT} != _FORMAT:
            raise ConfigurationError(f"{folder} was written by another version of Ackwise; give an empty folder to --state")
        left_out = sorted(set(said["roots"]) - set(roots))
        if left_out:
            raise ConfigurationError(f"{folder} is the state of {left_out[0]}, too; give that folder as well, or another one to --state")
    elif strangers := sorted(path.name for path in folder.iterdir()):
        raise ConfigurationError(f"{folder} holds {strangers[0]!r} and is no state; give an empty folder to --state")
    unfinished = folder / f".{_ABOUT}"
    unfinished.write_text(json.dumps({**_FORMAT, "roots": sorted(roots)}))
    unfinished.replace(about)


def _parsed(about: Path) -> Mapping[str, Any]:
    try:
        said = json.loads(about.read_text())
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ConfigurationError(f"{about} is not what Ackwise wrote there; give an empty folder to --state")
    return said


def _name(path: Path) -> str:
    """By what a file is known: whose events are in it, which, and how many bytes they take."""
    return f"{path.name} {path.stat().st_size}"


def _day(path: Path) -> str:
    return next((found[1] for part in path.parts if (found := _DAY.fullmatch(part))), _NO_DAY)


def _places(deltas: Sequence[Path], name: str) -> list[Path]:
    folders = [delta / name for delta in deltas]
    return folders if name != "messages" else [day for folder in folders for day in sorted(folder.glob("rec_dt=*"))]


def _read(spark: SparkSession, empty: DataFrame, places: Sequence[Path]) -> DataFrame:
    if not places:
        return empty
    return spark.read.option("__globPaths__", "false").schema(empty.schema).parquet(*map(str, places))
