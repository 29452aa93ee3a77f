"""The servers that all tests of a run share. The process that pytest was started in owns them; its workers ask it where they are."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.postgres import postgres_server
from tests.databases.redis import redis_cluster, redis_server
from tests.databases.server import Missing, Server
from tests.servers import PROPERTIES

from ackwise.middleware.errors import AckwiseError
from ackwise.plugin.local.localkafka import local_kafka

#: Settings of a PostgreSQL whose log can be decoded.
LOGICAL: Final[Mapping[str, object]] = {"wal_level": "logical", "max_replication_slots": 20}


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A database that other tests use at the same time. Who stops it, or sets it otherwise, asks for its own."""

    port: int


@dataclass(frozen=True, slots=True)
class SharedKafka:
    """A Kafka that other tests use at the same time. Who stops it asks for its own."""

    bootstrap: str


@contextmanager
def _kafka(folder: Path) -> Iterator[SharedKafka]:
    try:
        running = local_kafka(folder, properties=PROPERTIES)
        broker = running.__enter__()
    except AckwiseError as error:
        raise Missing(str(error)) from error
    try:
        yield SharedKafka(broker.bootstrap)
    finally:
        running.__exit__(None, None, None)


@contextmanager
def _cluster(folder: Path) -> Iterator[tuple[SharedServer, ...]]:
    with redis_cluster(folder) as nodes:
        yield tuple(SharedServer(node.port) for node in nodes)


@contextmanager
def _one(running: AbstractContextManager[Server]) -> Iterator[SharedServer]:
    with running as server:
        yield SharedServer(server.port)


#: What a kind is started with, in a folder.
Start: TypeAlias = Callable[[Path], AbstractContextManager[Any]]

KINDS: Final[Mapping[str, Start]] = {
    "kafka": _kafka,
    "redis": lambda folder: _one(redis_server(folder)),
    "cluster": _cluster,
    "postgres": lambda _: _one(postgres_server(**LOGICAL)),
    "mariadb": lambda folder: _one(mariadb_server(folder)),
    "mariadb_with_log": lambda folder: _one(mariadb_server(folder, *WITH_LOG)),
}


class _Answer(NamedTuple):
    server: Any
    missing: str = ""  # why there is none on this machine
    failure: str = ""  # why it did not start


class _Kind:
    """One kind of server: it is started when it is first asked for, and whoever asks meanwhile waits for the same one."""

    def __init__(self, start: Callable[[], AbstractContextManager[Any]]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._running = ExitStack()
        self._answer: _Answer | None = None

    def find(self) -> _Answer:
        with self._lock:
            if self._answer is None:
                try:
                    self._answer = _Answer(self._running.enter_context(self._start()))
                except Missing as error:
                    self._answer = _Answer(None, missing=str(error))
                except (AckwiseError, AssertionError, OSError, subprocess.SubprocessError) as error:
                    self._answer = _Answer(None, failure=f"{type(error).__name__}: {error}")
            return self._answer

    def close(self) -> None:
        with self._lock:
            self._answer = _Answer(None, failure="the run has ended")
            self._running.close()


class Owner:
    """What the first process of a run has: the servers that run, and what its workers say of their tests."""

    def __init__(self, new_folder: Callable[[str], Path], kinds: Mapping[str, Start] = KINDS) -> None:
        self._kinds = {name: _Kind(lambda name=name, start=start: start(new_folder(name))) for name, start in kinds.items()}  # type: ignore[misc]
        self._listener: Listener | None = None
        self._key = os.urandom(16)
        #: The tests that need Spark.
        self.of_spark: frozenset[str] = frozenset()
        #: The seconds that each file takes by its marks, for those that nobody has measured.
        self.guessed: Mapping[str, float] = {}

    def find(self, kind: str) -> _Answer:
        """Where the server of this kind is; starts it if nobody has asked for it yet."""
        return self._kinds[kind].find()

    def listen(self) -> tuple[str, str]:
        """Answer other processes from now on; returns the socket and the key that they need."""
        if self._listener is None:
            self._listener = Listener(family="AF_UNIX", backlog=16, authkey=self._key)
            threading.Thread(target=self._accept, args=[self._listener], name="shared servers", daemon=True).start()
        return str(self._listener.address), self._key.hex()

    def close(self) -> None:
        """End all servers."""
        if self._listener is not None:
            self._listener.close()
        for kind in self._kinds.values():
            kind.close()

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = listener.accept()
            except (AuthenticationError, EOFError):
                continue
            except OSError:
                return  # it is closed
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            subject, said = connection.recv()
            if subject == "tests":
                of_spark, self.guessed = said
                self.of_spark = frozenset(of_spark)
                connection.send(None)
            else:
                connection.send(self.find(said))


_OWNER = pytest.StashKey[Owner]()


def owner_of(config: pytest.Config) -> Owner | None:
    """The owner of this run's servers, if that is this process."""
    if hasattr(config, "workerinput"):
        return None
    if _OWNER not in config.stash:
        config.stash[_OWNER] = Owner(lambda name: config._tmp_path_factory.mktemp(f"shared-{name}"))  # type: ignore[attr-defined]  # as xdist does
    return config.stash[_OWNER]


def give_address(config: pytest.Config, workerinput: dict[str, Any]) -> None:
    """Tell a worker where it can ask."""
    owner = owner_of(config)
    assert owner is not None
    workerinput["shared_servers"] = owner.listen()


def shared(config: pytest.Config, kind: str) -> Any:
    """The server of this kind that all processes share. Raises `Missing`; fails the test with what a server said that did not start."""
    owner = owner_of(config)
    answer = _ask(config, "server", kind) if owner is None else owner.find(kind)
    if answer.missing:
        raise Missing(answer.missing)
    if answer.failure:
        pytest.fail(f"the {kind} that all tests share did not start: {answer.failure}", pytrace=False)
    return answer.server


def tell_of_tests(config: pytest.Config, of_spark: list[str], guessed: Mapping[str, float]) -> None:
    """Tell the owner which tests need Spark, and the seconds that each file takes by its marks."""
    if owner_of(config) is None:
        _ask(config, "tests", (of_spark, guessed))


def _ask(config: pytest.Config, subject: str, said: object) -> Any:
    address, key = config.workerinput["shared_servers"]  # type: ignore[attr-defined]  # of a worker
    with Client(address, authkey=bytes.fromhex(key)) as connection:
        connection.send((subject, said))
        return connection.recv()
