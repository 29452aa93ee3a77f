"""What the tests of the stores share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.databases.certificates import Certificates, make_certificates
from tests.databases.postgres import USER
from tests.databases.server import skip_if_missing
from tests.shared import SharedServer
from tests.stores.dialects import Database, MariaDBDatabase, PostgresDatabase, RedisDatabase, SQLDatabase
from tests.stores.mysql.database import MySQLDatabase, mysql_database

if TYPE_CHECKING:
    import asyncpg

    from ackwise.stores.mysql import MySQLStore
    from ackwise.stores.postgres import PostgresStore


@pytest.fixture
async def postgres_url(postgres: SharedServer) -> AsyncIterator[str]:
    """A PostgreSQL database of this test alone, as its owner."""
    import asyncpg

    name, server = f"test_{os.urandom(6).hex()}", f"postgresql://{USER}@127.0.0.1:{postgres.port}"
    connection = await asyncpg.connect(f"{server}/postgres")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    yield f"{server}/{name}"
    connection = await asyncpg.connect(f"{server}/postgres")
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


@pytest.fixture
async def postgres_database(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the database of this test, past the store."""
    import asyncpg

    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def postgres_store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """An open store in the database of this test."""
    from ackwise.stores.postgres import PostgresStore

    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def mysql(mariadb: SharedServer) -> AsyncIterator[MySQLDatabase]:
    """A MariaDB database of this test alone."""
    async with mysql_database(mariadb) as database:
        yield database


@pytest.fixture
async def mysql_store(mysql: MySQLDatabase) -> AsyncIterator[MySQLStore]:
    """An open store in the MariaDB database of this test."""
    from ackwise.stores.mysql import MySQLStore

    store = MySQLStore(mysql.url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def on_postgres(postgres: SharedServer, postgres_url: str) -> PostgresDatabase:
    return PostgresDatabase(postgres, postgres_url)


@pytest.fixture
def on_mysql(mysql: MySQLDatabase) -> MariaDBDatabase:
    return MariaDBDatabase(mysql)


@pytest.fixture
def on_redis(redis: SharedServer) -> RedisDatabase:
    return RedisDatabase(redis, os.urandom(6).hex())


def _each(*names: str) -> list[object]:
    return [pytest.param(f"on_{name}", id=name, marks=pytest.mark.servers) for name in names]


@pytest.fixture(params=_each("postgres", "mysql", "redis"))
def database(request: pytest.FixtureRequest) -> Database:
    """The database of this test on each server."""
    chosen: Database = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(params=_each("postgres", "mysql"))
def sql(request: pytest.FixtureRequest) -> SQLDatabase:
    """The same on each server that speaks SQL."""
    chosen: SQLDatabase = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    """In a folder that the user of PostgreSQL may enter; the key is his where we are root."""
    folder = Path(tempfile.mkdtemp(prefix="ackwise-certificates-"))
    with skip_if_missing("TLS"):
        made = make_certificates(folder)
    folder.chmod(0o755)
    if not os.geteuid():
        shutil.chown(made.key, USER)
    made.key.chmod(0o600)
    yield made
    shutil.rmtree(folder)
