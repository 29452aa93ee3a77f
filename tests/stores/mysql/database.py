"""A MariaDB database of one test, reached past the store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.databases.server import Endpoint

if TYPE_CHECKING:
    from asyncmy.connection import Connection


class MySQLDatabase:
    """Its name, its URLs, and statements to it as `root`."""

    def __init__(self, server: Endpoint, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        return self.url_by(self.server)

    def url_by(self, way: Endpoint, user: str = "root") -> str:
        """The URL through a proxy, or as another user."""
        return f"mariadb://{user}@127.0.0.1:{way.port}/{self.name}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A connection of its own."""
        import asyncmy

        async with asyncmy.connect(host="127.0.0.1", port=self.server.port, user="root", database=self.name, autocommit=True) as connection:
            yield connection

    async def fetch(self, statement: str) -> list[Any]:
        """The rows of a statement, on its own connection."""
        async with self.connected() as connection, connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall()) if cursor.description else []

    async def deadlocks(self) -> int:
        """How many the server has found since it started."""
        ((count,),) = await self.fetch("SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'")
        return int(count)


@asynccontextmanager
async def mysql_database(server: Endpoint) -> AsyncIterator[MySQLDatabase]:
    """A new one while the block runs."""
    # Everybody may do everything in databases whose name starts with `test`.
    database, outside = MySQLDatabase(server, f"only_{os.urandom(6).hex()}"), MySQLDatabase(server, "mysql")
    await outside.fetch(f"CREATE DATABASE {database.name}")
    yield database
    await outside.fetch(f"DROP DATABASE {database.name}")
