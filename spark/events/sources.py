"""The event files below one or more roots, after abandoned logs were rolled.

    ROOT/events/dt=…/hr=…/events-{writer}-{first seq}-{last seq}.parquet
    ROOT/wal/{writer}-{first seq}.wal
    ROOT/runs/{run}/

Every file is named to Spark: a folder would bring in what others left there, and let Spark guess columns from paths.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import EVENT_COLUMNS
from ackwise.spark.events.damage import damage, strangeness
from ackwise.spark.events.disputed import Disputed, disputed
from ackwise.spark.events.invalid_records import invalid_records
from ackwise.spark.events.logs import Logs, rolled_on
from ackwise.stores.journal import recover, snapshot
from ackwise.stores.journal.layout import open_regular, writer_and_first_seq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Evidence",
    "Exported",
    "Named",
    "NoEvents",
    "as_written",
    "events_in",
    "check_root",
    "counted",
    "events_of",
    "exported",
    "gathered",
    "read_events",
    "read_rows",
    "recovered",
    "refuse_nothing",
    "single_events",
    "writer_of",
]

_FILE_NAME: Final = re.compile(r"events-([0-9a-f]{16})-(\d{12,})-(\d{12,})\.parquet")
_MAGIC: Final = b"PAR1"  # a Parquet file starts and ends with it
_READERS: Final = 4  # files at once
_SMALLEST: Final = 12  # bytes: two magics and the length of the footer


@dataclass(frozen=True, slots=True)
class Evidence:
    """The files to read, and those that could not be read."""

    roots: tuple[Path, ...]
    files: tuple[Path, ...]
    size: int
    """Bytes of all files."""
    logs: Logs
    """The writers whose log is still written (read as far as it was durable), and those whose log could not be read."""
    unreadable: tuple[str, ...]
    """Each a sentence."""
    foreign: tuple[Path, ...]
    """Parquet files that are not named as events are; not read."""
    disputed: tuple[Disputed, ...] = ()
    """Events that are there with different content; not read."""


class Exported(NamedTuple):
    """The Parquet files of one root, each list in order."""

    files: Sequence[Path]
    torn: Mapping[Path, str]
    """Named as events are, but unreadable: each with the reason, worded to follow its name."""
    foreign: Sequence[Path]
    """Not named as events are."""


def exported(root: Path) -> Exported:
    """Return the finished Parquet files below `root`. Raises `OSError` if a folder can't be listed."""
    files, torn, foreign = list[Path](), dict[Path, str](), list[Path]()
    for path in _parquet_files(root / "events"):
        if path.name.startswith((".", "_")):
            continue
        if _FILE_NAME.fullmatch(path.name) is None:
            foreign.append(path)
        elif why := _unread(path):
            torn[path] = why
        else:
            files.append(path)
    return Exported(files, torn, foreign)


def as_written(there: Exported, known: Container[Path] = ()) -> Exported:
    """Return the same with the damaged files among the torn ones. Reads all of those that are not `known`."""
    unknown = [path for path in there.files if path not in known]
    with ThreadPoolExecutor(_READERS) as readers:
        found = {path: why for path, why in zip(unknown, readers.map(damage, unknown), strict=True) if why}
    return there._replace(files=[path for path in there.files if path not in found], torn={**there.torn, **found})


class Named(NamedTuple):
    """What the name of a file says of its events."""

    writer_id: int
    first: int
    after: int
    """The number after the last one."""


def events_of(path: Path) -> Named | None:
    """Return what the name of a file says; `None` if it is not the name of one of events."""
    found = _FILE_NAME.fullmatch(path.name)
    return None if found is None else Named(int(found[1], 16), int(found[2]), int(found[3]) + 1)


def writer_of(path: Path) -> int:
    """Return the writer of a file of events, from its name."""
    return int(path.name.split("-")[1], 16)


def counted(rows: Any) -> int:
    """Return how many events are in rows of Arrow, of which `n` and `ok_n` are enough."""
    from pyarrow.compute import call_function as call

    each = call("add", [call("coalesce", [rows["n"], 1]), call("coalesce", [rows["ok_n"], 0])])
    return int(call("sum", [each]).as_py() or 0)


@contextmanager
def gathered(roots: Sequence[Path], scratch: Path) -> Iterator[Evidence]:
    """Roll logs, copy those that are still written to `scratch`, and list the files to read; at the end, remove the copies.

    Every file is read, to see whether it is as it was written.

    Raises `ConfigurationError` if a root is no folder of events or pyarrow is missing, `OSError` if one can't be listed.
    """
    for root in roots:
        check_root(root)
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        yield _undisputed(_gather(roots, scratch))
    finally:
        shutil.rmtree(scratch)


def recovered(roots: Sequence[Path]) -> Evidence:
    """Roll the logs of workers that have ended, and list the files to read; what is still in a log is left out.

    Raises as `gathered`.
    """
    for root in roots:
        check_root(root)
    return _undisputed(_gather(roots, None))


def read_events(spark: SparkSession, evidence: Evidence) -> DataFrame:
    """Return the events of all files."""
    return events_in(read_rows(spark, evidence), evidence)


def events_in(rows: DataFrame, evidence: Evidence) -> DataFrame:
    """Return the events that rows of its files stand for."""
    from ackwise.spark.events.runs import explode

    return _undisputed_of(explode(rows), evidence)


def single_events(rows: DataFrame, evidence: Evidence) -> DataFrame:
    """Return the same for rows that each stand for one."""
    return _undisputed_of(rows.select(*(column.name for column in EVENT_COLUMNS)), evidence)


def _undisputed_of(events: DataFrame, evidence: Evidence) -> DataFrame:
    for each in evidence.disputed:  # hardly ever one
        events = events.where(f"NOT (writer_id = {each.writer} AND seq >= {each.first} AND seq < {each.after})")
    return events


def read_rows(spark: SparkSession, evidence: Evidence) -> DataFrame:
    """Return the rows of all files, of which one may stand for many events."""
    from ackwise.spark.events.schema import FILE_SCHEMA  # here, since files are found without Spark, too
    from ackwise.stores.journal.parquet import SCHEMA

    if not evidence.files:
        return spark.createDataFrame(SCHEMA.empty_table())
    # Paths are taken literally: else Spark takes a bracket for a pattern and finds no file.
    read = spark.read.option("__globPaths__", "false").option("parquet.page.verify-checksum.enabled", "true")
    return read.schema(FILE_SCHEMA).parquet(*map(str, evidence.files))


def _undisputed(evidence: Evidence) -> Evidence:
    """Return the same, with disputed events named; the last ones of their writers are unknown."""
    import pyarrow as pa

    try:
        found = disputed(evidence.files)
    except (pa.ArrowException, OSError, ValueError):
        return evidence  # damaged: whoever reads it finds out, and leaves it out
    if not found:
        return evidence
    logs = evidence.logs._replace(unreadable=evidence.logs.unreadable | {each.writer for each in found})
    return replace(evidence, logs=logs, unreadable=(*evidence.unreadable, *map(str, found)), disputed=tuple(found))


class NoEvents(ConfigurationError):
    """There are no events that could be judged; some may come."""


def refuse_nothing(evidence: Evidence) -> None:
    """Raise `NoEvents` if there are no events to judge: an empty folder must not look clean."""
    if evidence.files:
        return
    places = ", ".join(map(str, evidence.roots))
    if evidence.unreadable:
        raise NoEvents(f"no events below {places} can be read: {evidence.unreadable[0]}")
    if evidence.foreign:
        raise NoEvents(
            f"the Parquet files below {places}, such as {evidence.foreign[0].name}, are not named as events are; "
            "give the folder that Events was given"
        )
    raise NoEvents(f"there are no events below {places}; give the folder that Events was given")


def _gather(roots: Sequence[Path], scratch: Path | None) -> Evidence:
    files: list[Path] = []
    foreign: list[Path] = []
    unreadable: list[str] = []
    writers: set[int] = set()
    still_written: set[int] = set()
    for root in roots:
        recovery = recover(root)
        for log in recovery.unreadable:
            unreadable.append(f"{log.path} can't be read from event {log.from_seq} on: {log.reason}")
            if log.writer_id is not None:
                writers.add(log.writer_id)
        # Before the files are listed: a log that is rolled in between is then read twice, which is as good as once.
        if scratch is not None:
            files.extend(snapshot(recovery.live, scratch))
        still_written.update(found[0] for log in recovery.live if (found := writer_and_first_seq(log)) is not None)
        there = as_written(exported(root))
        files.extend(there.files)
        foreign.extend(there.foreign)
        unreadable.extend(f"{path} {why}; its events count as missing" for path, why in there.torn.items())
        unreadable.extend(
            f"{path} is a link, and links are not followed; what is behind it was not read" for path in _links(root / "events")
        )
        folders = [path for path in (root / "events").rglob("*.parquet") if path.is_dir() and _FILE_NAME.fullmatch(path.name)]
        unreadable.extend(f"{path} is a folder, and was to be a file; its events count as missing" for path in sorted(folders))
        writers.update(writer_of(path) for path in (*there.torn, *folders))
        for invalid in invalid_records(root):
            writers.update(invalid.writers)
            unreadable.append(
                f"{invalid.records} records of an event topic, such as {invalid.first}, are no events; once you know what they were, "
                f"delete {invalid.folder}"
            )
    size = sum(path.stat().st_size for path in files)
    logs = Logs(frozenset(writers), frozenset(still_written), rolled_on(files))
    return Evidence(tuple(roots), tuple(files), size, logs, tuple(unreadable), tuple(foreign))


def check_root(root: Path) -> None:
    """Raise `ConfigurationError` unless `root` can be a folder of `Events`. Changes nothing."""
    try:
        names = set(os.listdir(root))
    except NotADirectoryError:
        raise ConfigurationError(f"{root} is a file; give the folder that Events was given") from None
    except FileNotFoundError:
        raise ConfigurationError(f"{root} is not a folder; give the folder that Events was given") from None
    except OSError as error:
        raise ConfigurationError(f"{root} can't be read ({error.strerror}); let this user read it") from error
    # A worker makes the folders at its first event; until then there are at most those of earlier runs.
    if not names & {"events", "wal"} and names - {"runs"}:
        raise ConfigurationError(f"{root} holds no events, neither a folder `events` nor `wal`; give the folder that Events was given")


def _parquet_files(folder: Path) -> list[Path]:
    """Return all Parquet files below `folder`, in order. Raises `OSError` for an unreadable folder, unlike `rglob`."""
    if not folder.exists():
        return []
    found = os.walk(folder, onerror=_raise)
    return sorted(Path(place, name) for place, _, names in found for name in names if name.endswith(".parquet"))


def _raise(error: OSError) -> None:
    raise error


def _links(folder: Path) -> list[Path]:
    """Return the folders below `folder` that are links."""
    return sorted(Path(place, name) for place, names, _ in os.walk(folder) for name in names if Path(place, name).is_symlink())


def _unread(path: Path) -> str:
    """Return why a Parquet file can't be read as events, or an empty text. Spark fails the whole job on a file without its end."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    with os.fdopen(descriptor, "rb") as file:
        start = file.read(len(_MAGIC))
        if start != _MAGIC or os.fstat(descriptor).st_size < _SMALLEST:
            return "is torn"
        file.seek(-len(_MAGIC), 2)
        if file.read() != _MAGIC:
            return "is torn"
    return strangeness(path)
