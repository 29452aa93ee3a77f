"""A check that the executors of a cluster see the files that the driver sees."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.events.schema import EVENT_SCHEMA

__all__ = ["PROBE", "probe", "require_reach"]

#: What is written to the folder of a run, and removed again.
PROBE: Final = ".reach"
#: Tasks that write: enough for each executor of a small cluster to get one.
_TASKS: Final = 8
_ADVICE: Final = "mount it under the same path on every machine of the cluster, or run on this one with --master 'local[*]'"


def require_reach(spark: SparkSession, files: Sequence[Path], out: Path) -> None:
    """`probe`, unless the driver is the only executor."""
    if not str(spark.conf.get("spark.master", "local")).startswith("local"):
        probe(spark, files, out)


def probe(spark: SparkSession, files: Sequence[Path], out: Path) -> None:
    """Raise `ConfigurationError` unless executors can read `files` and the driver sees what they write to `out`.

    One file in each folder is tried. What an executor writes to a disk of its own is lost without an error.
    """
    for folder, file in {file.parent: file for file in files}.items():
        try:
            spark.read.option("__globPaths__", "false").schema(EVENT_SCHEMA).parquet(str(file)).select("seq").head()
        except (PySparkException, Py4JError) as error:
            raise ConfigurationError(f"the executors can't read {folder}; {_ADVICE}") from error
    try:
        written = _written(spark, out / PROBE)
    except (PySparkException, Py4JError) as error:
        raise ConfigurationError(f"the executors can't write to {out}; {_ADVICE}") from error
    if written < _TASKS:
        raise ConfigurationError(f"what the executors write to {out} is not there; {_ADVICE}")


def _written(spark: SparkSession, folder: Path) -> int:
    """Return the number of files written by executors that the driver sees."""
    try:
        spark.range(0, _TASKS, 1, _TASKS).write.mode("overwrite").parquet(str(folder))
        return sum(1 for _ in folder.glob("part-*"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
