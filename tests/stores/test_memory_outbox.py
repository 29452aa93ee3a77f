"""The outbox in memory passes the suite of every outbox."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.storage.outbox import OutboxStore, RowState, packed_headers
from ackwise.stores.conformance.outbox import OutboxConformance
from ackwise.stores.conformance.outboxwriting import message
from ackwise.stores.memoryoutbox import MemoryConnection, MemoryOutbox, from_url
from ackwise.stores.protocol.outbox import Keeping


class TestMemoryOutbox(OutboxConformance):
    def make(self, place: Path) -> OutboxStore:
        return self.outbox

    def make_keeping(self, place: Path, *, keep_sent: float = 0.0, keep_parked: float | None = None, **blank: Any) -> OutboxStore:
        outbox = copy.copy(self.outbox)  # the rows are the same ones
        outbox.keeping = Keeping(0.0, keep_sent, keep_parked, **blank)
        return outbox

    async def rows(self, place: Path) -> list[Any]:
        found = [(row.state, row.message) for row in self.outbox._rows.values()]
        return [(state, each.message_id, each.key, each.value, packed_headers(each.headers)) for state, each in found]

    async def prepare(self, place: Path) -> None:
        self.outbox, self.written = MemoryOutbox(keeping=Keeping(retention=0.0)), set[str]()

    @asynccontextmanager
    async def connect(self, place: Path) -> AsyncIterator[Any]:
        yield MemoryConnection()

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = connection.transaction()
        return transaction

    savepoint = begin

    async def write(self, connection: Any, effect: str) -> None:
        if effect in self.written:
            raise KeyError(effect)
        connection.do(lambda: self.written.add(effect))

    async def effects(self, place: Path) -> list[str]:
        return [*self.written]

    async def age(self, place: Path, seconds: float) -> None:
        for row in self.outbox._rows.values():
            row.created -= seconds
            if row.state is RowState.MESSAGE_ERROR and row.next_at is not None:
                row.next_at -= seconds
        self.outbox._barriers = {tx_id: (outcome, at - seconds) for tx_id, (outcome, at) in self.outbox._barriers.items()}


async def test_a_transaction_without_a_connection_has_one_of_its_own() -> None:
    outbox = from_url("memory://")
    await outbox.open()
    async with outbox.transaction() as transaction:
        transaction.add(message(b"1"))
    assert [row.message.value for row in await outbox.pending(dict.fromkeys(range(64), 0), limit=9)] == [b"1"]


async def test_time_is_what_the_clock_says() -> None:
    now = [1.7e9]
    outbox = MemoryOutbox(clock=lambda: now[0])
    await outbox.open()
    await outbox.prepare([message()], "tx", producer_group="shop", first_check=6.0)
    assert await outbox.due_checks("shop", limit=9, lease=1.0) == []
    now[0] += 6
    assert len(await outbox.due_checks("shop", limit=9, lease=1.0)) == 1


def test_a_url_that_names_something_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        from_url("memory://shared")


async def test_a_block_may_be_left_in_another_context_than_it_was_entered_in() -> None:
    outbox = MemoryOutbox()
    await outbox.open()
    block = outbox.transaction()
    transaction = await asyncio.create_task(block.__aenter__())
    transaction.send("orders", b"1")
    await block.__aexit__(None, None, None)
    with pytest.raises(TransactionAborted, match="outside of a transaction"):
        outbox.send("orders", b"2")
    assert (await outbox.status()).waiting == 1
