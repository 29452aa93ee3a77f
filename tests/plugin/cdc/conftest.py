"""What the tests of change data capture share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from tests.databases.postgres import USER
from tests.plugin.cdc.world import World, database_of
from tests.shared import SharedServer


@pytest.fixture
async def world(postgres: SharedServer) -> AsyncIterator[World]:
    """A database of this test alone, with an outbox and no slot yet."""
    async with database_of(f"postgresql://{USER}@127.0.0.1:{postgres.port}", f"cdc_{os.urandom(6).hex()}") as world:
        yield world
