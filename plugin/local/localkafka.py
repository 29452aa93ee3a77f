"""Brokers on this machine for the demo and for tests: a real Apache Kafka, or one embedded in this process.

with local_kafka(folder) as broker:
    ...  # broker.bootstrap
"""

from __future__ import annotations

import base64
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.local.java import Jars, JavaHome, fetch_jars, find_java

if TYPE_CHECKING:
    from confluent_kafka import Producer


KAFKA_VERSION: Final = "4.2.0"

#: Kafka brings no binding for its logging interface; slf4j-simple makes it say why it does not start.
_JARS: Final = Jars(
    title=f"Apache Kafka {KAFKA_VERSION}",
    folder=f"kafka-{KAFKA_VERSION}",
    artifacts=(f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
    size="44 MB",
)


def kafka_jars(java: JavaHome, say: Callable[[str], None]) -> Path:
    """The folder that holds the broker's jars; downloads them into the user's cache if they are not there yet.

    `say` is called before the download starts. Raises `ConfigurationError` if PySpark is not installed or the cache
    can't be written, and `Unavailable` if the download fails.
    """
    return fetch_jars(java, _JARS, say)


_START_TIMEOUT = 120.0  # seconds; it takes 3 on an idle machine, and two busy cores need patience
_STOP_TIMEOUT = 15.0  # seconds; then it is killed
_PORT_TRIES = 5
_READY = "Kafka Server started"
_PORT_TAKEN = "Address already in use"

#: Half a gigabyte of heap is enough; the quick compiler starts the broker in two thirds of the time.
_JAVA_OPTIONS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


def _announce(sentence: str) -> None:
    sys.stderr.write(f"ackwise: {sentence}\n")


@contextmanager
def local_kafka(
    directory: Path, *, properties: Mapping[str, str] | None = None, say: Callable[[str], None] = _announce
) -> Iterator[LocalKafka]:
    """A real Apache Kafka (KRaft, one node) on loopback while the block runs.

    Its data, configuration and log (`broker.log`) are in `directory`, which may hold those of an earlier run: then the
    data is still there. `properties` override the broker's. `say` is told about the download, which is done once per
    user. The broker is stopped when the block ends, and killed if this process dies. Blocks: from a coroutine, use a
    thread.

    Raises `ConfigurationError` if no Java or no PySpark is found or another broker runs in `directory`, and `Unavailable` if the
    download or the start fails.
    """
    java = find_java()
    broker = LocalKafka(directory, java, kafka_jars(java, say), properties or {})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class LocalKafka:
    """One node of Apache Kafka in its own folder; made by `local_kafka`."""

    def __init__(self, directory: Path, java: JavaHome, jars: Path, properties: Mapping[str, str]) -> None:
        self._directory = directory
        self._command = [str(java.executable), *_JAVA_OPTIONS, "-cp", f"{jars}/*"]
        self._properties = properties
        self._port: int | None = None
        self._lock: BinaryIO | None = None
        self._running: _Running | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, such as `127.0.0.1:21001`; the same after a restart."""
        return f"127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        """What the broker has said, over all its starts."""
        return self._directory / "broker.log"

    def start(self) -> None:
        """Start, and return once the broker serves: on the data that is there, and on the port that it had.

        Does nothing if it runs. Raises `Unavailable`, with the end of the log, if it does not come up, and `ConfigurationError` if
        another one runs in its folder.
        """
        if self._running is not None:
            return
        self._lock = _locked(self._directory)
        try:
            self._start()
        except BaseException:
            self._unlock()
            raise

    def _start(self) -> None:
        ports_to_try = _PORT_TRIES if self._port is None else 0
        while True:
            if ports_to_try:
                self._configure()
            try:
                self._launch()
                return
            except Unavailable as error:
                # Between our look at a port and the broker's, another process may take it.
                ports_to_try -= 1
                if ports_to_try <= 0 or _PORT_TAKEN not in str(error):
                    raise

    def stop(self) -> None:
        """Let the broker shut down in order; kill it if it does not. Return at once if it is down."""
        if self._running is not None:
            self._running.process.terminate()
            self._running.process.send_signal(signal.SIGCONT)  # a paused one would not hear
            self._bury(patience=_STOP_TIMEOUT)
            self._unlock()

    def kill(self) -> None:
        """End the broker at once, in the midst of what it does (`SIGKILL`). Return at once if it is down."""
        self._bury(patience=0.0)
        self._unlock()

    def restart(self) -> None:
        """Stop, and start on the same data and port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the broker (`SIGSTOP`): connections stay open, and nothing answers once this returns."""
        process = self._process
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until its last thread is stalled

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if self._running is None:
            raise ConfigurationError(f"the local Kafka in {self._directory} does not run; start it first")
        return self._running.process

    def _configure(self) -> None:
        self._port, controller = _free_ports(2)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": "data",  # relative, so that no folder's name needs escaping
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",  # the usual 50 make the first group wait
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A node that was killed is refused until its predecessor's session, 9 s otherwise, has ended.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "auto.create.topics.enable": "false",
            **self._properties,
        }
        (self._directory / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            said_before = log.tell()
            if not (self._directory / "data" / "meta.properties").exists():
                self._run(log, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", "server.properties").wait()
            process = self._run(log, "kafka.Kafka", "server.properties")
        self._running = _Running(process, _guard(process))
        deadline = time.monotonic() + _START_TIMEOUT
        while _READY not in (said := self._said_since(said_before)):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                self._bury(patience=0.0)
                found = f"was not ready after {_START_TIMEOUT:.0f} s" if code is None else f"ended with code {code}"
                raise Unavailable(f"the local Kafka on {self.bootstrap} {found}; {self.log} ends with:\n{_tail(said)}")
            time.sleep(0.05)

    def _run(self, log: BinaryIO, *arguments: str) -> subprocess.Popen[bytes]:
        # Its own session: an interrupt from the keyboard is for us, and we decide what becomes of the broker.
        # It holds the lock as well: should we be killed, the folder is free when the broker has ended, and not before.
        held = () if self._lock is None else (self._lock.fileno(),)
        return subprocess.Popen(
            [*self._command, *arguments],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=held,
        )

    def _said_since(self, position: int) -> str:
        with self.log.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")

    def _bury(self, patience: float) -> None:
        if self._running is None:
            return
        process, guard = self._running
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.kill()  # before it can take the closed pipe for our death
        guard.communicate()
        self._running = None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]


def _locked(directory: Path) -> BinaryIO:
    """The lock of a broker's folder, held while it is open: a second broker would write into the data of the first."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = (directory / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigurationError(f"another local Kafka runs in {directory}; stop it, or give another folder") from None
    return lock


def _guard(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """A shell that kills `process` when we die, in whatever way: it waits for the end of a pipe that only we hold open.

    Not `PR_SET_PDEATHSIG`: that comes when the *thread* that started the broker ends, and is Linux's alone.
    """
    command = ["/bin/sh", "-c", 'read -r _; kill -KILL "$1"', "ackwise-guard", str(process.pid)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _free_ports(count: int) -> list[int]:
    """Ports below the range that systems hand out by themselves.

    In that range a client that keeps trying to reach a broker which is down may be given the broker's own port for its
    end of the connection, connect to itself, and keep the broker from coming back.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def _cluster_id() -> str:
    # 22 characters of URL-safe base64; Kafka takes none that starts with a dash, hence the letter.
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:21]


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:]) or "(nothing)"


class EmbeddedBroker:
    """librdkafka's mock cluster in this process: one broker, nothing on disk, gone when closed; made by `embedded_broker`."""

    def __init__(self) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise ConfigurationError(
                "the embedded broker is confluent-kafka's, which is not installed: pip install 'ackwise[demo]'"
            ) from None
        # The address only satisfies the client; it never connects to it.
        errors_only = 3
        self._owner: Producer | None = Producer({"bootstrap.servers": "unused:1", "test.mock.num.brokers": 1, "log_level": errors_only})
        brokers = self._owner.list_topics(timeout=10.0).brokers.values()
        self._bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    @property
    def bootstrap(self) -> str:
        """The address for clients of this and of other processes."""
        return self._bootstrap

    def close(self) -> None:
        """Let go of the broker and everything in it."""
        self._owner = None


@contextmanager
def embedded_broker() -> Iterator[EmbeddedBroker]:
    """A broker inside this process while the block runs, for the demo and quick tests; it is up in milliseconds.

    Topics appear when first used, with 4 partitions. It can't create topics on request, takes one live member per
    group, and forgets everything when the block ends. Raises `ConfigurationError` if confluent-kafka is missing.
    """
    broker = EmbeddedBroker()
    try:
        yield broker
    finally:
        broker.close()
