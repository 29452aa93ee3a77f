"""The SQLite inbox passes the suite of every inbox, and waits for the file without holding up the loop."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stores.cases import case
from tests.waiting import turns

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.storage.transaction import TransactionalStore
from ackwise.stores.conformance.inbox import OffsetsConformance
from ackwise.stores.sqlite.inbox import SQLiteInbox, from_url


class TestSQLiteInbox(OffsetsConformance):
    def make(self, place: Path) -> TransactionalStore:
        return SQLiteInbox(place / "shop.db")

    async def prepare(self, place: Path) -> None:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            connection.execute("CREATE TABLE effects (effect TEXT PRIMARY KEY)")

    async def write(self, connection: Any, effect: str) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", (effect,))

    async def effects(self, place: Path) -> list[str]:
        with closing(sqlite3.connect(place / "shop.db")) as connection:
            return [effect for (effect,) in connection.execute("SELECT effect FROM effects")]

    async def commit(self, connection: Any) -> None:
        connection.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


async def run(inbox: SQLiteInbox, *statements: str) -> None:
    """One transaction of a handler that executes `statements`."""
    async with inbox.begin(retention=60.0) as transaction:
        for statement in statements:
            transaction.connection.execute(statement)


async def test_it_waits_for_whoever_has_a_new_file_to_itself_and_lets_the_loop_go_on(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")  # SQLite itself waits for nobody when it switches to WAL
    inbox = SQLiteInbox(path, timeout=60.0)
    opening = asyncio.create_task(inbox.open())
    await turns()
    assert not opening.done()
    other.execute("ROLLBACK")
    other.close()
    await opening
    await inbox.close()


async def test_two_that_open_one_inbox_at_once_make_one_connection(path: Path) -> None:
    connections: list[sqlite3.Connection] = []
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    inbox = SQLiteInbox(path, timeout=60.0, prepare=connections.append)
    opening = asyncio.gather(inbox.open(), inbox.open())
    await turns()
    other.execute("ROLLBACK")
    other.close()
    connections.clear()  # those of attempts that found the file busy
    await opening
    await inbox.close()
    assert len(connections) == 1


async def test_many_can_open_a_new_file_at_once(path: Path) -> None:
    inboxes = [SQLiteInbox(path, timeout=60.0) for _ in range(8)]
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, _opened_and_closed(inbox)) for inbox in inboxes))


async def _opened_and_closed(inbox: SQLiteInbox) -> None:
    await inbox.open()
    await inbox.close()


async def test_a_commit_and_a_new_transaction_of_the_handler_are_found_out_too(path: Path) -> None:
    inbox = SQLiteInbox(path)
    await inbox.open()
    with pytest.raises(TransactionAborted):
        await run(inbox, "COMMIT", "BEGIN")
    await inbox.close()


async def test_what_the_database_refuses_at_commit_is_the_handlers_fault(path: Path) -> None:
    inbox = SQLiteInbox(path, prepare=lambda connection: connection.execute("PRAGMA foreign_keys = ON"))
    await inbox.open()
    with pytest.raises(TransactionAborted, match="refuses to commit what the handler wrote: FOREIGN KEY"):
        await run(
            inbox,
            "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
            "CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO child VALUES (7)",
        )
    await run(inbox, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")  # nothing of it stayed
    await inbox.close()


async def test_a_file_that_another_process_writes_to_is_waited_for_and_the_loop_goes_on(path: Path) -> None:
    inbox = SQLiteInbox(path, timeout=0.2)
    await inbox.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(StoreUnavailable, match=r"another writer held the file for 0\.2 s"):
        async with inbox.begin(retention=60.0):
            pass
    ticking.cancel()
    assert ticks > 10
    other.execute("ROLLBACK")
    other.close()
    async with inbox.begin(retention=60.0):
        pass
    await inbox.close()


async def test_files_that_can_not_be_an_inbox_are_refused_with_a_sentence(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the folder of the inbox does not exist"):
        await SQLiteInbox(path / "deeper" / "shop.db").open()
    inbox = SQLiteInbox(path)
    await inbox.open()
    await inbox.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ackwise_schema SET version = 9")
    with pytest.raises(ConfigurationError, match="its inbox has version 9, and this Ackwise knows version 4 alone"):
        await SQLiteInbox(path).open()


def test_a_url_that_can_not_work_is_refused() -> None:
    for url, why in [
        ("sqlite://", "names no file"),
        ("sqlite:///a.db?timeuot=1", "has no option timeuot; it has timeout"),
        ("sqlite:///a.db?timeout=soon", "timeout is 'soon'"),
        ("sqlite:///a.db?timeout=0", "timeout is 0.0"),
    ]:
        with case(url, why), pytest.raises(ConfigurationError, match=why):
            from_url(url)


async def test_an_inbox_is_closed_after_a_take_over_that_failed(tmp_path: Path) -> None:
    inbox = SQLiteInbox(tmp_path / "shop.db")
    await inbox.open()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("DROP TABLE ackwise_offsets")
    with pytest.raises(StoreUnavailable) as caught:
        await inbox.take_over("billing", "orders", 0, position=0)
    await inbox.close()
    assert caught.value is not None
