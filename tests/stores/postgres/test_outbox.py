"""The PostgreSQL outbox passes the suite of every outbox, and bears what only a server can do to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.server import Server

from ackwise.middleware.outbox import OutboxStore
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.testing.outbox import OutboxConformance


class TestPostgresOutbox(OutboxConformance):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: Server) -> None:
        self.url = f"postgresql://{USER}@127.0.0.1:{postgres.port}/postgres"
        self.prefix = f"t{os.urandom(6).hex()}_"

    def make(self, place: Path) -> OutboxStore:
        return PostgresOutbox(self.url, prefix=self.prefix, retention=0.0)

    async def prepare(self, place: Path) -> None:
        async with self.connect(place) as connection:
            await connection.execute(f"CREATE TABLE {self.prefix}effects (effect text PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = connection.transaction()
        return transaction

    savepoint = begin

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(f"INSERT INTO {self.prefix}effects VALUES ($1)", effect)

    async def effects(self, place: Path) -> list[str]:
        async with self.connect(place) as connection:
            return [effect for (effect,) in await connection.fetch(f"SELECT effect FROM {self.prefix}effects")]

    async def age(self, place: Path, seconds: float) -> None:
        async with self.connect(place) as connection:
            for table in ("outbox", "outbox_barrier"):
                await connection.execute(f"UPDATE {self.prefix}{table} SET created = created - $1 * interval '1 s'", seconds)
