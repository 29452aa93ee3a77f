"""`CheckBack` at work: it goes on whatever the outbox answers, and stops when it is told to."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.plugin.outbox.halfstore import HalfStore
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import Prepared, RowState, TransactionOutcome
from ackwise.plugin.outbox import checkback
from ackwise.plugin.outbox import checkback as witness
from ackwise.plugin.outbox.checkback import CheckBack


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), ConfigurationError("this user may not")])
async def test_an_outbox_that_refuses_for_a_while_is_asked_again_and_said_once(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkback, "_LONGEST_WAIT", 0.001)
    store, stop, asked = HalfStore(), asyncio.Event(), 0
    due_checks = store.due_checks

    async def refuse_twice(producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise error
        stop.set()
        return await due_checks(producer_group, limit=limit, lease=lease)

    store.due_checks = refuse_twice  # type: ignore[method-assign]
    store.commit("tx")
    await store.prepare([Outgoing("paid", b"1")], "tx", producer_group="orders", barrier_in="db-1", first_check=0.0)
    with caplog.at_level(logging.WARNING, "ackwise"):
        await CheckBack(store).run(stop)
    assert (asked, store.rows[0].state) == (3, RowState.LOCAL_COMMIT)
    assert [record.__dict__["event"] for record in caplog.records] == ["half messages could not be checked"]


async def test_answers_that_can_not_be_written_down_are_asked_for_again() -> None:
    store = HalfStore()
    store.commit("tx")
    await store.prepare([Outgoing("paid", b"1")], "tx", producer_group="orders", barrier_in="db-1", first_check=0.0)
    check_back = CheckBack(store)
    store.fail = lambda call: call == "answered"
    with pytest.raises(StoreUnavailable):
        await check_back.look()
    assert (store.rows[0].state, check_back.counts.answered) == (RowState.PREPARED, 0)
    store.fail, store.now = lambda call: False, 60.0
    assert await check_back.look() == 1
    assert store.rows[0].state is RowState.LOCAL_COMMIT


async def test_a_check_that_hangs_is_cancelled_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "CHECK_TIMEOUT", 0.01)
    store, cancelled = HalfStore(), asyncio.Event()

    async def hang(half: Prepared) -> TransactionOutcome:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
        return TransactionOutcome.COMMIT

    await store.prepare([Outgoing("paid", b"1")], "tx", producer_group="orders", first_check=0.0)
    async with asyncio.timeout(PATIENCE):
        await CheckBack(store, producer_group="orders", check=hang).look()
    assert cancelled.is_set()
    assert (store.rows[0].state, store.rows[0].checks) == (RowState.PREPARED, 0)


async def test_it_ends_when_it_is_told_to() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(CheckBack(HalfStore()).run(stop))
    await asyncio.sleep(0)
    stop.set()
    await running
