"""The MySQL outbox passes the suite of every outbox on MariaDB, and bears what only a server can do to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.databases.server import Server
from tests.stores.mysql.database import MySQLDatabase

from ackwise.middleware.outbox import OutboxStore
from ackwise.stores.mysql.outbox import MySQLOutbox
from ackwise.stores.testing.outbox import OutboxConformance


class TestMySQLOutbox(OutboxConformance):
    isolation = "REPEATABLE READ"

    @pytest.fixture(autouse=True)
    def _on(self, mariadb: Server) -> None:
        self.database = MySQLDatabase(mariadb, "test")
        self.prefix = f"t{os.urandom(6).hex()}_"

    def make(self, place: Path) -> OutboxStore:
        return MySQLOutbox(self.database.url, prefix=self.prefix, retention=0.0)

    async def prepare(self, place: Path) -> None:
        await self.database.fetch(f"CREATE TABLE {self.prefix}effects (effect VARCHAR(60) PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        async with self.database.connected() as connection:
            await execute(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {self.isolation}")
            yield connection

    @asynccontextmanager
    async def begin(self, connection: Any) -> AsyncIterator[Any]:
        await connection.begin()
        try:
            yield
        except BaseException:
            await connection.rollback()
            raise
        await connection.commit()

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return savepoint(connection)

    async def write(self, connection: Any, effect: str) -> None:
        await execute(connection, f"INSERT INTO {self.prefix}effects VALUES ('{effect}')")

    async def effects(self, place: Path) -> list[str]:
        return [effect for (effect,) in await self.database.fetch(f"SELECT effect FROM {self.prefix}effects")]

    async def age(self, place: Path, seconds: float) -> None:
        for table in ("outbox", "outbox_barrier"):
            await self.database.fetch(f"UPDATE {self.prefix}{table} SET created = created - INTERVAL {seconds} SECOND")


class TestMySQLOutboxInReadCommitted(TestMySQLOutbox):
    isolation = "READ COMMITTED"


@asynccontextmanager
async def savepoint(connection: Any) -> AsyncIterator[None]:
    name = f"s{os.urandom(4).hex()}"
    await execute(connection, f"SAVEPOINT {name}")
    try:
        yield
    except BaseException:
        await execute(connection, f"ROLLBACK TO SAVEPOINT {name}")
        raise
    await execute(connection, f"RELEASE SAVEPOINT {name}")


async def execute(connection: Any, *statements: str) -> None:
    async with connection.cursor() as cursor:
        for statement in statements:
            await cursor.execute(statement)
