"""The databases of one test, each reached in the same ways: by URL, through a proxy, past the store, and in an open transaction."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlencode

from tests.databases.postgres import USER
from tests.databases.server import Endpoint, Server
from tests.stores.mysql.database import MySQLDatabase
from tests.waiting import PATIENCE

from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Exchange

if TYPE_CHECKING:
    from asyncmy.connection import Connection


class Database(abc.ABC):
    """One whose stores are told from those of other tests."""

    #: Options of a URL that let a store have one connection.
    single: ClassVar[dict[str, object]] = {}

    def __init__(self, server: Endpoint) -> None:
        self.server = cast(Server, server)  # one that may be stopped where the test's file owns it

    @abc.abstractmethod
    def url(self, way: Endpoint | None = None, **options: object) -> str:
        """The URL, through a proxy if one is given."""


class RedisDatabase(Database):
    """A namespace of a Redis."""

    def __init__(self, server: Endpoint, namespace: str) -> None:
        super().__init__(server)
        self._namespace = namespace

    def url(self, way: Endpoint | None = None, **options: object) -> str:
        return f"redis://127.0.0.1:{(way or self.server).port}?{urlencode({'namespace': self._namespace, **options})}"


class SQLDatabase(Database):
    """A database of a server that speaks SQL."""

    single: ClassVar[dict[str, object]] = {"max_size": 1}
    #: What adds days to a column of times, and what takes half a second.
    days: str
    sleep: str

    @abc.abstractmethod
    async def execute(self, statement: str) -> list[Any]:
        """The rows of a statement, on its own connection."""

    @abc.abstractmethod
    async def run(self, connection: Any, *statements: str) -> None:
        """Execute statements on a connection of the driver, as a handler does."""

    @abc.abstractmethod
    def holding(self, keys: Sequence[ClaimKey], token: int) -> AbstractAsyncContextManager[Callable[[str], Awaitable[object]]]:
        """Claim `keys` in a transaction that stays open until what this gives is called with COMMIT or ROLLBACK."""

    @abc.abstractmethod
    async def is_waited(self) -> bool:
        """Whether anybody waits for a lock."""

    @abc.abstractmethod
    async def deadlocks(self) -> int:
        """How many there were."""

    async def until_somebody_waits(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.is_waited():  # noqa: ASYNC110  # the server's state
                await asyncio.sleep(0.12)  # MariaDB's view is made again once nobody has looked at it for a tenth of a second


class PostgresDatabase(SQLDatabase):
    days = "{} + {} * interval '1 day'"
    sleep = "SELECT pg_sleep(0.5)"

    def __init__(self, server: Endpoint, url: str) -> None:
        super().__init__(server)
        self.name = url.rpartition("/")[2]

    def url(self, way: Endpoint | None = None, **options: object) -> str:
        said = f"?{urlencode(options)}" if options else ""
        return f"postgresql://{USER}@127.0.0.1:{(way or self.server).port}/{self.name}{said}"

    async def execute(self, statement: str) -> list[Any]:
        import asyncpg

        connection = await asyncpg.connect(self.url())
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def run(self, connection: Any, *statements: str) -> None:
        for statement in statements:
            await connection.execute(statement)

    @asynccontextmanager
    async def holding(self, keys: Sequence[ClaimKey], token: int) -> AsyncIterator[Callable[[str], Awaitable[object]]]:
        import asyncpg

        from ackwise.stores.postgres.claims import exchanging
        from ackwise.stores.postgres.driver import AsyncpgRunner
        from ackwise.stores.postgres.tables import Tables
        from ackwise.stores.sql.operation import run

        connection = await asyncpg.connect(self.url())
        await connection.execute("BEGIN")
        exchange = Exchange([Claim(key, token) for key in keys])
        await run(exchanging(Tables())(exchange), AsyncpgRunner(connection))
        yield connection.execute
        await connection.close()

    async def is_waited(self) -> bool:
        return await self.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)]

    async def deadlocks(self) -> int:
        ((count,),) = await self.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(count)


class MariaDBDatabase(SQLDatabase):
    days = "{} + INTERVAL {} DAY"
    sleep = "SELECT SLEEP(0.5)"

    def __init__(self, database: MySQLDatabase) -> None:
        super().__init__(database.server)
        self._database, self.name = database, database.name

    def url(self, way: Endpoint | None = None, **options: object) -> str:
        return self._database.url_by(way or self.server) + (f"?{urlencode(options)}" if options else "")

    async def execute(self, statement: str) -> list[Any]:
        return await self._database.fetch(statement)

    def connected(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of its own."""
        return self._database.connected()

    async def run(self, connection: Any, *statements: str) -> None:
        async with connection.cursor() as cursor:
            for statement in statements:
                await cursor.execute(statement)

    @asynccontextmanager
    async def holding(self, keys: Sequence[ClaimKey], token: int) -> AsyncIterator[Callable[[str], Awaitable[object]]]:
        from ackwise.stores.mysql import claims as statements
        from ackwise.stores.mysql.schema import Tables
        from ackwise.stores.protocol.transitions import asked

        claims = asked(Exchange([Claim(key, token) for key in sorted(keys)]))
        async with self._database.connected() as connection, connection.cursor() as cursor:
            await cursor.execute("BEGIN")
            (statement,) = statements.packet(Tables(), statements.MARIADB, claims, Exchange())
            await cursor.execute(statement.text)
            yield cursor.execute

    async def is_waited(self) -> bool:
        return bool(await self.execute("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"))

    async def deadlocks(self) -> int:
        return await self._database.deadlocks()
