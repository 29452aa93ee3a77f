"""Brokers and databases for all tests: each is started once in each process of a run, by the first test that asks for it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from hypothesis import settings
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.postgres import postgres_server
from tests.databases.redis import redis_cluster, redis_server
from tests.databases.server import Server, skip_if_missing
from tests.servers import RawKafka, kafka_or_skip

from ackwise.plugin.local.broker import EmbeddedBroker, LocalKafka
from ackwise.plugin.local.broker import embedded_broker as start_embedded_broker

# A busy machine is no finding: how long an example takes is not what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Before anything imports them: what fails in a suite of ours shows both of its sides.
pytest.register_assert_rewrite("ackwise.stores.testing")

#: A test that asks for one of these is marked by that, so that `make check` can leave it out.
MARKERS = {
    "embedded_broker": "embedded",
    "kafka": "kafka",
    "spark": "spark",
    "redis": "servers",
    "cluster": "servers",
    "postgres": "servers",
    "mariadb": "servers",
    "mariadb_with_log": "servers",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    for fixture in MARKERS.keys() & set(getattr(item, "fixturenames", ())):
        item.add_marker(MARKERS[fixture])


def pytest_collection_finish() -> None:
    """What is there now stays until the end: no collection of garbage looks at it again, which makes each a matter of milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lets a connection that nobody closed fail the test that opened it, and not a later one in which garbage is collected."""
    yield
    if request.node.get_closest_marker("kafka") is not None:
        gc.collect()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A real Apache Kafka that creates no topics by itself. Who stops or pauses it starts it again."""
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
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Redis. Who stops, freezes or fills it starts it again or empties it; databases 0 to 15."""
    with skip_if_missing("Redis"), redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    """A real Redis Cluster of three masters."""
    with skip_if_missing("Redis Cluster"), redis_cluster(tmp_path_factory.mktemp("redis-cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A real PostgreSQL with a log that can be decoded; its user `postgres` may do everything, without a password."""
    with skip_if_missing("PostgreSQL"), postgres_server(wal_level="logical", max_replication_slots=20) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_with_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real MariaDB that writes a binary log which can be read; its user `root` may do everything, without a password."""
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb-log"), *WITH_LOG) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real MariaDB; its user `root` may do everything, without a password."""
    with skip_if_missing("MariaDB"), mariadb_server(tmp_path_factory.mktemp("mariadb")) as server:
        yield server
