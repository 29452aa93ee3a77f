"""Checks of this machine: Python and its packages, Java, the clock, limits and space."""

from __future__ import annotations

import importlib.util
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.doctor.extras import installed
from ackwise.plugin.doctor.finding import Finding
from ackwise.plugin.local.java import find_java

__all__ = [
    "CODECS",
    "SUPPORTED",
    "Clocks",
    "clock",
    "codecs",
    "file_limit",
    "java",
    "packages",
    "python",
    "read_clocks",
    "space",
    "temporary_files",
]

#: The oldest Python that Ackwise runs on, and the first that it was not tried on.
SUPPORTED: Final = ((3, 11), (3, 14))

_NEEDED: Final = ("ackwise", "aiokafka", "pydantic", "rich", "typer")

#: What a producer may compress records with.
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

#: Java releases that Kafka and Spark were run on for Ackwise.
_TRIED: Final = (17, 21)

#: Open files. A worker has some ten files and, for each broker, some connections; its handlers have theirs.
_FEW_FILES: Final = 1024

#: Bytes. Events and claims of a busy day, or what Spark puts aside while it sorts.
_LITTLE_SPACE: Final = 1_000_000_000

#: Seconds by which the wall clock may go astray while the doctor looks; more is a clock that is being set.
_STEP: Final = 0.2


def python(release: Sequence[int] = sys.version_info[:3]) -> Finding:
    """Whether this Python is one that Ackwise is tested with."""
    found = f"{'.'.join(map(str, release))}, {sys.executable}"
    if SUPPORTED[0] <= tuple(release[:2]) < SUPPORTED[1]:
        return Finding("python", "ok", found)
    return Finding("python", "problem", found, "use Python 3.11, 3.12 or 3.13")


def packages(needed: Sequence[str] = _NEEDED) -> Finding:
    """Whether the packages that a worker needs are there."""
    found = {name: installed(name) for name in needed}
    said = ", ".join(f"{name} {release or 'is missing'}" for name, release in found.items())
    if all(found.values()):
        return Finding("packages", "ok", said)
    return Finding("packages", "problem", said, "pip install --force-reinstall ackwise")


def codecs(missing: Sequence[str] | None = None) -> Finding:
    """Whether every compression that a producer may choose can be read; `missing` stands for what is found."""
    found = [name for name in CODECS if not _reads(name)] if missing is None else missing
    if not found:
        return Finding("codecs", "ok", f"{', '.join(CODECS)} can be read")
    return Finding(
        "codecs",
        "problem",
        f"{', '.join(found)} can't be read, so a partition with such a record waits",
        "pip install 'aiokafka[snappy,lz4,zstd]'",
    )


def _reads(codec: str) -> bool:
    from aiokafka import codec as codecs_of_the_client  # those who look need it, and it may be missing

    try:
        encode, decode = (getattr(codecs_of_the_client, f"{codec}_{verb}") for verb in ("encode", "decode"))
        return bytes(decode(encode(b"ackwise"))) == b"ackwise"
    except Exception:  # noqa: BLE001  # whatever a broken library raises
        return False


def java() -> Finding:
    """Whether Spark and a local Kafka would find a Java."""
    try:
        home = find_java()
    except ConfigurationError as error:
        if importlib.util.find_spec("pyspark") is None:
            return Finding("java", "ok", "none; only Spark, for ackwise reconcile of many events, and ackwise demo --kafka need one")
        found, _, advice = str(error).rpartition("; ")
        return Finding("java", "problem", found, f"{advice}; ackwise reconcile needs it")
    found = f"Java {home.version}, {home.origin}"
    if home.version in _TRIED:
        return Finding("java", "ok", found)
    return Finding(
        "java", "warning", found, f"Ackwise was run on Java {' and '.join(map(str, _TRIED))}; if Spark does not start, use one of them"
    )


class Clocks(NamedTuple):
    """The two clocks of this machine at one moment, in seconds."""

    wall: float
    monotonic: float


def read_clocks() -> Clocks:
    """Both clocks, now."""
    return Clocks(time.time(), time.monotonic())


def clock(before: Clocks, after: Clocks, since: float) -> Finding:
    """Whether the wall clock, which due times are read from, can be right; `since` is when Ackwise was installed.

    Kafka answers no question about its own clock. What can be seen from here is a clock that is behind its own files,
    or one that jumps.
    """
    astray = (after.wall - before.wall) - (after.monotonic - before.monotonic)
    if after.wall < since:
        return Finding(
            "clock", "problem", "it is before the time at which Ackwise was installed", "set it; retries are due by the wall clock"
        )
    if abs(astray) > _STEP:
        advice = "let NTP slew it; a jump forwards makes retries early, one backwards makes them late"
        return Finding(
            "clock",
            "warning",
            f"it moved by {astray:+.1f} s against the steady one within {after.monotonic - before.monotonic:.1f} s",
            advice,
        )
    return Finding("clock", "ok", "it runs steadily and is not behind its own files; the clocks of other machines can't be seen from here")


def file_limit(soft: int | None = None) -> Finding:
    """Whether this process may have enough files open; `soft` stands for the limit that is read."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    if limit == resource.RLIM_INFINITY or limit >= _FEW_FILES:
        return Finding("open files", "ok", "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}")
    return Finding("open files", "warning", f"at most {limit}", f"raise it: ulimit -n {_FEW_FILES}, or LimitNOFILE= of the service")


def temporary_files() -> Finding:
    """Whether there is a folder for temporary files with some space; Spark sorts and a local Kafka unpacks there."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding("temporary files", "problem", str(error), "set TMPDIR to a folder that can be written")
    return space("temporary files", Path(folder))


def space(subject: str, folder: Path) -> Finding:
    """Whether the volume of `folder` has some space left."""
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:,.1f} GB free in {folder}"
    if free >= _LITTLE_SPACE:
        return Finding(subject, "ok", found)
    return Finding(subject, "warning", found, f"make room; less than {_LITTLE_SPACE / 1e9:.0f} GB is soon full")
