"""Rows that somebody else wrote and nobody can read: they are parked, and neither relay nor check-back is stalled for them."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.plugin.outbox.desk import Desk

from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import Failed, UnreadableRow
from ackwise.plugin.outbox.checkback import CheckBack
from ackwise.plugin.outbox.outboxrelay import OutboxRelay
from ackwise.stores.sqlite.outbox import SQLiteOutbox

MESSAGES = [Outgoing("orders", b"%d" % n, b"%d" % n, (("n", b"v"),) if n == 2 else (), message_id=str(n)) for n in range(1, 4)]


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[SQLiteOutbox]:
    outbox = SQLiteOutbox(tmp_path / "shop.db")
    await outbox.open()
    yield outbox
    await outbox.close()


@pytest.fixture
def spoil(tmp_path: Path) -> Callable[[], None]:
    def spoil() -> None:
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("UPDATE ackwise_outbox SET headers = 'secret' WHERE headers IS NOT NULL")
        connection.close()

    return spoil


async def test_the_relay_parks_it_and_sends_the_others(outbox: SQLiteOutbox, tmp_path: Path, spoil: Callable[[], None]) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    async with outbox.transaction(connection) as rows:
        for message in MESSAGES:
            rows.add(message)
    connection.close()
    spoil()
    desk, stop = Desk(), asyncio.Event()
    relay = OutboxRelay(outbox, Outbox(outbox, poll=0.05), name="shop", new_sender=desk._new_sender, brokers_answer=desk._brokers_answer)
    running = asyncio.create_task(relay.run(stop))
    await desk.until(lambda: len(desk.log.messages) == 2)
    stop.set()
    await running
    assert [message.value for message in desk.log.messages] == [b"1", b"3"]
    (parked,) = await outbox.parked()
    assert parked.cause == "row 2 can't be read (one of its columns, JSONDecodeError); see who changed the table"
    shown = await outbox.show(parked.id)
    assert shown is not None
    assert (shown.value, shown.headers) == (b"2", ())


async def test_the_check_back_parks_it_and_checks_the_others(outbox: SQLiteOutbox, spoil: Callable[[], None]) -> None:
    here = await outbox.database_id()
    for message in MESSAGES:
        await outbox.prepare([message], f"tx-{message.message_id}", producer_group="g", barrier_in=here, first_check=0.0)
    spoil()
    check_back = CheckBack(outbox)
    for _ in range(2):
        await check_back.look()
    assert (check_back.counts.parked, check_back.counts.rolled_back) == (1, 2)
    assert [row.id for row in await outbox.parked()] == [2]


#: Bytes, texts, numbers, and JSON that is too deep or no list of pairs.
_ANYTHING = st.one_of(
    st.binary(max_size=8),
    st.text(max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from(("[" * 100_000, '[["a", 1]]', '[[1, "YQ=="]]', '[["a", "!"]]', '[["\\ud800", null]]', "{}", "7", "null", "\0")),
)


@given(
    st.sampled_from(("topic", "message_id", "message_key", "headers", "partition", "value", "attempts", "created", "size")),
    _ANYTHING,
    st.booleans(),
)
@example("attempts", float("inf"), False)
@example("headers", "[" * 100_000, False)
@example("topic", b"\xff", True)
def test_whatever_stands_in_a_column_the_next_row_is_sent_and_the_operator_is_shown_the_row(
    column: str, anything: bytes | str | float, as_text: bool
) -> None:
    async def read(folder: Path) -> None:
        outbox, connection = SQLiteOutbox(folder / "shop.db"), sqlite3.connect(folder / "shop.db", isolation_level=None)
        await outbox.open()
        async with outbox.transaction(connection) as rows:
            for message in MESSAGES:
                rows.add(message)
        what = "CAST(? AS TEXT)" if as_text else "?"
        connection.execute(f"UPDATE OR IGNORE ackwise_outbox SET {column} = {what} WHERE id = 1", (anything,))
        connection.close()
        tokens = await outbox.own("relay", lease=30.0, share=256)
        found: list[int] = []
        while 3 not in found:
            try:
                found += [row.id for row in await outbox.pending(tokens, limit=10, under_way=found, block_key=False)]
            except UnreadableRow as unreadable:
                await outbox.failed([Failed(unreadable.id, unreadable.shard, str(unreadable), None)], tokens)
        assert found in ([1, 2, 3], [2, 3])
        for parked in await outbox.parked():
            "\n".join(map(str, parked)).encode()
            await outbox.show(parked.id)
        await outbox.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(read(Path(folder)))
