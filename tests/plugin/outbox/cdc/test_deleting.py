"""Rows that were sent from the log are deleted beside what is sent next: nobody waits for it, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from tests.waiting import turns, until

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.message.outgoing import Acked, Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Failed, Sent, TransactionOutcome
from ackwise.plugin.outbox import cdcroutes
from ackwise.plugin.outbox.cdcroutes import ChangeMessage, OutboxRows
from ackwise.stores.memoryoutbox import MemoryOutbox


class Slow(MemoryOutbox):
    """A database that deletes once `gate` is set; `blind` answers find nothing, as before a commit is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked: list[list[int]] = []
        self.blind = 0
        self.error: Exception | None = None

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        self.asked.append([row.id for row in rows])
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.blind:
            self.blind -= 1
            return 0
        return await super().sent(rows, shards)


class Desk:
    def __init__(self) -> None:
        self.store = Slow()
        self.route = OutboxRows(self.store, lambda change: None, owner="cdc/a", name="shop")

    async def change_messages(self, *values: bytes) -> list[tuple[ChangeMessage, Acked]]:
        """Rows as the log tells of them, acknowledged."""
        async with self.store.transaction() as transaction:
            for value in values:
                transaction.add(Outgoing("orders", value, message_id=value.decode()))
        rows = [row for row in await self.store.pending(dict.fromkeys(range(64), 0), limit=100) if row.message.value in values]
        return [(ChangeMessage(row.message, "0/1", row), Acked("orders", 0, 0, 0, row.message.message_id)) for row in rows]

    @property
    def left(self) -> int:
        return len(self.store._rows)


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(cdcroutes, "_GATHER", 0.0)
    desk = Desk()
    await desk.route.open()
    await desk.route.begin()
    yield desk
    await desk.store.close()


async def test_what_is_sent_during_a_deletion_waits_for_nothing_and_goes_with_the_next(desk: Desk) -> None:
    await desk.route.sent(await desk.change_messages(b"1"))
    await until(lambda: desk.store.asked)
    await desk.route.sent(await desk.change_messages(b"2"))
    await desk.route.sent(await desk.change_messages(b"3"))
    desk.store.gate.set()
    await desk.route.end()
    assert (desk.store.asked, desk.left) == ([[1], [2, 3]], 0)


async def test_so_many_rows_may_wait_and_no_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdcroutes, "_MOST_UNDELETED", 2)
    await desk.route.sent(await desk.change_messages(b"1"))
    waiting = asyncio.create_task(desk.route.sent(await desk.change_messages(b"2", b"3")))
    await turns(20)
    assert not waiting.done()
    desk.store.gate.set()
    await waiting
    await desk.route.end()
    assert desk.left == 0


async def test_a_deletion_that_failed_ends_the_session_with_the_next_rows(desk: Desk) -> None:
    desk.store.error = StoreUnavailable("gone")
    desk.store.gate.set()
    await desk.route.sent(await desk.change_messages(b"1"))
    await until(lambda: desk.store.asked)

    async def go_on() -> None:
        for value in (b"2", b"3", b"4"):
            await desk.route.sent(await desk.change_messages(value))
            await asyncio.sleep(0)

    with pytest.raises(StoreUnavailable, match="gone"):
        await go_on()
    desk.store.error = None
    await desk.route.begin()
    assert desk.left == len(await desk.store.pending(dict.fromkeys(range(64), 0), limit=9)) <= 1, "what failed is deleted by the next one"


async def test_a_row_that_was_not_seen_yet_is_deleted_before_the_table_is_read(desk: Desk) -> None:
    desk.store.gate.set()
    desk.store.blind = 1
    await desk.route.sent(await desk.change_messages(b"1"))
    assert await desk.route.waiting() == []
    assert (desk.store.asked, desk.left) == ([[1], [1]], 0)


async def test_only_a_row_that_kafka_refused_holds_its_key_and_not_one_that_no_check_back_decided(desk: Desk) -> None:
    desk.store.gate.set()
    await desk.store.prepare([Outgoing("orders", b"half", b"a")], "tx", producer_group="g")
    await desk.store.answered([CheckAnswer(1, TransactionOutcome.UNKNOWN, again_in=None, cause="nobody knows")])
    async with desk.store.transaction() as transaction:
        for key, value in ((b"b", b"refused"), (b"a", b"later"), (b"b", b"later")):
            transaction.add(Outgoing("orders", value, key))
    change_messages = [ChangeMessage(row.message, "", row) for row in await desk.store.pending(desk.route._tokens, limit=9)]
    assert change_messages[0].row is not None
    await desk.store.failed([Failed(2, change_messages[0].row.shard, "too large", None)], desk.route._tokens)
    await desk.route.waiting()
    assert [row.attempts for row in await desk.store.parked()] == [0, 1]
    assert [change_message.message.key for change_message in await desk.route.unheld(change_messages[1:])] == [b"a"]


async def test_nothing_is_sent_from_the_log_while_it_is_unknown_which_rows_wait_in_the_table(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(**_: object) -> bool:
        raise StoreUnavailable("it takes too long")

    desk.store.gate.set()
    monkeypatch.setattr(desk.store, "free", unavailable)
    with pytest.raises(StoreUnavailable, match="too long"):
        await desk.route.waiting()


async def test_the_table_is_read_on_until_no_row_is_left_though_a_read_came_to_its_bound(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.store.gate.set()
    async with desk.store.transaction() as transaction:
        transaction.add(Outgoing("orders", b"1"))
    read, reads = desk.store.pending, [True, True, False]

    async def bounded(*given: object, **how: object) -> object:
        desk.store.has_more = reads.pop(0)
        return [] if desk.store.has_more else await read(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.store, "pending", bounded)
    assert [change_message.message.value for change_message in await desk.route.waiting()] == [b"1"]


async def test_a_look_for_rows_that_are_in_no_table_waits_once_for_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def nothing(failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        asked.append(len(failures))
        return 0

    monkeypatch.setattr(cdcroutes, "_SEEN_AFTER", (0.0, 0.0))
    monkeypatch.setattr(desk.store, "failed", nothing)
    assert await desk.route._written([Failed(number, 0, "no such topic", 1.0) for number in range(50)]) == set()
    assert asked == [50, 50, 50]
