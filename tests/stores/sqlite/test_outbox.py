"""The SQLite outbox passes the suite of every outbox; one relay has it at a time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from ackwise.middleware.outbox import OutboxStore
from ackwise.stores.sqlite.outbox import SQLiteOutbox
from ackwise.stores.testing.outbox import OutboxConformance, OutboxFeatures


class TestSQLiteOutbox(OutboxConformance):
    features = OutboxFeatures(relays=False, writers=False)

    @pytest.fixture(autouse=True, params=["", None], ids=["legacy", "autocommit"])
    def _isolation(self, request: pytest.FixtureRequest) -> None:
        self.isolation_level = request.param

    def make(self, place: Path) -> OutboxStore:
        return SQLiteOutbox(place / "shop.db", retention=0.0)

    async def prepare(self, place: Path) -> None:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        with closing(sqlite3.connect(place / "shop.db", isolation_level=self.isolation_level, timeout=0.0)) as connection:
            yield connection

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _begun(connection)

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        return _saved(connection)

    async def write(self, connection: Any, effect: str) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (effect,))

    async def effects(self, place: Path) -> list[str]:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            return [effect for (effect,) in connection.execute("SELECT effect FROM effects")]

    async def age(self, place: Path, seconds: float) -> None:
        with closing(sqlite3.connect(place / "shop.db")) as connection, connection:
            for table in ("ackwise_outbox", "ackwise_outbox_barrier"):
                connection.execute(f"UPDATE {table} SET created = created - ?", (seconds,))


@asynccontextmanager
async def _begun(connection: sqlite3.Connection) -> AsyncIterator[None]:
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            await asyncio.sleep(0.002)
        else:
            break
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@asynccontextmanager
async def _saved(connection: sqlite3.Connection) -> AsyncIterator[None]:
    connection.execute("SAVEPOINT mine")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO mine")
        connection.execute("RELEASE mine")
        raise
    connection.execute("RELEASE mine")
