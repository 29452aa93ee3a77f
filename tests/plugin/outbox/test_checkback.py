"""`CheckBack` at work: it goes on whatever the outbox answers, and stops when it is told to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.fakes import Sink
from tests.hostileobjects import KINDS, hostile_value
from tests.plugin.outbox.halfstore import HalfStore
from tests.waiting import PATIENCE

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.outbox import CheckAnswer, Prepared, RowState, TransactionOutcome, Wait
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


# What to send, and when to ask again


HALF = Outgoing("paid", None, b"42", (("h", b"1"),), message_id="pay-42")


def answering(store: HalfStore, *answers: object, sink: Sink | None = None) -> tuple[CheckBack, list[str]]:
    """A check-back whose callback gives these answers, one after the other, and the ids that it was asked about."""
    asked, left = list[str](), list(answers)

    async def check(half: Prepared) -> Any:
        asked.append(half.message.message_id)
        return left.pop(0)

    return CheckBack(store, producer_group="orders", check=check, sink=sink), asked


async def prepare(store: HalfStore, *messages: Outgoing, tx_id: str = "tx") -> None:
    await store.prepare(messages or [HALF], tx_id, producer_group="orders", first_check=0.0)


async def test_a_callback_says_what_is_sent_under_the_id_that_was_prepared() -> None:
    class Own(bytes):
        """Bytes of a class of the user's."""

    @dataclass(frozen=True)
    class Request(Outgoing):
        """A message of a class of the user's."""

        order: str = ""

    other = Outgoing("bills", b"9.99", b"7", (("n", None),), 3, message_id="another")
    for answer, sent in (
        (b"9.99", replace(HALF, value=b"9.99")),
        (Own(b"9.99"), replace(HALF, value=b"9.99")),
        (replace(HALF, value=b"9.99"), replace(HALF, value=b"9.99")),
        (other, replace(other, message_id="pay-42")),
        (Request("bills", b"9.99", order="42"), Outgoing("bills", b"9.99", message_id="pay-42")),
    ):
        store, sink = HalfStore(), Sink()
        await prepare(store)
        check_back, _ = answering(store, answer, sink=sink)
        await check_back.look()
        assert [(row.state, type(row.message), row.message) for row in store.rows] == [(RowState.LOCAL_COMMIT, Outgoing, sent)], answer
        assert (check_back.counts.committed, check_back.counts.answered) == (1, 1)
        ((event),) = sink.events
        assert (event.code, event.topic, event.dedup_key) == (EventCode.OUTBOX_CHECKED, sent.topic, "pay-42")
        assert json.loads(event.attrs or "")["answer"] == "commit"


async def test_the_first_content_is_stored_and_later_answers_are_not_used() -> None:
    store, sink = HalfStore(), Sink()
    await prepare(store)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(half: Prepared) -> bytes:
        asked.set()
        await go_on.wait()
        return b"later"

    slow = CheckBack(store, producer_group="orders", check=slowly, sink=sink)
    looking = asyncio.create_task(slow.look())
    await asked.wait()
    store.now = 3600.0  # its lease is over
    quick, _ = answering(store, b"first")
    await quick.look()
    go_on.set()
    await looking
    assert [row.message.value for row in store.rows] == [b"first"]
    assert (slow.counts.committed, sink.events) == (0, [])
    assert await quick.look() == 0, "nothing is left to be asked"


async def test_content_is_that_of_one_message_and_anything_else_is_the_answer_for_the_rest() -> None:
    for rest, states in (
        (TransactionOutcome.ROLLBACK, [RowState.LOCAL_COMMIT, RowState.LOCAL_COMMIT, RowState.LOCAL_ROLLBACK, RowState.LOCAL_ROLLBACK]),
        (Wait(60), [RowState.LOCAL_COMMIT, RowState.LOCAL_COMMIT, RowState.PREPARED, RowState.PREPARED]),
        (None, [RowState.LOCAL_COMMIT, RowState.LOCAL_COMMIT, RowState.PREPARED, RowState.PREPARED]),  # which is no answer
    ):
        store = HalfStore()
        await prepare(store, *(Outgoing("paid", None, message_id=name) for name in "abcd"))
        check_back, asked = answering(store, b"1", b"2", rest)
        await check_back.look()
        assert (asked, [row.state for row in store.rows]) == (["a", "b", "c"], states)
        assert [row.message.value for row in store.rows[:2]] == [b"1", b"2"]


async def test_an_answer_that_has_to_wait_comes_again_when_it_said_and_uses_up_no_check() -> None:
    store, sink = HalfStore(), Sink()
    await prepare(store)
    waits = [Wait("10m")] * 40
    check_back, asked = answering(store, *waits, TransactionOutcome.UNKNOWN, b"9.99", sink=sink)
    for number in range(40):
        store.now = 600.0 * number
        assert await check_back.look() == 1, number
        store.now += 599.0
        assert await check_back.look() == 0, number
    assert (len(asked), store.rows[0].checks, store.rows[0].state) == (40, 0, RowState.PREPARED)
    assert (check_back.counts.waiting, check_back.counts.answered, check_back.counts.unanswered) == (40, 0, 0)
    assert {(json.loads(event.attrs or "")["answer"], json.loads(event.attrs or "")["checks"]) for event in sink.events} == {("wait", 0)}
    store.now = 24_000.0
    await check_back.look()
    assert store.rows[0].checks == 1
    store.now += 30.0
    await check_back.look()
    assert (store.rows[0].state, store.rows[0].message.value) == (RowState.LOCAL_COMMIT, b"9.99")


async def test_one_that_waits_is_parked_by_its_other_checks_all_the_same() -> None:
    store = HalfStore()
    await prepare(store)
    check_back, _ = answering(store, *[Wait(1), TransactionOutcome.UNKNOWN] * 15)
    for number in range(30):
        store.now = 100.0 * number
        await check_back.look()
    assert (store.rows[0].state, store.rows[0].checks) == (RowState.MESSAGE_ERROR, 15)


@pytest.mark.parametrize("duration", [0, "0s", -1, "soon", None, True, float("nan"), float("inf")])
def test_a_wait_that_is_no_time_is_refused(duration: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Wait"):
        Wait(duration)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_answer_is_said_and_asked_again(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    class Later(Wait):
        """Of the user's, which may do anything."""

    store = HalfStore()
    await prepare(store)
    odd: list[Any] = [hostile_value(kind), "a text", [b"1"], bytearray(b"1"), Later("10m")]
    check_back, _ = answering(store, *odd)
    for number in range(len(odd)):
        store.now = 3600.0 * number
        await check_back.look()
    assert (check_back.counts.unanswered, store.rows[0].state, store.rows[0].checks) == (len(odd), RowState.PREPARED, 0)
    assert [record.__dict__["event"] for record in caplog.records] == ["check of a half message gave no answer"] * len(odd)


async def test_content_that_the_outbox_does_not_take_holds_up_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    store = HalfStore()
    answered = store.answered

    async def refusing(answers: Sequence[CheckAnswer]) -> int:
        if any(answer.content is not None and answer.content.value == b"large" for answer in answers):
            raise ConfigurationError("a message to 'paid' is larger than the server takes")
        return await answered(answers)

    store.answered = refusing  # type: ignore[method-assign]
    for number in range(3):
        await prepare(store, Outgoing("paid", None), tx_id=f"tx-{number}")
    check_back, _ = answering(store, b"large", b"1", TransactionOutcome.ROLLBACK)
    await check_back.look()
    assert [row.state for row in store.rows] == [RowState.PREPARED, RowState.LOCAL_COMMIT, RowState.LOCAL_ROLLBACK]
    assert (check_back.counts.unanswered, store.rows[0].checks) == (1, 0)
    assert "a message to 'paid' is larger than the server takes" in caplog.text


async def test_it_ends_when_it_is_told_to() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(CheckBack(HalfStore()).run(stop))
    await asyncio.sleep(0)
    stop.set()
    await running
