"""A check that executors have what tasks in Python need: a Python like the driver's with its packages, and the event files."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ackwise.middleware.errors import ConfigurationError

__all__ = ["NEEDED", "Executors", "check_executors"]

#: What executors import, with the versions that work: from the first one to before the second.
NEEDED: Final[Mapping[str, tuple[str, str]]] = {
    "ackwise": ("0", ""),
    "duckdb": ("1.3", ""),
    "pandas": ("2.2", "3"),
    "pyarrow": ("18", ""),
}
#: What must have one version everywhere: DuckDB, since another may number partitions otherwise.
_SAME: Final = ("ackwise", "duckdb")
#: Tasks that look: enough for each executor of a small cluster to get one.
_TASKS: Final = 16
_BRING: Final = (
    "bring a Python that has it: pack one with `pip install 'ackwise[spark]'` in it, give it to --archives (or spark.archives in "
    "--conf), and name its python in PYSPARK_PYTHON"
)


class Executors(NamedTuple):
    """What was found on executors that lack nothing."""

    tasks: int
    processes: int
    hosts: Sequence[str]
    python: str
    versions: Mapping[str, str]

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}".rstrip() for name, number in self.versions.items())
        found = "1 executor has what it needs" if self.processes == 1 else f"{self.processes} executors have what they need"
        return f"{found} on {', '.join(self.hosts)}: Python {self.python} with {packages}; {self.tasks} tasks read the event files"


def check_executors(spark: SparkSession, files: Sequence[Path]) -> Executors:
    """Run tasks that import what ours import, and read one file in each folder.

    Raise `ConfigurationError`, which names all that is missing and where.
    """
    some = sorted({file.parent: str(file) for file in files}.values())
    ours = {name: _version(name) for name in _SAME}
    look = F.udf(_look(tuple(NEEDED), tuple(some)), "string", useArrow=False)  # Arrow is what may be missing
    try:
        rows = spark.range(0, _TASKS, 1, _TASKS).select(look(F.col("id")).alias("found")).collect()
    except (PySparkException, Py4JError) as error:
        raise ConfigurationError(f"the executors can't run Python with Ackwise: {_reason(str(error))}; {_BRING}") from error
    found = [json.loads(row["found"]) for row in rows]
    problems = defaultdict[str, set[str]](set)
    for each in found:
        for problem in _problems(each, ours):
            problems[problem].add(each["host"])
    if problems:
        said = [f"{problem} on {', '.join(sorted(hosts))}" for problem, hosts in sorted(problems.items())]
        only_files = all(problem.startswith("the file") for problem in problems)
        advice = "mount the folders under the same path on every machine" if only_files else _BRING
        raise ConfigurationError(f"the executors lack what they need: {'; '.join(said)}; {advice}")
    processes = {(each["host"], each["process"]) for each in found}
    return Executors(len(found), len(processes), sorted({host for host, _ in processes}), found[0]["python"], found[0]["versions"])


def _look(packages: tuple[str, ...], files: tuple[str, ...]) -> Any:
    """Return the function of a task. It is sent by value, since the executor may not have this module."""

    def look(_number: int) -> str:
        import importlib
        import importlib.metadata
        import json
        import os
        import platform
        import socket
        import sys

        versions, missing, unread = {}, {}, {}
        for package in packages:
            try:
                importlib.import_module(package)
            except Exception as error:  # noqa: BLE001  # whatever keeps a package from being imported, its task names
                missing[package] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = ""
        for file in files:
            try:
                with open(file, "rb") as opened:
                    opened.read(4)
            except OSError as error:
                unread[file] = error.strerror or str(error)
        facts = {"host": socket.gethostname(), "process": os.getppid(), "python": platform.python_version(), "executable": sys.executable}
        return json.dumps({**facts, "versions": versions, "missing": missing, "unread": unread})

    return look


def _problems(found: Mapping[str, Any], ours: Mapping[str, str]) -> list[str]:
    """Return what is wrong with one executor, each a clause."""
    said = [f"{name} can't be imported by {found['executable']} ({why})" for name, why in found["missing"].items()]
    for name, number in found["versions"].items():
        first, behind = NEEDED[name]
        if number and (_numbers(number) < _numbers(first) or (behind and _numbers(number) >= _numbers(behind))):
            said.append(f"{name} is {number} in {found['executable']}, and must be {first} or later{f', below {behind}' if behind else ''}")
    for name, wanted in ours.items():
        theirs = found["versions"].get(name, "")
        if wanted and theirs and theirs != wanted:
            said.append(f"{name} is {theirs} in {found['executable']}, and {wanted} on the driver")
    if _minor(found["python"]) != _minor(platform.python_version()):
        said.append(f"Python is {found['python']} in {found['executable']}, and {platform.python_version()} on the driver")
    return said + [f"the file {name} can't be read ({why})" for name, why in found["unread"].items()]


def _reason(text: str) -> str:
    """Return the line of an error that tells why a task could not start Python."""
    lines = [line.strip() for line in text.splitlines()]
    for sign in ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError", "ImportError"):
        for line in lines:
            if sign in line:
                return line[line.index(sign) :].rstrip(".")
    return next((line for line in lines if line), "no reason is given").rstrip(".")


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
