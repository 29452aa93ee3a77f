"""A batch that is killed between any two of its statements leaves all of it or nothing, on every database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.shared import SharedServer
from tests.stores.inbox_process import STEPS
from tests.stores.mysql.database import MySQLDatabase

ROOT = Path(__file__).parents[2]

TABLES = (
    "CREATE TABLE effects (effect VARCHAR(40))",
    "CREATE TABLE balance (total INTEGER NOT NULL)",
    "INSERT INTO balance VALUES (0)",
)


class Shop:
    """A database with the tables that the process writes to; `ask` gives the rows of a statement, read past it."""

    def __init__(self, url: str, ask: Callable[[str], Awaitable[list[Any]]]) -> None:
        self.url = url
        self.ask = ask


@pytest.fixture
def sqlite_shop(tmp_path: Path) -> Shop:
    path = tmp_path / "shop.db"

    async def ask(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, timeout=10)) as connection, connection:
            return connection.execute(statement).fetchall()

    return Shop(f"sqlite:///{path}", ask)


@pytest.fixture
def postgres_shop(postgres: SharedServer, postgres_url: str) -> Shop:
    import asyncpg

    async def ask(statement: str) -> list[Any]:
        connection = await asyncpg.connect(postgres_url)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()

    return Shop(postgres_url, ask)


@pytest.fixture
def mariadb_shop(mariadb: SharedServer, mysql: MySQLDatabase) -> Shop:
    return Shop(mysql.url, mysql.fetch)


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Shop:
    """The one that a test is parametrized with."""
    chosen: Shop = request.getfixturevalue(request.param)
    return chosen


def run_until(step: str, url: str, ids: Sequence[str]) -> None:
    """Let the process come to `step`, and kill it there."""
    command = [sys.executable, "-m", "tests.stores.inbox_process", url, *ids]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for said in process.stdout:
            if said.strip() == step:
                process.kill()
                return
            process.stdin.write("\n")
            process.stdin.flush()
        raise AssertionError(f"it never came to {step}")


@pytest.mark.parametrize(
    "shop",
    [
        pytest.param("sqlite_shop", id="sqlite"),
        pytest.param("postgres_shop", id="postgres", marks=pytest.mark.servers),
        pytest.param("mariadb_shop", id="mariadb", marks=[pytest.mark.servers, pytest.mark.nightly]),
    ],
    indirect=True,
)
@pytest.mark.slow  # fourteen processes, one after the other
async def test_a_batch_killed_between_any_two_statements_is_there_once_in_the_end(shop: Shop) -> None:
    for statement in TABLES:
        await shop.ask(statement)
    every: list[str] = []
    for step in STEPS:
        ids = [os.urandom(16).hex() for _ in range(5)]
        run_until(step, shop.url, [*every[-2:], *ids])
        ((after_the_kill,),) = await shop.ask("SELECT count(*) FROM effects")
        assert after_the_kill == len(every) + (len(ids) if step == "committed" else 0)
        run_until("committed", shop.url, [*ids, *every[-3:]])
        every += ids
        assert sorted(effect for (effect,) in await shop.ask("SELECT effect FROM effects")) == sorted(every)
        ((balance,),) = await shop.ask("SELECT total FROM balance")
        assert balance == len(every)
