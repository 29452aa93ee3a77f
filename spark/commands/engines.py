"""The engines that judge: Spark, and the local one, which is there at once and takes what fits on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.commands.options import EngineName
from ackwise.spark.session.engine import HEAP, LOCAL, Engine, is_submitted

if TYPE_CHECKING:
    from ackwise.spark.events.sources import Evidence
    from ackwise.spark.frames import SparkSession

__all__ = ["Computing", "choose", "computing", "need", "require"]

#: Bytes of scratch files for each byte of event files, and for each event. Measured: 5 and 35.
_FOR_BYTE: Final = 10
_FOR_EVENT: Final = 40
#: The local engine is chosen only where so much more is free.
_MARGIN: Final = 1.5
#: Options that only Spark has.
_ONLY_SPARK: Final = frozenset({"--master", "--driver-memory", "--conf", "spark-submit"})


#: What errors of DuckDB have if the disk is full: what the system says, or the limit for scratch files, which is what was free at first.
_FULL: Final = (os.strerror(errno.ENOSPC), "max_temp_directory_size")


class Computing(NamedTuple):
    """An engine, and how it is used."""

    name: EngineName
    starting: str
    """The beginning of a sentence about the files."""
    failures: tuple[type[Exception], ...]
    """What it raises if it fails, such as on a damaged file."""
    explain: Callable[[Any], str]
    """Return one of these as a sentence."""
    begin: Callable[[Evidence, Path], AbstractContextManager[SparkSession]]
    """Begin to compute for these files, with results in a folder."""


def require(asked: EngineName, engine: Engine) -> None:
    """Raise `ConfigurationError` if the engine that was asked for has not the settings that were given."""
    wanted = sorted(_ONLY_SPARK & _settings(engine))
    if asked is EngineName.LOCAL and wanted:
        raise ConfigurationError(f"the local engine has no {wanted[0]}; leave it out, or give --engine spark")


def choose(asked: EngineName, needed: int, free: int, engine: Engine) -> EngineName:
    """Return the engine for events that need `needed` bytes of scratch files, of which `free` are free.

    Raises `ConfigurationError` if none is installed.
    """
    if asked is not EngineName.AUTO:
        return asked
    has_spark, has_local = _is_installed("pyspark"), _is_installed("duckdb")
    if not has_spark and not has_local:
        raise ConfigurationError(
            "reconcile needs duckdb or pyspark, and neither is installed: pip install 'ackwise[local]', or 'ackwise[spark]' for a cluster"
        )
    if not has_local or _settings(engine):
        return EngineName.SPARK
    return EngineName.SPARK if has_spark and needed * _MARGIN > free else EngineName.LOCAL


def need(evidence: Evidence) -> int:
    """Return the bytes of scratch files that the local engine needs at most for these files."""
    return max(evidence.size * _FOR_BYTE, events_in(evidence.files) * _FOR_EVENT)


def computing(name: EngineName, engine: Engine) -> Computing:
    """Return the engine of this name; `engine` are the settings of Spark. Raises `ConfigurationError` if it is not installed."""
    try:
        return _local() if name is EngineName.LOCAL else _spark(engine)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"reconcile needs {error.name}, which is not installed: pip install 'ackwise[{name}]'") from error


def events_in(files: Sequence[Path]) -> int:
    """Return the number of events by the names of files, which end in the first and the last number of a writer's events."""
    return sum(int(last) - int(first) + 1 for _, _, first, last in (file.stem.split("-") for file in files))


def _settings(engine: Engine) -> set[str]:
    given = {"--master": engine.master != LOCAL, "--driver-memory": engine.driver_memory != HEAP, "--conf": bool(engine.conf)}
    return {name for name, is_given in {**given, "spark-submit": is_submitted()}.items() if is_given}


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _spark(engine: Engine) -> Computing:
    from contextlib import contextmanager

    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
    from pyspark.errors import PySparkException

    from ackwise.spark.events.reach import require_reach
    from ackwise.spark.session.python import require_pandas
    from ackwise.spark.session.spark import explain, local_session
    from ackwise.spark.session.tasks import in_tasks

    require_pandas()

    @contextmanager
    def begin(evidence: Evidence, folder: Path) -> Any:
        with local_session(master=engine.master, driver_memory=engine.driver_memory, conf=engine.conf) as spark:
            require_reach(spark, evidence.files, folder)
            with in_tasks(spark, evidence.size, folder / ".live") as session:  # it is there while the events are judged
                yield session

    return Computing(
        EngineName.SPARK, "starting Spark for", (PySparkException, Py4JError), lambda error: f"Spark failed: {explain(error)}", begin
    )


def _local() -> Computing:
    import duckdb

    from ackwise.spark.local.session import local_engine

    def begin(evidence: Evidence, folder: Path) -> AbstractContextManager[SparkSession]:
        return local_engine(folder / ".live")  # it is there while the events are judged

    return Computing(EngineName.LOCAL, "judging in this process", (duckdb.Error,), _explain, begin)


def _explain(error: Exception) -> str:
    import duckdb

    said = str(error).splitlines()[0].rstrip(".")
    if any(each in str(error) for each in _FULL):
        return f"no space left for what the local engine keeps ({said}); make room there, or give another folder to --out"
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"too little memory for the local engine ({said}); judge on a machine with more, or give --since, or --engine spark"
    return f"the local engine failed: {said}"
