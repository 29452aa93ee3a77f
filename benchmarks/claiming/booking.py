"""Exactly once: each message moves the balance of an account, and is remembered in the same transaction."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncmy
import asyncpg
from asyncmy.connection import Connection
from benchmarks.claiming.way import Step

from ackwise.middleware.storage.claimstore import ClaimKey, Outcome
from ackwise.middleware.storage.transaction import Finish, OffsetsStore, Taken, TransactionalStore

Book = Callable[[Any, list[tuple[int, int]]], Awaitable[None]]
"""What the handler does: one row update for each message, account and amount, by the driver's executemany."""

_ACCOUNTS = 10_000
_DAY = 86400.0
_POSTGRES = "UPDATE account SET balance = balance + $2 WHERE id = $1"
_MARIADB = "UPDATE account SET balance = balance + 1 WHERE id = %s"


async def prepare(url: str) -> None:
    """Make the accounts, and the inbox of those who write theirs by hand."""
    await (_prepare_mariadb(url) if url.startswith("mariadb") else _prepare_postgres(url))


async def _prepare_postgres(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"""
        DROP TABLE IF EXISTS account, classic_inbox;
        CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
        INSERT INTO account SELECT id, 0 FROM generate_series(1, {_ACCOUNTS}) AS id;
        CREATE TABLE classic_inbox (k uuid PRIMARY KEY, kept_until timestamptz NOT NULL)""")
    await connection.close()


async def _prepare_mariadb(url: str) -> None:
    async with _mariadb(url) as connection, connection.cursor() as cursor:
        await cursor.execute("CREATE OR REPLACE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL)")
        await cursor.execute(f"INSERT INTO account SELECT seq, 0 FROM seq_1_to_{_ACCOUNTS}")
        await cursor.execute("CREATE OR REPLACE TABLE classic_inbox (k BINARY(16) PRIMARY KEY, kept_until DATETIME NOT NULL)")
        await connection.commit()


@asynccontextmanager
async def postgres_per_message(url: str) -> AsyncIterator[Step]:
    """BEGIN, INSERT … ON CONFLICT DO NOTHING, UPDATE, COMMIT for each message."""
    connection, accounts = await asyncpg.connect(url), _accounts()
    insert = "INSERT INTO classic_inbox VALUES ($1, now() + interval '1 day') ON CONFLICT DO NOTHING"

    async def step() -> int:
        async with connection.transaction():
            if await connection.execute(insert, os.urandom(16).hex()) == "INSERT 0 1":
                await connection.execute(_POSTGRES, next(accounts), 1)
        return 1

    yield step
    await connection.close()


@asynccontextmanager
async def postgres_alone(url: str) -> AsyncIterator[Step]:
    """UPDATE for each message, committed by itself; a message that comes twice counts twice."""
    connection, accounts = await asyncpg.connect(url), _accounts()

    async def step() -> int:
        await connection.execute(_POSTGRES, next(accounts), 1)
        return 1

    yield step
    await connection.close()


@asynccontextmanager
async def mariadb_per_message(url: str) -> AsyncIterator[Step]:
    """BEGIN, INSERT IGNORE, UPDATE, COMMIT for each message."""
    accounts = _accounts()
    async with _mariadb(url) as connection, connection.cursor() as cursor:

        async def step() -> int:
            await connection.begin()
            if await cursor.execute("INSERT IGNORE INTO classic_inbox VALUES (%s, NOW() + INTERVAL 1 DAY)", (os.urandom(16),)):
                await cursor.execute(_MARIADB, (next(accounts),))
            await connection.commit()
            return 1

        yield step


async def book_postgres(connection: asyncpg.Connection, amounts: list[tuple[int, int]]) -> None:
    """All in one trip."""
    await connection.executemany(_POSTGRES, amounts)


async def book_mariadb(connection: Connection, amounts: list[tuple[int, int]]) -> None:
    """asyncmy makes one statement of many rows for an INSERT, and of an UPDATE a trip for each row; the accounts are all there."""
    statement = "INSERT INTO account (id, balance) VALUES (%s, %s) ON DUPLICATE KEY UPDATE balance = balance + VALUES(balance)"
    async with connection.cursor() as cursor:
        await cursor.executemany(statement, amounts)


@asynccontextmanager
async def inbox(make: Callable[[], TransactionalStore], book: Book, size: int) -> AsyncIterator[Step]:
    """What `Transactional` does with a batch: start, claim, the handler's executemany, finish, commit."""
    store, accounts = make(), _accounts()
    await store.open()

    async def step() -> int:
        keys = [ClaimKey(os.urandom(16), None, 1) for _ in range(size)]
        async with store.begin(retention=_DAY) as transaction:
            answers = await transaction.claim(keys)
            assert all(isinstance(answer, Taken) for answer in answers)
            await book(transaction.connection, [(next(accounts), 1) for _ in keys])
            await transaction.finish([Finish(key, ("orders", 0, i), i, Outcome.OK, 0) for i, key in enumerate(keys)])
        return size

    yield step
    await store.close()


@asynccontextmanager
async def offsets(make: Callable[[], OffsetsStore], book: Book, size: int) -> AsyncIterator[Step]:
    """The same with one row for the partition: start, lock, the handler's executemany, finish, advance, commit."""
    store, accounts, owner = make(), _accounts(), f"bench-{time.time_ns()}"
    await store.open()
    _, generation = await store.take_over(owner, "orders", 0, position=0)

    async def step() -> int:
        async with store.begin(retention=_DAY) as begun:
            transaction: Any = begun  # of an OffsetsStore: OffsetsTransaction
            start = await transaction.lock(owner, "orders", 0, generation)
            await book(transaction.connection, [(next(accounts), 1) for _ in range(size)])
            await transaction.finish([])  # nothing was sent back
            await transaction.advance(owner, "orders", 0, generation, start + size)
        return size

    yield step
    await store.close()


def _accounts() -> Iterator[int]:
    return itertools.cycle(range(1, _ACCOUNTS + 1))


@asynccontextmanager
async def _mariadb(url: str) -> AsyncIterator[Connection]:
    port, database = url.rpartition(":")[2].split("/")
    async with asyncmy.connect(host="127.0.0.1", port=int(port), user="root", db=database) as connection:
        yield connection
