"""A MariaDB database with an outbox or a table, and a relay of the server's binary log."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncmy
from tests.databases.mysql import said
from tests.databases.server import Endpoint
from tests.plugin.outbox.cdc.world import World

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.changes import Change
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.plugin.outbox.cdcroutes import MappedRows, OutboxRows, Route
from ackwise.stores.mysql.binlog import MySQLChanges
from ackwise.stores.mysql.outbox import MySQLOutbox

if TYPE_CHECKING:
    from asyncmy.connection import Connection


class BinlogWorld(World):
    """As `World`, with MariaDB: `database` is a connection of the business, in autocommit."""

    database: Connection  # type: ignore[assignment]
    outbox: MySQLOutbox  # type: ignore[assignment]

    def __init__(self, url: str, database: Connection) -> None:
        super().__init__("postgresql://nobody@127.0.0.1/none", database, "ackwise")  # type: ignore[arg-type]
        self.url = url
        self.outbox = MySQLOutbox(url)

    def source(self, **options: Any) -> MySQLChanges:  # type: ignore[override]
        return MySQLChanges(self.url, **{"create": True, **options})

    def relay(self, mapping: Callable[[Change], Outgoing | None] | None = None, *, on_error: str = "block", **options: Any) -> CdcRelay:
        source, store = self.source(**options), MySQLOutbox(self.url, keep_sent=self.keep_sent)
        route: Route = (
            MappedRows(mapping)
            if mapping is not None
            else OutboxRows(store, source.outbox_row, owner="cdc/ackwise", name="shop", on_error=on_error)
        )
        kafka = self.kafka
        return CdcRelay(source, route, new_sender=lambda: kafka, brokers_answer=kafka.answers, sink=self.sink)

    def silence(self, relay: CdcRelay) -> None:
        async def nothing() -> None:
            pass

        source = relay._source
        assert isinstance(source, MySQLChanges)
        source._report = nothing  # type: ignore[method-assign]

    async def run(self, *statements: str) -> list[Any]:
        """Run statements, and return the rows of the last one."""
        rows: list[Any] = []
        async with self.database.cursor() as cursor:
            for statement in statements:
                await cursor.execute(said(statement))
                rows = list(await cursor.fetchall()) if cursor.description else []
        return rows

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        address = urlsplit(self.url)
        host, port, database = address.hostname, address.port or 3306, address.path[1:]
        async with asyncmy.connect(host=host, port=port, user="root", database=database, autocommit=True) as connection:
            yield connection

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        return await self.run(query)

    async def cut_off(self) -> None:
        for (thread,) in await self.run("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'"):
            await self.run(f"KILL {thread}")

    async def confirmed(self) -> str:
        """The position that is kept."""
        file, position = (await self.run("SELECT log_file, log_position FROM ackwise_cdc"))[0]
        return f"{file.decode()}:{position}"

    async def end(self) -> str:
        """Where the log ends."""
        file, position, *_ = (await self.run("SHOW MASTER STATUS"))[0]
        return f"{file}:{position}"

    async def freed(self) -> None:
        """The lease of a reader that was killed has ended."""
        await self.run("UPDATE ackwise_cdc SET leased_until = '2000-01-01'")


@asynccontextmanager
async def binlog_world(server: Endpoint, *, user: str = "root") -> AsyncIterator[BinlogWorld]:
    """A new database with an outbox while the block runs."""
    name = f"cdc_{os.urandom(6).hex()}"
    connecting = {"host": "127.0.0.1", "port": server.port, "user": "root", "autocommit": True}
    async with asyncmy.connect(**connecting, database="mysql") as admin:
        async with admin.cursor() as cursor:
            await cursor.execute(f"CREATE DATABASE {name}")
        async with asyncmy.connect(**connecting, database=name) as database:
            world = BinlogWorld(f"mariadb://{user}@127.0.0.1:{server.port}/{name}", database)
            await world.outbox.open()
            try:
                yield world
            finally:
                await world.outbox.close()
        async with admin.cursor() as cursor:
            await cursor.execute(f"DROP DATABASE {name}")
