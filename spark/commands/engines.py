"""The engines that judge: Spark, and the local one, which is there at once and takes what fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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

__all__ = ["FEW", "Computing", "choose", "computing", "require"]

#: Events below which Spark's start alone takes longer than the local engine needs for all of them.
FEW: Final = 200_000
#: Options that only Spark has, and those with which it is usually needed: a table is kept for many events.
_ONLY_SPARK: Final = frozenset({"--master", "--driver-memory", "--conf", "spark-submit"})


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


def require(asked: EngineName, given: Collection[str], engine: Engine) -> None:
    """Raise `ConfigurationError` if the engine that was asked for can't do what `given` asks, which are names of options."""
    wanted = sorted(_ONLY_SPARK & {*given, *_settings(engine)})
    if asked is EngineName.LOCAL and wanted:
        raise ConfigurationError(f"the local engine has no {wanted[0]}; leave it out, or give --engine spark")


def choose(asked: EngineName, events: int, given: Collection[str], engine: Engine) -> EngineName:
    """Return the engine for so many events and these options. Raises `ConfigurationError` if none is installed."""
    if asked is not EngineName.AUTO:
        return asked
    has_spark, has_local = _is_installed("pyspark"), _is_installed("duckdb")
    if not has_spark and not has_local:
        raise ConfigurationError(
            "reconcile needs duckdb or pyspark, and neither is installed: pip install 'ackwise[local]', or 'ackwise[spark]' for many events"
        )
    if not has_local or _ONLY_SPARK & {*given, *_settings(engine)}:
        return EngineName.SPARK
    return EngineName.LOCAL if not has_spark or (events < FEW and not given) else EngineName.SPARK


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

    from ackwise.spark.local.session import UnreadableFile, local_engine

    def begin(evidence: Evidence, folder: Path) -> AbstractContextManager[SparkSession]:
        return local_engine()

    def explain(error: Exception) -> str:
        return f"the local engine failed: {str(error).splitlines()[0].rstrip('.')}"

    return Computing(EngineName.LOCAL, "judging in this process", (duckdb.Error, UnreadableFile), explain, begin)
