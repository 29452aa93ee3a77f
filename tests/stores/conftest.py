"""What the tests of the stores share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from tests.databases.postgres import USER
from tests.shared import SharedServer
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
