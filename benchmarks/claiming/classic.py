"""Deduplication as people write it: two awaited operations for each message, with the driver that Ackwise's store uses.

One claims by inserting what must not be there yet, the other one marks it as done. Nobody fences, and a claim of somebody who died
ends only where the database lets keys expire.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import asyncmy
import asyncpg
from benchmarks.claiming.way import Step
from redis.asyncio import BlockingConnectionPool, Redis

from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimKey, Complete, Exchange, Outcome
from ackwise.stores.memory import MemoryStore

#: Connections of a pool. asyncpg's and asyncmy's own pools cost a round trip more for each use; this one does not.
POOL = 20

_POSTGRES = (
    "CREATE TABLE IF NOT EXISTS classic (k uuid PRIMARY KEY, done boolean NOT NULL, kept_until timestamptz NOT NULL)",
    "INSERT INTO classic VALUES ($1, false, now() + interval '30 s') ON CONFLICT DO NOTHING",
    "UPDATE classic SET done = true, kept_until = now() + interval '1 day' WHERE k = $1",
)
_MARIADB = (
    "CREATE TABLE IF NOT EXISTS classic (k BINARY(16) PRIMARY KEY, done BOOLEAN NOT NULL, kept_until DATETIME NOT NULL)",
    "INSERT IGNORE INTO classic VALUES (%s, FALSE, NOW() + INTERVAL 30 SECOND)",
    "UPDATE classic SET done = TRUE, kept_until = NOW() + INTERVAL 1 DAY WHERE k = %s",
)
_SQLITE = (
    "CREATE TABLE IF NOT EXISTS classic (k BLOB PRIMARY KEY, done INTEGER NOT NULL, kept_until INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO classic VALUES (?, 0, unixepoch() + 30)",
    "UPDATE classic SET done = 1, kept_until = unixepoch() + 86400 WHERE k = ?",
)


@asynccontextmanager
async def redis(url: str, tasks: int) -> AsyncIterator[Step]:
    """SET NX EX, then SET EX."""
    pool = BlockingConnectionPool.from_url(url, max_connections=min(tasks, POOL), timeout=None)
    client = Redis(connection_pool=pool)

    async def step() -> int:
        key = os.urandom(16)
        if await client.set(key, b"claimed", nx=True, ex=30):
            await client.set(key, b"done", ex=86400)
        return 1

    yield step
    await client.aclose()
    await pool.aclose()


@asynccontextmanager
async def postgres(url: str, tasks: int) -> AsyncIterator[Step]:
    """INSERT … ON CONFLICT DO NOTHING, then UPDATE, each committed by itself."""
    create, claim, complete = _POSTGRES
    connections: asyncio.Queue[asyncpg.Connection] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        for number in range(min(tasks, POOL)):
            opened = await asyncpg.connect(url)
            stack.push_async_callback(opened.close)
            connections.put_nowait(opened)
            if number == 0:
                await opened.execute(create)

        async def step() -> int:
            key, connection = os.urandom(16).hex(), await connections.get()
            if await connection.execute(claim, key) == "INSERT 0 1":
                await connection.execute(complete, key)
            connections.put_nowait(connection)
            return 1

        yield step


@asynccontextmanager
async def mariadb(url: str, tasks: int) -> AsyncIterator[Step]:
    """INSERT IGNORE, then UPDATE, each committed by itself; `url` is `mariadb://root@127.0.0.1:PORT/DATABASE`."""
    create, claim, complete = _MARIADB
    port, database = url.rpartition(":")[2].split("/")
    cursors: asyncio.Queue[Callable[[str, tuple[bytes]], Awaitable[int]]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        for number in range(min(tasks, POOL)):
            connection = await asyncmy.connect(host="127.0.0.1", port=int(port), user="root", db=database, autocommit=True)
            await stack.enter_async_context(connection)
            cursor = await stack.enter_async_context(connection.cursor())
            cursors.put_nowait(cursor.execute)
            await cursor.execute("SET sql_notes = 0")
            if number == 0:
                await cursor.execute(create)

        async def step() -> int:
            key, execute = (os.urandom(16),), await cursors.get()
            if await execute(claim, key):
                await execute(complete, key)
            cursors.put_nowait(execute)
            return 1

        yield step


@asynccontextmanager
async def sqlite(url: str, tasks: int) -> AsyncIterator[Step]:
    """INSERT OR IGNORE, then UPDATE, each committed by itself and run in a thread, as Ackwise's store does."""
    with ThreadPoolExecutor(1) as thread:
        loop = asyncio.get_running_loop()
        claim, complete, close = await loop.run_in_executor(thread, _sqlite, url)

        async def step() -> int:
            key = (os.urandom(16),)
            if await loop.run_in_executor(thread, claim, key):
                await loop.run_in_executor(thread, complete, key)
            return 1

        yield step
        await loop.run_in_executor(thread, close)


@asynccontextmanager
async def sqlite_blocking(url: str) -> AsyncIterator[Step]:
    """The same without a thread: while SQLite works, nothing else does."""
    claim, complete, close = _sqlite(url)

    async def step() -> int:
        key = (os.urandom(16),)
        if claim(key):
            complete(key)
        return 1

    yield step
    close()


def _sqlite(url: str) -> tuple[Callable[[tuple[bytes]], int], Callable[[tuple[bytes]], int], Callable[[], None]]:
    """What claims, completes and closes; as durable as Ackwise's store is unless told otherwise."""
    create, claim, complete = _SQLITE
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(create)
    return lambda key: connection.execute(claim, key).rowcount, lambda key: connection.execute(complete, key).rowcount, connection.close


@asynccontextmanager
async def memory(url: str, tasks: int) -> AsyncIterator[Step]:
    """Two exchanges for each message with Ackwise's own store, since nobody else's memory is comparable."""
    store = MemoryStore()

    async def step() -> int:
        key, token = ClaimKey(os.urandom(16), None, 1), 1
        claimed = await store.exchange(Exchange(claims=[Claim(key, token)]))
        if isinstance(claimed.claims[0], Acquired):
            await store.exchange(Exchange(completes=[Complete(key, token, Outcome.OK)]))
        return 1

    yield step
