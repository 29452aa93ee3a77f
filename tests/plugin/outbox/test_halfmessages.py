"""Half messages around a local transaction: whoever knows decides, and what nobody knows is left to the check-back."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import nullcontext
from typing import Any

import pytest
from tests.plugin.outbox.halfstore import HalfStore, Local

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import Prepared, RowState, TransactionOutcome
from ackwise.plugin.outbox.checkback import Check, CheckBack, CheckSchedule
from ackwise.plugin.outbox.halfmessages import HalfMessages

PAID, SHIPPED = Outgoing("paid", b"42"), Outgoing("shipped", b"42")


@pytest.fixture
def store() -> HalfStore:
    return HalfStore()


@pytest.fixture
def half(store: HalfStore) -> HalfMessages:
    """With a barrier in the outbox's own database."""
    return HalfMessages(store, "orders", store, first_check=6.0)


@pytest.fixture
def unbarred(store: HalfStore) -> HalfMessages:
    """Without a barrier."""
    return HalfMessages(store, "orders", None, first_check=6.0)


def states(store: HalfStore) -> list[RowState]:
    return [row.state for row in store.rows]


async def test_messages_are_prepared_before_the_block_and_committed_behind_it(store: HalfStore, half: HalfMessages) -> None:
    async with half.prepare([PAID, SHIPPED]) as transaction:
        assert [(row.state, row.tx_id, row.barrier_in) for row in store.rows] == [(RowState.PREPARED, transaction.id, "db-1")] * 2
        local = Local()
        await transaction.barrier(local)
        local.commit()
    assert (states(store), transaction.ended) == ([RowState.LOCAL_COMMIT] * 2, TransactionOutcome.COMMIT)


async def test_a_connection_that_is_lost_during_commit_is_decided_by_the_database(store: HalfStore, half: HalfMessages) -> None:
    async def pay() -> None:
        async with half.prepare([PAID]) as transaction:
            local = Local()
            await transaction.barrier(local)
            local.commit()  # the server did, and the answer was lost
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await pay()
    assert states(store) == [RowState.LOCAL_COMMIT]


async def test_an_end_that_the_database_does_not_know_yet_is_never_guessed(store: HalfStore, half: HalfMessages) -> None:
    local = Local()

    async def pay() -> None:
        async with half.prepare([PAID]) as transaction:
            await transaction.barrier(local)
            raise ConnectionError  # COMMIT is on its way

    with pytest.raises(ConnectionError):
        await pay()
    assert states(store) == [RowState.PREPARED]
    local.commit()
    store.now = 6.0
    await CheckBack(store, producer_group="orders").look()
    assert states(store) == [RowState.LOCAL_COMMIT]


async def test_what_can_not_be_written_down_stays_prepared_and_the_check_back_finds_it_out(caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: HalfStore, call: str, *, raises: bool) -> None:
        async with HalfMessages(store, "orders", store, first_check=6.0).prepare([PAID]) as transaction:
            local = Local()
            await transaction.barrier(local)
            local.commit()
            store.fail = lambda asked: asked == call
            if raises:
                raise ConnectionError

    for call, raises in itertools.product(("probe", "decide"), (False, True)):
        store = HalfStore()
        caplog.clear()
        with pytest.raises(ConnectionError) if raises else nullcontext():
            await work(store, call, raises=raises)
        assert states(store) == [RowState.PREPARED], (call, raises)
        assert [record.__dict__["event"] for record in caplog.records] == ["end of a local transaction not written"]
        store.fail, store.now = lambda asked: False, 6.0
        await CheckBack(store, producer_group="orders").look()
        assert states(store) == [RowState.LOCAL_COMMIT], (call, raises)


async def test_a_check_back_that_was_first_makes_the_local_transaction_fail(store: HalfStore, half: HalfMessages) -> None:
    async def pay() -> None:
        async with half.prepare([PAID], first_check="0s") as transaction:
            await CheckBack(store, producer_group="orders").look()
            await transaction.barrier(Local())

    with pytest.raises(TransactionAborted):
        await pay()
    assert states(store) == [RowState.LOCAL_ROLLBACK]


async def test_a_forgotten_barrier_is_said_and_its_messages_are_sent(store: HalfStore, half: HalfMessages) -> None:
    with pytest.raises(ConfigurationError, match="first statement"):
        async with half.prepare([PAID]):
            pass
    assert (states(store), store._barriers) == ([RowState.LOCAL_COMMIT], {})


async def test_who_swallows_the_failure_of_its_transaction_sends_nothing_and_is_told(store: HalfStore, half: HalfMessages) -> None:
    for told in (None, TransactionOutcome.COMMIT):

        async def pay(told: TransactionOutcome | None = told) -> None:
            async with half.prepare([PAID]) as transaction:
                local = Local()
                await transaction.barrier(local)
                local.roll_back()
                if told is not None:
                    transaction.tell(told)

        with pytest.raises(TransactionAborted, match=r"its database says that it was rolled back: .* outside of savepoints"):
            await pay()
    assert states(store) == [RowState.LOCAL_ROLLBACK] * 2


async def test_who_says_that_it_rolled_back_is_believed(store: HalfStore, half: HalfMessages) -> None:
    async with half.prepare([PAID]) as transaction:
        local = Local()
        await transaction.barrier(local)
        local.roll_back()
        transaction.rollback()
    assert (states(store), transaction.ended) == ([RowState.LOCAL_ROLLBACK], TransactionOutcome.ROLLBACK)


async def test_a_commit_that_comes_after_the_rollback_of_a_check_back_is_no_commit(store: HalfStore) -> None:
    async def check(prepared: Prepared) -> TransactionOutcome:
        return TransactionOutcome.ROLLBACK

    for barriers, asks in ((None, check), (store, None)):  # with a barrier that was forgotten, too
        half = HalfMessages(store, "orders", barriers, first_check=0.0)

        async def pay(half: HalfMessages = half, asks: Check | None = asks) -> None:
            async with half.prepare([PAID, SHIPPED]):
                await CheckBack(store, producer_group="orders", check=asks).look()

        with pytest.raises(TransactionAborted, match=r"a check-back had answered ROLLBACK before: its messages are not sent"):
            await pay()
    assert states(store) == [RowState.LOCAL_ROLLBACK] * 4


async def test_a_commit_that_a_check_back_has_written_down_is_one(store: HalfStore, half: HalfMessages) -> None:
    async with half.prepare([PAID], first_check=0.0) as transaction:
        local = Local()
        await transaction.barrier(local)
        local.commit()
        await CheckBack(store, producer_group="orders").look()
    assert (states(store), transaction.ended) == ([RowState.LOCAL_COMMIT], TransactionOutcome.COMMIT)


async def test_an_end_after_the_last_check_is_said_and_leaves_its_messages_parked(
    store: HalfStore, half: HalfMessages, caplog: pytest.LogCaptureFixture
) -> None:
    async with half.prepare([PAID], first_check=0.0) as transaction:
        local = Local()
        await transaction.barrier(local)
        await CheckBack(store, producer_group="orders", schedule=CheckSchedule(most=1)).look()
        assert states(store) == [RowState.MESSAGE_ERROR]
        caplog.clear()
        local.commit()
    assert (states(store), transaction.ended) == ([RowState.MESSAGE_ERROR], TransactionOutcome.COMMIT)
    assert [record.__dict__["event"] for record in caplog.records] == ["local transaction ended after its messages were parked"]
    assert "outcome=commit" in caplog.text


async def test_who_did_nothing_may_say_so_before_the_barrier(store: HalfStore, half: HalfMessages) -> None:
    async with half.prepare([PAID]) as transaction:
        transaction.rollback()
    assert states(store) == [RowState.LOCAL_ROLLBACK]


async def test_without_a_barrier_the_block_decides() -> None:
    for told, state in (
        (None, RowState.LOCAL_COMMIT),
        (TransactionOutcome.COMMIT, RowState.LOCAL_COMMIT),
        (TransactionOutcome.ROLLBACK, RowState.LOCAL_ROLLBACK),
        (TransactionOutcome.UNKNOWN, RowState.PREPARED),
    ):
        store = HalfStore()
        async with HalfMessages(store, "orders", None, first_check=6.0).prepare([PAID]) as transaction:
            if told is not None:
                transaction.tell(told)
        assert (states(store), store.probes) == ([state], []), told


async def test_without_a_barrier_what_raised_is_asked_about_unless_it_said_that_it_undid_all(
    store: HalfStore, unbarred: HalfMessages
) -> None:
    async def pay(*, undo: bool) -> None:
        async with unbarred.prepare([PAID]) as transaction:
            if undo:
                transaction.rollback()
            raise ValueError("refused")

    for undo in (False, True):
        with pytest.raises(ValueError, match="refused"):
            await pay(undo=undo)
    assert states(store) == [RowState.PREPARED, RowState.LOCAL_ROLLBACK]


async def test_without_a_barrier_there_is_none_to_call(store: HalfStore, unbarred: HalfMessages) -> None:
    with pytest.raises(ConfigurationError, match="check callback"):
        async with unbarred.prepare([PAID]) as transaction:
            await transaction.barrier(Local())


async def test_who_is_cancelled_meanwhile_has_decided_first(store: HalfStore, half: HalfMessages) -> None:
    probed, go_on = asyncio.Event(), asyncio.Event()
    probe = store.probe

    async def slow_probe(*arguments: Any, **options: Any) -> TransactionOutcome:
        probed.set()
        await go_on.wait()
        return await probe(*arguments, **options)

    store.probe = slow_probe  # type: ignore[method-assign]

    async def work() -> None:
        async with half.prepare([PAID]) as transaction:
            local = Local()
            await transaction.barrier(local)
            local.commit()

    working = asyncio.create_task(work())
    await probed.wait()
    working.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert states(store) == [RowState.LOCAL_COMMIT]


async def test_who_is_cancelled_in_the_local_transaction_has_rolled_back(store: HalfStore, half: HalfMessages) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with half.prepare([PAID]) as transaction:
            local = Local()
            try:
                await transaction.barrier(local)
                begun.set()
                await asyncio.get_running_loop().create_future()
            finally:
                local.roll_back()

    working = asyncio.create_task(work())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert states(store) == [RowState.LOCAL_ROLLBACK]


async def test_nothing_is_begun_if_nobody_knows_where_the_barrier_is(store: HalfStore, half: HalfMessages) -> None:
    store.fail = lambda call: call == "database_id"
    with pytest.raises(StoreUnavailable):
        async with half.prepare([PAID]):
            raise AssertionError("begun")
    assert store.rows == []


async def test_each_connection_to_another_database_is_refused_before_anything_is_done(store: HalfStore, half: HalfMessages) -> None:
    done: list[str] = []

    elsewhere = Local()

    async def through(connection: object = None) -> str:
        return "db-2" if connection is elsewhere else "db-1"

    store.database_id = through  # type: ignore[method-assign]

    async def pay(local: Local) -> None:
        async with half.prepare([PAID]) as transaction:
            await transaction.barrier(local)
            done.append("paid")
            local.commit()

    await pay(Local())
    with pytest.raises(ConfigurationError, match="another database"):
        await pay(elsewhere)
    assert (done, states(store)) == (["paid"], [RowState.LOCAL_COMMIT, RowState.LOCAL_ROLLBACK])
