"""Under a long transaction a relay does not walk over deleted rows, and finds each row that comes late."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.waiting import until

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, OutboxRow, Sent, TransactionOutcome
from ackwise.stores.postgres import floor
from ackwise.stores.postgres.floor import Floor, Seen
from ackwise.stores.postgres.outbox import Postgres, PostgresOutbox


def test_the_floor_moves_over_an_id_once_each_transaction_that_had_started_then_has_ended() -> None:
    low = Floor()
    low.found([49, 50], above=0)
    low.see(Seen(oldest=7, next=10, lowest=None))
    assert low.id == 0
    low.see(Seen(oldest=9, next=12, lowest=None))
    assert low.id == 0, "transaction 9 ran when row 50 was sent, and may have a row below it"
    low.see(Seen(oldest=10, next=12, lowest=None))
    assert low.id == 50


def test_the_floor_stays_below_a_row_that_came_late_and_below_one_that_waits() -> None:
    low = Floor()
    low.found([49, 50], above=0)
    low.see(Seen(oldest=7, next=10, lowest=None))
    low.see(Seen(oldest=10, next=12, lowest=31))
    assert low.id == 30
    low.see(Seen(oldest=12, next=15, lowest=31))
    assert low.id == 30


def test_every_minute_all_rows_are_read_and_the_floor_goes_below_what_is_found() -> None:
    low = Floor()
    assert low.begin(0.0) == 0
    low.id = 50
    assert [low.begin(now) for now in (0.5, 59.0, 60.0, 61.0)] == [50, 50, 0, 50]
    low.found([20, 70], above=50)
    assert low.id == 50, "its turn came late, and it has its own index"
    low.found([70], above=0)
    assert low.id == 50
    low.found([20, 70], above=0)
    assert low.id == 19


def test_a_higher_floor_is_looked_for_once_a_second() -> None:
    low = Floor()
    assert [low.is_due(now) for now in (0.0, 0.5, 1.0)] == [True, False, True]


pytestmark = pytest.mark.servers


@pytest.fixture
async def outbox(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresOutbox]:
    """Each read looks for a higher floor."""
    monkeypatch.setattr(floor, "LOOK_EVERY", 0.0)
    outbox = PostgresOutbox(postgres_url)
    await outbox.open()
    yield outbox
    await outbox.close()


async def add(outbox: PostgresOutbox, connection: asyncpg.Connection, *values: bytes, key: bytes | None = None) -> None:
    async with outbox.transaction(connection) as transaction:
        for value in values:
            transaction.add(Outgoing("orders", value, key))


async def read(outbox: PostgresOutbox) -> list[OutboxRow]:
    return await outbox.pending(dict.fromkeys(range(64), 0), limit=100)


async def send_some(outbox: PostgresOutbox, connection: asyncpg.Connection) -> int:
    """Send rows; return the floor, which moves over them unless a transaction of the server is older, of whatever database."""
    shards = await outbox.own("a", lease=60.0, share=64)
    for _ in range(4):
        await add(outbox, connection, b"x", b"y")
        rows = await read(outbox)
        await outbox.sent([Sent(row.id, row.shard) for row in rows], shards)
    await read(outbox)
    return floor_of(outbox)


async def drained(outbox: PostgresOutbox, connection: asyncpg.Connection) -> int:
    """Send rows until the floor has moved over them; return it. Tests beside this one have transactions on the same server."""
    await send_some(outbox, connection)
    first: int = await connection.fetchval("SELECT max(id) FROM ackwise_outbox") or 0
    floor: int = await until(lambda: send_some(outbox, connection), lambda floor: floor > first)
    return floor


def floor_of(outbox: PostgresOutbox) -> int:
    sql = outbox._sql
    assert isinstance(sql, Postgres)
    return sql._floor.id


def values(rows: list[OutboxRow]) -> list[bytes | None]:
    return [row.message.value for row in rows]


async def test_what_was_sent_is_not_read_again_and_what_comes_is(outbox: PostgresOutbox, postgres_database: asyncpg.Connection) -> None:
    assert await drained(outbox, postgres_database) > 0
    await add(outbox, postgres_database, b"1")
    assert values(await read(outbox)) == [b"1"]


async def test_a_row_whose_transaction_commits_late_is_found_however_much_was_sent_meanwhile(
    outbox: PostgresOutbox, postgres_url: str, postgres_database: asyncpg.Connection
) -> None:
    late = await asyncpg.connect(postgres_url)
    async with outbox.transaction(late) as transaction:
        transaction.add(Outgoing("orders", b"late"))
        await transaction.flush()
        assert await send_some(outbox, postgres_database) == 0
    assert values(await read(outbox)) == [b"late"]
    assert values(await read(outbox)) == [b"late"]
    await late.close()


async def test_rows_below_the_floor_whose_turn_comes_late_are_read_at_once(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection
) -> None:
    await add(outbox, postgres_database, b"parked", b"behind", key=b"k")
    await add(outbox, postgres_database, b"fails")
    await outbox.prepare([Outgoing("orders", b"half")], "tx", producer_group="shop")
    await outbox.prepare([Outgoing("orders", b"checked")], "tx2", producer_group="shop", first_check=0.0)
    shards = await outbox.own("a", lease=60.0, share=64)
    parked, _, fails = await read(outbox)
    await outbox.failed([Failed(parked.id, parked.shard, "refused", None), Failed(fails.id, fails.shard, "lost", 0.0)], shards)
    (row,) = await read(outbox)
    assert row.message.value == b"fails"
    (due,) = await outbox.due_checks("shop", limit=10, lease=60.0)
    assert await drained(outbox, postgres_database) > due.id
    await add(outbox, postgres_database, b"new")
    await outbox.requeue()
    await outbox.decide("tx", TransactionOutcome.COMMIT)
    await outbox.answered([CheckAnswer(due.id, TransactionOutcome.COMMIT)])
    await outbox.free()
    assert values(await read(outbox)) == [b"parked", b"behind", b"half", b"checked", b"new"]


async def test_a_row_that_came_below_the_floor_in_another_way_is_found_by_the_next_read_of_all(
    outbox: PostgresOutbox, postgres_database: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drained(outbox, postgres_database)
    await postgres_database.execute(
        "INSERT INTO ackwise_outbox (id, message_id, shard, topic, size) OVERRIDING SYSTEM VALUE VALUES (1, 'x', 0, 'orders', 0)"
    )
    assert await read(outbox) == []
    sql = outbox._sql
    assert isinstance(sql, Postgres)
    sql._floor._all_at = float("-inf")
    assert [row.id for row in await read(outbox)] == [1]
