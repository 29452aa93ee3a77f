"""Exactly once in PostgreSQL: each message moves the balance of an account, and is remembered in the same transaction."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
from benchmarks.claiming.way import Step

from ackwise.middleware.store import ClaimKey, Outcome
from ackwise.middleware.transaction import Finish, Taken
from ackwise.stores.inbox.postgres import PostgresInbox

__all__ = ["inbox", "offsets", "per_message", "prepare", "update_alone"]

_ACCOUNTS = 10_000
_UPDATE = "UPDATE account SET balance = balance + $2 WHERE id = $1"
_DAY = 86400.0


async def prepare(url: str) -> None:
    """Make the accounts, and the inbox of those who write theirs by hand."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"""
        DROP TABLE IF EXISTS account, classic_inbox;
        CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
        INSERT INTO account SELECT id, 0 FROM generate_series(1, {_ACCOUNTS}) AS id;
        CREATE TABLE classic_inbox (k uuid PRIMARY KEY, kept_until timestamptz NOT NULL)""")
    await connection.close()


@asynccontextmanager
async def per_message(url: str) -> AsyncIterator[Step]:
    """BEGIN, INSERT … ON CONFLICT DO NOTHING, UPDATE, COMMIT for each message."""
    connection, accounts = await asyncpg.connect(url), _accounts()
    insert = "INSERT INTO classic_inbox VALUES ($1, now() + interval '1 day') ON CONFLICT DO NOTHING"

    async def step() -> int:
        async with connection.transaction():
            if await connection.execute(insert, os.urandom(16).hex()) == "INSERT 0 1":
                await connection.execute(_UPDATE, next(accounts), 1)
        return 1

    yield step
    await connection.close()


@asynccontextmanager
async def update_alone(url: str) -> AsyncIterator[Step]:
    """UPDATE for each message, committed by itself; a message that comes twice counts twice."""
    connection, accounts = await asyncpg.connect(url), _accounts()

    async def step() -> int:
        await connection.execute(_UPDATE, next(accounts), 1)
        return 1

    yield step
    await connection.close()


@asynccontextmanager
async def inbox(url: str, size: int) -> AsyncIterator[Step]:
    """What `Transactional` does with a batch: begin, claim, the handler's executemany, finish, commit."""
    store, accounts = PostgresInbox(url), _accounts()
    await store.open()

    async def step() -> int:
        keys = [ClaimKey(os.urandom(16), None, 1) for _ in range(size)]
        async with store.begin(retention=_DAY) as transaction:
            answers = await transaction.claim(keys)
            assert all(isinstance(answer, Taken) for answer in answers)
            await transaction.connection.executemany(_UPDATE, [(next(accounts), 1) for _ in keys])
            await transaction.finish([Finish(key, ("orders", 0, i), i, Outcome.OK, 0) for i, key in enumerate(keys)])
        return size

    yield step
    await store.close()


@asynccontextmanager
async def offsets(url: str, size: int) -> AsyncIterator[Step]:
    """The same with one row for the partition: begin, lock, the handler's executemany, finish, advance, commit."""
    store, accounts, owner = PostgresInbox(url), _accounts(), f"bench-{time.time_ns()}"
    await store.open()
    _, generation = await store.take_over(owner, "orders", 0, position=0)

    async def step() -> int:
        async with store.begin(retention=_DAY) as transaction:
            start = await transaction.lock(owner, "orders", 0, generation)
            await transaction.connection.executemany(_UPDATE, [(next(accounts), 1) for _ in range(size)])
            await transaction.finish([])  # nothing was sent back
            await transaction.advance(owner, "orders", 0, generation, start + size)
        return size

    yield step
    await store.close()


def _accounts() -> Iterator[int]:
    return itertools.cycle(range(1, _ACCOUNTS + 1))
