"""A standalone Spark cluster on this machine: a master and two workers, each with a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pyspark
from tests.databases.server import Server, free_port, running

from ackwise.plugin.local.java import find_java

__all__ = ["HOME", "standalone"]

HOME = Path(pyspark.__file__).parent


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """The address of its master, while the block runs. Every worker has one core."""
    os.environ["JAVA_HOME"] = str(find_java().path)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(running(_master(folder / "master", port)))
        servers = [stack.enter_context(running(_worker(folder / f"worker-{number}", port))) for number in range(workers)]
        assert len(servers) == workers
        yield f"spark://127.0.0.1:{port}"


def _master(folder: Path, port: int) -> Server:
    told = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]
    return _daemon(folder, port, "master.Master", *told, ready="I have been elected leader")


def _worker(folder: Path, port: int) -> Server:
    told = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), "--webui-port", str(free_port())]
    return _daemon(folder, port, "worker.Worker", *told, f"spark://127.0.0.1:{port}", ready="Successfully registered with master")


def _daemon(folder: Path, port: int, name: str, *told: str, ready: str) -> Server:
    folder.mkdir(parents=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = stderr\nappender.stderr.type = Console\n"
        "appender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\nappender.stderr.layout.type = PatternLayout\n"
    )
    options = f"SPARK_DAEMON_JAVA_OPTS=-Dlog4j2.configurationFile={log4j.as_uri()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    command = ["env", options, "SPARK_DAEMON_MEMORY=256m", str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *told]
    return Server(folder, port, command, partial(_says, folder / "server.log", ready))


def _says(log: Path, words: str) -> bool:
    with suppress(OSError):
        return words in log.read_text("utf-8", errors="replace")
    return False
