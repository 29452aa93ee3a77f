"""The PostgreSQL inbox passes the suite of every inbox, and bears what only a server can do to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.databases.postgres import USER
from tests.databases.server import Server

from ackwise.middleware.transaction import TransactionalStore
from ackwise.stores.inbox.postgres import PostgresInbox
from ackwise.stores.inbox.testing import InboxConformance


def url_of(server: Any, database: str = "postgres", user: str = USER) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


class TestPostgresInbox(InboxConformance):
    @pytest.fixture(autouse=True)
    def _on(self, postgres: Server) -> None:
        self.url = url_of(postgres)

    def make(self, place: Path) -> TransactionalStore:
        return PostgresInbox(self.url)

    async def prepare(self, place: Path) -> None:
        self.table = f"effects_{os.urandom(6).hex()}"
        await self._past(f"CREATE TABLE {self.table} (effect text PRIMARY KEY)")

    async def write(self, connection: Any, effect: str) -> None:
        await connection.execute(f"INSERT INTO {self.table} VALUES ($1)", effect)

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self._past(f"SELECT effect FROM {self.table}")]

    async def commit(self, connection: Any) -> None:
        await connection.execute("COMMIT")

    async def _past(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()
