"""Brokers and databases for all tests: each is started once in a run, when the first test asks for it, whichever process that is in.

A test that stops, kills, freezes or fills a server, sets it otherwise, or looks at all that is in it, has its own server.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import Phase, settings
from tests.databases import mysql
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.postgres import postgres_server
from tests.databases.redis import redis_cluster, redis_server
from tests.databases.server import Server, skip_if_missing
from tests.durations import Durations, known_durations
from tests.scheduling import ByServers, guess
from tests.servers import RawKafka, kafka_or_skip
from tests.shared import LOGICAL, SharedKafka, SharedServer, give_address, owner_of, shared, tell_of_tests

from ackwise.plugin.local.localkafka import EmbeddedBroker, LocalKafka
from ackwise.plugin.local.localkafka import embedded_broker as start_embedded_broker
from ackwise.testing import TestApp

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

# A busy machine is no finding: how long an example takes is not what is tested.
settings.register_profile("unhurried", deadline=None)
settings.register_profile("quick", settings.get_profile("unhurried"), max_examples=25)  # for `make check`
settings.register_profile("twin", settings.get_profile("unhurried"), phases=set(Phase) - {Phase.shrink, Phase.explain})
settings.load_profile("twin" if "SABOTAGE_COPY" in os.environ else "unhurried")  # that it fails is enough to notice a twin

TestApp.max_wait = 120.0  # other tests run beside it

# Before anything imports them: what fails in our suite shows both of its sides.
pytest.register_assert_rewrite("ackwise.stores.conformance")

#: A test that asks for one of these is marked by that, so that `make check` can leave it out.
MARKERS = {
    "embedded_broker": "embedded",
    "spark": "spark",
    **dict.fromkeys(("kafka", "own_kafka"), "kafka"),
    **dict.fromkeys(("redis", "cluster", "postgres", "mariadb", "mariadb_with_log"), "servers"),
    **dict.fromkeys(("own_redis", "own_cluster", "own_postgres", "own_mariadb", "own_mariadb_with_log"), "servers"),
}


SharedT = TypeVar("SharedT")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--max-seconds", type=float, metavar="SECONDS", help="fail the run if a test takes longer that is not marked slow")


def pytest_configure(config: pytest.Config) -> None:
    if owner_of(config) is not None and not config.pluginmanager.has_plugin("sabotage_outcomes"):  # what fails may have waited for long
        config.pluginmanager.register(Durations(config.getoption("--max-seconds")))


def pytest_unconfigure(config: pytest.Config) -> None:
    if (owner := owner_of(config)) is not None:
        owner.close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    give_address(node.config, node.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    owner = owner_of(config)
    assert owner is not None
    return ByServers(config, log, of_spark=lambda: owner.of_spark, guessed=lambda: owner.guessed, seconds=known_durations(config))


def pytest_itemcollected(item: pytest.Item) -> None:
    for fixture in MARKERS.keys() & set(getattr(item, "fixturenames", ())):
        item.add_marker(MARKERS[fixture])


@pytest.hookimpl(trylast=True)  # after what was chosen on the command line
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if mysql.WANTED else ():
        if (what := mysql.OF_MARIADB.get(getattr(item, "originalname", ""))) is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs MariaDB: {what}"))
    tell_of_tests(config, [item.nodeid for item in items if item.get_closest_marker("spark")], guess(items))


def pytest_collection_finish() -> None:
    """What is there now stays until the end: no collection of garbage looks at it again, which makes each a matter of milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets a connection that nobody closed fail the test that opened it, and not a later one in which garbage is collected."""
    yield
    if any(request.node.get_closest_marker(mark) for mark in ("kafka", "slow")):
        gc.collect()


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> SharedKafka:
    """A real Apache Kafka that creates no topics by itself."""
    return _shared(pytestconfig, "kafka", SharedKafka, "a real Kafka")


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A real Apache Kafka of the tests of one file. Who stops or pauses it starts it again."""
    with kafka_or_skip(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
async def raw_kafka(kafka: LocalKafka) -> AsyncIterator[RawKafka]:
    """Topics, groups and records on `kafka`, past the code that is tested."""
    raw = RawKafka(kafka.bootstrap)
    await raw.start()
    yield raw
    await raw.close()


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[EmbeddedBroker]:
    """librdkafka's mock cluster in this process; topics appear when they are used."""
    with start_embedded_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis(pytestconfig: pytest.Config) -> SharedServer:
    """A real Redis, with databases 0 to 15; a test has its own namespace in it."""
    return _shared(pytestconfig, "redis", SharedServer, "Redis")


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Redis of the tests of one file. Who stops, freezes or fills it starts it again or empties it."""
    with skip_if_missing("Redis"), redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Sequence[SharedServer]:
    """A real Redis Cluster of three masters; a test has its own namespace in it."""
    return _shared(pytestconfig, "cluster", tuple, "Redis Cluster")


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    """A real Redis Cluster of three masters for the tests of one file."""
    with skip_if_missing("Redis Cluster"), redis_cluster(tmp_path_factory.mktemp("redis-cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> SharedServer:
    """A real PostgreSQL with a log that can be decoded; its user `postgres` may do everything, without a password.

    A test has a database or its own prefix in it. Users, slots and the log belong to all databases.
    """
    return _shared(pytestconfig, "postgres", SharedServer, "PostgreSQL")


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Server]:
    """A real PostgreSQL as `postgres` is, of the tests of one file."""
    with skip_if_missing("PostgreSQL"), postgres_server(**LOGICAL) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(pytestconfig: pytest.Config) -> SharedServer:
    """A real MariaDB; its user `root` may do everything, without a password. A test has a database or its own prefix in it."""
    return _shared(pytestconfig, "mariadb", SharedServer, "MariaDB")


@pytest.fixture(scope="module")
def own_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real MariaDB as `mariadb` is, of the tests of one file."""
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_with_log(pytestconfig: pytest.Config) -> SharedServer:
    """A real MariaDB that writes a binary log, with what all tests write; its user `root` may do everything, without a password."""
    return _shared(pytestconfig, "mariadb_with_log", SharedServer, "MariaDB")


@pytest.fixture(scope="module")
def own_mariadb_with_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real MariaDB as `mariadb_with_log` is, of the tests of one file."""
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb-log"), *WITH_LOG) as server:
        yield server


def _shared(config: pytest.Config, kind: str, type_: type[SharedT], what: str) -> SharedT:
    with skip_if_missing(what):
        found = shared(config, kind)
        assert isinstance(found, type_)
        return found
