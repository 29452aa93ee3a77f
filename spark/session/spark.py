"""A Spark session, set up for a reconciliation: on this machine, on a cluster, or the one that `spark-submit` has begun."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.local.java import find_java
from ackwise.spark.session.engine import LOCAL, is_submitted

__all__ = ["explain", "local_session"]

#: Spark starts tasks and moves what was fetched: that ends before its second compiler has paid for itself.
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: What rows that are landed count on, wherever that runs.
_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # every file is named: there is nothing to discover
}

#: Each sort and aggregate of each task takes a page of the heap before it has a row: of 2 GB, 32 MB by default, a dozen of them per task.
_SMALL_PAGE: Final = "2m"

#: The beginning of an error message of Java.
_EXCEPTION: Final = re.compile(r'^(Exception in thread "[^"]*" )?([\w.$]+(Exception|Error): )*')

#: The line of a traceback of Python that has the exception, and its message.
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*: (.+)$", re.MULTILINE)

#: Spark's errors come as exceptions, too; its log would repeat them with a hundred lines of stack.
_QUIET: Final = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


@contextmanager
def local_session(
    *, master: str = LOCAL, driver_memory: str = "2g", conf: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """A session, stopped at the end. `conf` is Spark's configuration and wins over ours.

    One process has one JVM, so a session that is there already is used as it is and left running. Under `spark-submit` there
    is a JVM, which has a master and a heap, and a log that the user has set up. Raises `ConfigurationError` if there is no
    Java or Spark does not start.
    """
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    submitted = is_submitted()
    if not submitted:
        os.environ["JAVA_HOME"] = str(find_java().path)
        if master.startswith("local"):  # else it is whatever python3 is on the PATH
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with TemporaryDirectory(prefix="ackwise-") as scratch:
        builder = SparkSession.builder.appName("ackwise reconcile")
        if not submitted:
            builder = builder.master(master)
        ours = _NEEDED if submitted else _NEEDED | _options(master, driver_memory, Path(scratch))
        for name, value in {**ours, **conf}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate() if submitted else _start(builder, Path(scratch) / "output")
        try:
            yield session
        finally:
            session.stop()


def explain(error: Exception) -> str:
    """Return the message of a Spark error in one line, without the stack; of a failed task in Python that of its exception."""
    _, in_python, trace = str(error).rpartition("Traceback (most recent call last):")
    if in_python and (raised := _RAISED.search(trace)) is not None:
        return raised[1].strip().rstrip(".")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # py4j puts it on a line that begins with a colon, after a line that is always the same.
    message = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else type(error).__name__)
    return _EXCEPTION.sub("", message).rstrip(".")


def _start(builder: SparkSession.Builder, output: Path) -> SparkSession:
    """Start the JVM, which keeps the standard output and error that it is born with: not the user's terminal."""
    terminal = os.dup(1), os.dup(2)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if not line.startswith(("WARNING", "\tat"))]
        message = _EXCEPTION.sub("", " ".join(lines[:2])).rstrip(".") or explain(error)
        raise ConfigurationError(f"Spark does not start: {message}") from error
    finally:
        for descriptor, saved in zip((1, 2), terminal, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def _options(master: str, driver_memory: str, scratch: Path) -> dict[str, str]:
    logging = scratch / "log4j2.properties"
    logging.write_text(_QUIET)
    is_local, java_options = master.startswith("local"), f'"-Dlog4j2.configurationFile={logging.as_uri()}"'
    options = {
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": f"{java_options} {_QUICK}" if is_local else java_options,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local:
        options |= {"spark.buffer.pageSize": _SMALL_PAGE, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        options["spark.local.dir"] = str(scratch)
    return options
