"""The state folder of `--state`: partial folds of the event files, so that each file is read once.

    STATE/state.json                                      what it is of, and in which format
    STATE/src_dt=2026-01-01/{delta}/files.json            the files of that day that the delta is folded from
    STATE/src_dt=2026-01-01/{delta}/{frame}/*.parquet     see `partial`
    STATE/src_dt=2026-01-01/{delta}/messages/rec_dt=…/    the messages, by the day of their record
    STATE/open-{deltas}/                                  those that had no outcome yet by all these deltas

A delta appears whole, by one rename, and is never changed. The day in `src_dt` is that of the folder that the files are in.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.events.schema import project
from ackwise.spark.events.sources import Evidence, read_events
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.folded import Horizon
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import REASONS, claimed_successes_of, merge, outcomes_of, told_of
from ackwise.spark.fold.partial import FRAMES, Delta, FoldedDeltas, delta_of, empty_delta, together
from ackwise.spark.fold.written import written_in
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.instants import as_datetime
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import ENDED
from ackwise.stores.journal.layout import sync_directory

__all__ = ["FoldedState", "State", "brought_up", "evidence_since", "opened"]

#: Changes with what is kept in a delta. Reasons are kept as numbers, which are their places in the list.
_FORMAT: Final[dict[str, Any]] = {"format": 4, "reasons": list(REASONS)}
_ABOUT: Final = "state.json"
_FILES: Final = "files.json"
_UNFINISHED: Final = ".unfinished"
_MESSAGES: Final = "messages"
_OPEN: Final = "open-"
_DAY: Final = re.compile(r"dt=(\d{4}-\d{2}-\d{2})")
_NO_DAY: Final = "none"

_Kind = TypeVar("_Kind", list[str], dict[str, Any])


@dataclass(frozen=True)
class State:
    """A state folder, locked by this run."""

    folder: Path

    def __contains__(self, path: object) -> bool:
        """Whether a file is in a delta, by its name and size."""
        return isinstance(path, Path) and _name(path) in self._known

    @cached_property
    def _known(self) -> set[str]:
        """The files that were in deltas when it was first asked."""
        return {name for delta in self.deltas() for name in _written(delta / _FILES, list)}

    def lacking(self, files: Sequence[Path]) -> dict[str, list[Path]]:
        """Return the files that are in no delta yet, by day. One whose size has changed since is among them."""
        known = {name for delta in self.deltas() for name in _written(delta / _FILES, list)}
        lacking: dict[str, list[Path]] = defaultdict(list)
        for path in files:
            if _name(path) not in known:
                lacking[_day(path)].append(path)
        return dict(sorted(lacking.items()))

    def take(self, delta: Delta, day: str, files: Sequence[Path]) -> None:
        """Write a delta folded from `files`: the whole of it or, if this is cut short, nothing."""
        names = sorted({_name(path) for path in files})
        place = self.folder / f"src_dt={day}" / _key(names)
        place.parent.mkdir(exist_ok=True)
        with self._whole(place) as unfinished:
            for name in FRAMES:
                frame = getattr(delta, name)
                if name == _MESSAGES:
                    record_day = F.to_date(F.timestamp_micros("record_ts"))
                    frame.withColumn("rec_dt", record_day).write.partitionBy("rec_dt").parquet(str(unfinished / name), compression="zstd")
                else:
                    frame.write.parquet(str(unfinished / name), compression="zstd")
            (unfinished / _FILES).write_text(json.dumps(names))

    def read(self, spark: SparkSession) -> Delta:
        """Return all deltas as one."""
        empty, deltas = empty_delta(spark), self.deltas()
        frames = {name: _read(spark, getattr(empty, name), [delta / name for delta in deltas]) for name in FRAMES if name != _MESSAGES}
        return Delta(messages=_read(spark, empty.messages, _days(deltas)), **frames)

    def read_messages(self, spark: SparkSession, since: int, oldest: int) -> DataFrame:
        """Return the states of open and of recent messages, and perhaps of more. Times are microseconds.

        Recent: the record is from `oldest` on, or of a day that the events since `since` are about.
        """
        known = self._open()
        if known is None:
            return self.read(spark).messages
        deltas, covered = self.deltas(), set(json.loads((known / _FILES).read_text()))
        recent = [delta for delta in deltas if delta.parent.name >= f"src_dt={_date(since)}" or _delta_name(delta) not in covered]
        days = {day.name for day in _days(recent)}
        places = [day for day in _days(deltas) if day.name in days or day.name >= f"rec_dt={_date(oldest)}"]
        return _read(spark, empty_delta(spark).messages, [known / _MESSAGES, *places])

    def keep_open(self, states: DataFrame) -> None:
        """Write down the states of all messages that are open by the deltas that there are, for `read_messages`."""
        names = [_delta_name(delta) for delta in self.deltas()]
        before = sorted(self.folder.glob(f"{_OPEN}*"))
        place = self.folder / f"{_OPEN}{_key(names)}"
        if place not in before:
            with self._whole(place) as unfinished:
                states.write.parquet(str(unfinished / _MESSAGES))
                (unfinished / _FILES).write_text(json.dumps(names))
        for earlier in before:
            if earlier != place:
                shutil.rmtree(earlier)

    def deltas(self) -> list[Path]:
        """Return the folders of the deltas, oldest day first."""
        return sorted(path.parent for path in self.folder.glob(f"src_dt=*/*/{_FILES}"))

    def _open(self) -> Path | None:
        return max(self.folder.glob(f"{_OPEN}*"), key=lambda path: path.stat().st_mtime_ns, default=None)

    @contextmanager
    def _whole(self, place: Path) -> Iterator[Path]:
        """Yield a folder to fill, which becomes `place` once it is durable: its files may be deleted then.

        Each has a new name: a Spark that outlived its run may still write to an earlier one.
        """
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)
        unfinished = self.folder / f"{_UNFINISHED}-{secrets.token_hex(4)}"
        unfinished.mkdir()
        yield unfinished
        _sync(unfinished)
        unfinished.rename(place)
        sync_directory(place.parent)


class FoldedState:
    """The fold of a state folder and of the logs that are still written. `kept` has the states that were read last."""

    def __init__(self, spark: SparkSession, state: State, live: Sequence[Delta]) -> None:
        known = state.read(spark)
        self._spark, self._state = spark, state
        self._delta = together([known, *live])
        self._all = FoldedDeltas(spark, self._delta)
        self.kept = known.messages
        self._untaken = [delta.messages for delta in live]

    @property
    def survey(self) -> DataFrame:
        return self._all.survey

    @property
    def steps(self) -> DataFrame:
        return self._all.steps

    @property
    def seen(self) -> DataFrame:
        return self._all.seen

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        return self._all.holes(writers)

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        return self._all.around(holes)

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        if horizon is not None:
            oldest = self._oldest(horizon)
            self.kept = self._state.read_messages(self._spark, horizon.since, horizon.since if oldest is None else oldest)
        return merge(self._read, live_writers, mute)

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        return outcomes_of(self._read, writers)

    def told(self, writers: Collection[int]) -> DataFrame:
        return told_of(self._read, writers)

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        return claimed_successes_of(self._read, messages)

    @property
    def _read(self) -> DataFrame:
        """The states that were read last, and those of the logs that are still written."""
        return reduce(lambda rows, more: rows.unionByName(more), [self.kept, *self._untaken])

    @property
    def copies(self) -> DataFrame:
        return self._all.copies

    @property
    def cached(self) -> Sequence[DataFrame]:
        return ()

    @property
    def outgoing(self) -> DataFrame:
        return self._all.outgoing

    def keep_open(self, judged: DataFrame) -> None:
        """Write down which messages are open, once all are judged.

        A message whose outcome is only in a log that is still written counts as open: the log may be lost.
        """
        still = judged.where(~F.col("verdict").isin(*map(int, sorted(ENDED))))
        keys = reduce(lambda rows, more: rows.unionByName(more), [frame.select("mk", "offset") for frame in (still, *self._untaken)])
        self._state.keep_open(self.kept.join(keys, ["mk", "offset"], "left_semi"))

    def _oldest(self, horizon: Horizon) -> int | None:
        """Return the time of the first record beyond the last commits."""
        passed = rows_of(self._spark, horizon.resumed.items(), "pk long, resumed long")
        known = self._delta.tracks.join(F.broadcast(passed), "pk", "left")
        ahead = F.coalesce(F.col("word") >= F.shiftright("resumed", 6), F.lit(True))
        (row,) = known.where("seen != 0").where(ahead).agg(F.min("oldest").alias("oldest")).collect()
        return None if row["oldest"] is None else int(row["oldest"])


@contextmanager
def opened(folder: Path, roots: Sequence[Path]) -> Iterator[State]:
    """Open the state of these roots, locked until the end; a missing one is made.

    Raises `ConfigurationError` if it is of other roots, of another version, or in use, and `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder)
        _claim(folder, [str(root.resolve()) for root in roots])
        yield State(folder)
    finally:
        os.close(descriptor)


def brought_up(spark: SparkSession, state: State, evidence: Evidence, progress: Callable[[str], None] = lambda step: None) -> FoldedState:
    """Fold the files that the state lacks, a day at a time, and return the fold of all of them.

    Logs that are still written are judged but not kept: their events come in files later.
    """
    places = [root / "events" for root in evidence.roots]
    kept = [path for path in evidence.files if any(path.is_relative_to(place) for place in places)]
    for day, files in state.lacking(kept).items():
        progress(f"folding {len(files):,} new {'file' if len(files) == 1 else 'files'} of {day}")
        state.take(_folded(spark, evidence, files), day, files)
    live = sorted(set(evidence.files) - set(kept))
    return FoldedState(spark, state, [_folded(spark, evidence, live)] if live else [])


def evidence_since(evidence: Evidence, since: float | None) -> Evidence:
    """Return the files from the day of `since` (seconds since 1970) on, and those without a day."""
    if since is None:
        return evidence
    begin = _date(round(since * 1e6))
    return replace(evidence, files=tuple(path for path in evidence.files if _day(path) == _NO_DAY or _day(path) >= begin))


def _folded(spark: SparkSession, evidence: Evidence, files: Sequence[Path]) -> Delta:
    some = replace(evidence, files=tuple(files))
    return delta_of(spark, project(read_events(spark, some)), written_in(some).runs)


def _sync(folder: Path) -> None:
    """Make durable all that is in `folder`."""
    for place, _, names in os.walk(folder):
        for name in names:
            with Path(place, name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(place))


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(f"another run uses {folder}; wait for its end, or give another folder to --state") from None


def _claim(folder: Path, roots: Sequence[str]) -> None:
    """Check that the state is of these roots, and note them; there may be more now."""
    about = folder / _ABOUT
    if about.exists():
        noted = _written(about, dict)
        if {name: noted.get(name) for name in _FORMAT} != _FORMAT:
            raise ConfigurationError(f"{folder} was written by another version of Ackwise; give an empty folder to --state")
        if "roots" not in noted:
            raise ConfigurationError(f"{about} is not what Ackwise wrote there; give an empty folder to --state")
        left_out = sorted(set(noted["roots"]) - set(roots))
        if left_out:
            raise ConfigurationError(f"{folder} is the state of {left_out[0]}, too; give that folder as well, or another one to --state")
    elif foreign := sorted(path.name for path in folder.iterdir() if path.name != f".{_ABOUT}"):
        raise ConfigurationError(f"{folder} holds {foreign[0]!r} and is no state; give an empty folder to --state")
    unfinished = folder / f".{_ABOUT}"
    unfinished.write_text(json.dumps({**_FORMAT, "roots": sorted(roots)}))
    unfinished.replace(about)


def _written(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise ConfigurationError(f"{path} is not what Ackwise wrote there; give an empty folder to --state")
    return content


def _name(path: Path) -> str:
    """Return the identity of a file: its name, which has the writer and the events, and its size."""
    return f"{path.name} {path.stat().st_size}"


def _day(path: Path) -> str:
    return next((found[1] for part in path.parts if (found := _DAY.fullmatch(part))), _NO_DAY)


def _date(at: int) -> str:
    """Return the day (UTC) of a time in microseconds."""
    return f"{as_datetime(at):%Y-%m-%d}"


def _key(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _delta_name(delta: Path) -> str:
    return f"{delta.parent.name}/{delta.name}"


def _days(deltas: Sequence[Path]) -> list[Path]:
    """Return the folders of record days of these deltas."""
    return [day for delta in deltas for day in sorted((delta / _MESSAGES).glob("rec_dt=*"))]


def _read(spark: SparkSession, empty: DataFrame, places: Sequence[Path]) -> DataFrame:
    if not places:
        return empty
    return spark.read.option("__globPaths__", "false").schema(empty.schema).parquet(*map(str, places))
