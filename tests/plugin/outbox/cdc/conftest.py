"""What the tests of change data capture share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from tests.databases.postgres import USER
from tests.plugin.outbox.cdc.binlogworld import binlog_world
from tests.plugin.outbox.cdc.world import World, database_of
from tests.shared import SharedServer


def database_on(server: SharedServer) -> AbstractAsyncContextManager[World]:
    """A new database, with an outbox and no slot yet."""
    return database_of(f"postgresql://{USER}@127.0.0.1:{server.port}", f"cdc_{os.urandom(6).hex()}")


@pytest.fixture
async def world(postgres: SharedServer) -> AsyncIterator[World]:
    """A database of this test alone, on PostgreSQL."""
    async with database_on(postgres) as world:
        yield world


@pytest.fixture(params=["postgres", "mariadb_with_log"])
async def any_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A database of this test alone, on each of the two."""
    server: SharedServer = request.getfixturevalue(request.param)
    async with database_on(server) if request.param == "postgres" else binlog_world(server) as world:
        yield world
