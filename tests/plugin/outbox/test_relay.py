"""The relay of an outbox: nothing is lost whatever breaks, keys keep their order, and nothing is sent after a lease."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from tests.plugin.outbox.desk import Desk, Sender, Store, Table, fields, lost, refused
from tests.waiting import PATIENCE, turns

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.outgoing import Outgoing, SendAnswer, SendFailed
from ackwise.middleware.storage.outbox import SHARDS, OutboxRow, Sent
from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.plugin.outbox import outboxrelay, outboxsession
from ackwise.plugin.outbox.outboxwindow import Holding


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    monkeypatch.setattr(outboxrelay, "_BEGIN_ANEW", (0.0, 0.0))
    monkeypatch.setattr(outboxsession, "_LONGEST_REST", 0.0)


async def test_rows_are_sent_by_id_and_deleted() -> None:
    desk = Desk(batch=7)
    desk.table.add(*desk.orders(5, 20))
    async with desk.running(desk.relay()):
        await desk.until(desk.is_empty)
    assert [message.value for message in desk.log.messages] == [b"%d" % number for number in range(20) for _ in range(5)]
    assert set(desk.log.ids.values()) == {1}


async def test_a_row_that_commits_late_with_a_low_id_is_sent() -> None:
    desk = Desk(batch=2)
    desk.table.add(*desk.orders(2, 2))
    late = desk.table.rows.pop(1)
    async with desk.running(desk.relay()):
        await desk.until(desk.is_empty)
        desk.table.rows[1] = late
        await desk.until(desk.is_empty)
    assert len(desk.log.ids) == 4


async def test_what_is_under_way_is_not_read_again() -> None:
    desk = Desk(batch=3)
    store = Store(desk.table)
    desk.table.add(*desk.orders(1, 12))
    async with desk.running(desk.relay(store)):
        await desk.until(desk.is_empty)
    assert set(desk.log.ids.values()) == {1}
    assert any(len(under_way) == 6 for under_way in store.under_way), "while one window is sent, the next one is read"


async def test_a_row_that_failed_is_looked_at_when_it_is_due_and_not_a_poll_later() -> None:
    desk = Desk(poll=60.0, lease=600.0)
    store = Store(desk.table)
    desk.refuse = _refusing(b"1", times=2)  # among others, and alone
    desk.table.add(Outgoing("orders", b"0", b"k"), Outgoing("orders", b"1", b"k"))
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: bool(desk.table.due) and len(store.waits) > 0)
        seen = len(store.waits)
        await desk.until(lambda: len(store.waits) > seen)
        assert max(store.waits[seen:]) <= max(desk.table.due.values())
        await desk.until(desk.is_empty, step=0.05)
        asked = store.calls["next_due"]
        waits = len(store.waits)
        await desk.until(lambda: len(store.waits) > waits + 3)
    assert store.calls["next_due"] <= asked + 1, "an outbox where nothing has failed is not asked each time"


async def test_a_look_for_rows_behind_others_that_fails_ends_no_session(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(lease=600.0)
    store = Store(desk.table)
    store.waits_behind = True
    _breaking(store, "free", "before", StoreUnavailable("it takes too long"), after=1, always=True)
    async with desk.running(desk.relay(store)):
        for number in range(3):
            desk.table.add(Outgoing("orders", b"%d" % number))
            await desk.until(desk.is_empty)
            seen = store.calls["free"]
            await desk.until(lambda: store.calls["free"] > seen)  # noqa: B023  # it is called at once
    assert len(desk.senders) == 1
    assert fields(caplog, "rows behind sent ones not found") == [{"outbox": "shop", "error": "StoreUnavailable: it takes too long"}]


async def test_a_window_stops_between_two_sends_if_a_shard_of_it_was_taken_over() -> None:
    desk = Desk()
    store = Store(desk.table)
    relay = desk.relay(store)
    relay._around.send_size._most = 2  # a row or two at once
    desk.table.add(*(Outgoing("orders", b"%d" % number, b"k") for number in range(5)))
    sender = Sender(desk.log, lambda message: None, lambda: None)
    sender.is_open = True
    session = outboxsession.OutboxSession(store, sender, relay._around)
    await session._own(SHARDS)
    window = await session._read(())
    session._holding = Holding.renewed(session._holding.tokens, asked_at=0.0, lease=15.0, is_short=False, hurry=1.0)
    send = sender.send_many

    async def taken(messages: Sequence[Outgoing], **how: bool) -> list[SendAnswer]:
        answers = await send(messages, **how)
        left = {shard: token for shard, token in session._holding.tokens.items() if shard != window.rows[0].shard}
        session._holding = Holding.renewed(left, asked_at=0.0, lease=15.0, is_short=False, hurry=1.0)
        return answers

    sender.send_many = taken  # type: ignore[method-assign]
    with pytest.raises(outboxsession.LeaseOver, match="some of them were taken over"):
        await session._send(window)
    assert 0 < len(desk.log.messages) < 5


async def test_rows_behind_one_are_looked_for_once_it_was_deleted() -> None:
    desk = Desk(lease=600.0)
    store = Store(desk.table)
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: store.calls["free"] == 1)
        store.waits_behind = True
        desk.table.add(Outgoing("orders", b"1"))
        await desk.until(lambda: store.calls["free"] == 2)


def _breaking(store: Store, call: str, when: str, error: BaseException, *, after: int, always: bool = False) -> None:
    left = [after]

    def harm(made: str, at: str) -> None:
        if (made, at) == (call, when):
            left[0] -= 1
            if left[0] == 0 or always:
                raise error

    store.harm = harm


#: Calls of the database, and whether they end before they had their effect or after.
CALLS = [
    *((call, "before") for call in ("claim_relay", "own", "relays", "pending", "sent", "failed", "wait_for_rows", "next_due", "leave")),
    *((call, "after") for call in ("own", "pending", "sent", "failed")),
]


async def test_whatever_a_call_of_the_database_ends_with_every_row_is_sent_in_order() -> None:
    errors = (StoreUnavailable("gone"), OSError("gone"), ValueError("odd"), asyncio.CancelledError())
    for case in itertools.product(CALLS, (1, 2), errors):
        (call, when), after, error = case
        desk = Desk(batch=4)
        store = Store(desk.table)
        desk.refuse = _refusing(b"1", times=2)
        desk.table.add(*desk.orders(3, 4))
        _breaking(store, call, when, error, after=after)
        async with desk.running(desk.relay(store)) as (task,):
            await desk.until(desk.is_empty, step=0.05)
            desk.table.add(Outgoing("orders", b"last", b"key-0"))
            await desk.until(desk.is_empty, step=0.05)
            assert not task.done(), case
        assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2", b"3", b"last"], case
        assert desk.log.of_key(b"key-1") == [b"0", b"1", b"2", b"3"], case
        assert set(desk.log.ids.values()) == {1}, f"what this process knows to be acknowledged is not sent again: {case}"


def _refusing(value: bytes, *, times: int) -> Callable[[Outgoing], SendFailed | None]:
    failing = iter([True] * times)
    return lambda message: lost() if message.value == value and next(failing, False) else None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
async def test_four_relays_with_failures_and_kills_send_each_row_and_reorder_no_key(seed: int) -> None:
    rng = random.Random(seed)
    desk = Desk(batch=20, lease=5.0)
    desk.refuse = lambda message: lost() if rng.random() < 0.02 else None
    alive = [Store(desk.table) for _ in range(4)]
    desk.table.add(*desk.orders(40, 10))
    async with desk.running(*(desk.relay(store) for store in alive)) as tasks:
        more = [desk.orders(40, 25)[400 + 100 * step : 500 + 100 * step] for step in range(6)]
        for messages in more:
            await desk.until(lambda: rng.random() < 0.05, step=0.1)
            desk.table.add(*messages)
            killed = rng.randrange(4)
            _kill(alive[killed], tasks[killed])
            alive[killed] = Store(desk.table)
            tasks[killed] = asyncio.create_task(desk.relay(alive[killed]).run(desk.stop))
        await desk.until(desk.is_empty, step=0.1)
        desk.stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not desk.table.causes
    for key in range(40):
        assert desk.log.of_key(b"key-%d" % key) == [b"%d" % number for number in range(25)]


class SlowReads(Store):
    """Rows are handed out as they were when they were asked for, after as many seconds of the table's clock as `rng` says."""

    def __init__(self, table: Table, rng: random.Random) -> None:
        super().__init__(table)
        self._rng = rng

    async def pending(self, shards: Mapping[int, int], **asked: Any) -> list[OutboxRow]:
        found: list[OutboxRow] = await super().pending(shards, **asked)
        until = self.table.now + self._rng.choice([0.0, 0.1, 2.0])
        while self.table.now < until:  # noqa: ASYNC110  # the test moves the clock
            await asyncio.sleep(0)
        return found


@pytest.mark.slow  # sends some hundred rows, with reads that last
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2, 3))])
async def test_no_row_overtakes_one_of_its_key_that_failed_however_long_reads_last(seed: int) -> None:
    rng = random.Random(seed)
    desk = Desk(batch=rng.choice([2, 5, 20]), lease=600.0, max_attempts=1000)
    failing = rng.choice([0.02, 0.2])
    desk.refuse = lambda message: lost() if rng.random() < failing else None
    desk.table.add(*desk.orders(rng.choice([1, 3, 10]), 40))
    async with desk.running(desk.relay(SlowReads(desk.table, rng))):
        await desk.until(lambda: not desk.table.rows, step=0.25)
    for key in {message.key for message in desk.log.messages}:
        assert [int(value) for value in desk.log.of_key(key or b"")] == [*range(40)], key


async def test_rows_that_were_read_while_an_earlier_one_of_their_key_failed_are_not_sent_before_it() -> None:
    desk = Desk(batch=2, lease=600.0)
    desk.refuse = _refusing(b"0", times=4)
    desk.table.add(*desk.orders(1, 8))
    async with desk.running(desk.relay()):
        await desk.until(desk.is_empty, step=0.05)
    assert [message.value for message in desk.log.messages] == [b"%d" % number for number in range(8)]


def _kill(store: Store, task: asyncio.Task[None]) -> None:
    """As kill -9 does: from now on it reaches nothing, and frees nothing."""

    def harm(call: str, when: str) -> None:
        raise StoreUnavailable("killed")

    store.harm = harm
    task.cancel()


async def test_a_failure_holds_the_later_rows_of_its_key_back_and_no_others() -> None:
    desk = Desk(max_attempts=10)
    failing = True
    desk.refuse = lambda message: lost() if failing and (message.key, message.value) == (b"key-0", b"1") else None
    desk.table.add(*desk.orders(3, 3))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.table.rows) == 2)
        assert {row.message.value for row in desk.table.rows.values()} == {b"1", b"2"}
        assert desk.log.of_key(b"key-0") == [b"0"]
        failing = False
        await desk.until(desk.is_empty, step=0.1)
    assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2"]


async def test_a_blocked_key_with_many_rows_does_not_keep_the_others_from_being_sent() -> None:
    desk = Desk(batch=10)
    desk.refuse = lambda message: lost() if message.key == b"bad" else None
    desk.table.add(*(Outgoing("orders", b"%d" % number, b"bad") for number in range(500)), *desk.orders(20, 5))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.log.ids) == 100)
    assert len(desk.table.rows) == 500


async def test_a_refused_row_is_parked_with_its_cause_and_holds_its_key_until_it_is_requeued(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(), OutboxCounts()
    desk.refuse = lambda message: refused("topic 'orders' refuses the message for good") if message.value == b"1" else None
    (_, bad, _) = desk.table.add(*desk.orders(1, 3))
    async with desk.running(desk.relay(counts=counts)):
        await desk.until(lambda: bool(desk.table.causes))
        assert desk.table.causes == {bad: "topic 'orders' refuses the message for good"}
        assert desk.log.of_key(b"key-0") == [b"0"]
        await desk.until(lambda: any(event.code is EventCode.OUTBOX_PARKED for event in desk.sink.events))
        desk.refuse = lambda message: None
        await desk.table.requeue()
        await desk.until(desk.is_empty)
    assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2"]
    assert (counts.parked, counts.sent) == (1, 3)
    (event,) = [event for event in desk.sink.events if event.code is EventCode.OUTBOX_PARKED]
    assert event.attrs == f'{{"row": {bad}, "outbox": "shop", "attempts": 1, "cause": "MessageSizeTooLargeError"}}'
    (line,) = fields(caplog, "outbox row parked")
    assert (line["row"], line["holds_key"]) == (bad, True)


async def test_a_row_is_parked_once_its_attempts_are_used_up() -> None:
    desk = Desk(max_attempts=3)
    desk.refuse = lambda message: lost() if message.key == b"key-0" else None
    desk.table.add(*desk.orders(2, 1))
    async with desk.running(desk.relay()):
        await desk.until(lambda: bool(desk.table.causes), step=0.2)
    assert [row.attempts for row in desk.table.rows.values()] == [3]


async def test_while_no_broker_answers_rows_wait_and_no_attempt_is_used_up(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(max_attempts=2, batch=2), OutboxCounts()
    store = Store(desk.table)
    desk.refuse = lambda message: lost()
    desk.are_brokers_there = False
    desk.table.add(*desk.orders(3, 3))
    async with desk.running(desk.relay(store, counts=counts)):
        await desk.until(lambda: desk.asked_brokers >= 10, step=0.1)
        assert counts.brokers_away
        assert store.calls["failed"] == 0
        assert not desk.log.messages
        desk.refuse, desk.are_brokers_there = lambda message: None, True
        await desk.until(desk.is_empty, step=0.1)
        assert not counts.brokers_away
    assert all(desk.log.of_key(b"key-%d" % key) == [b"0", b"1", b"2"] for key in range(3))
    assert len(fields(caplog, "no broker answers the outbox relay")) == 1
    assert len(fields(caplog, "brokers answered the outbox relay again")) == 1


async def test_a_relay_whose_lease_is_over_sends_nothing() -> None:
    for call in ("own", "pending"):  # the process is stopped once it has its answer, and goes on later
        desk = Desk(batch=1, lease=5.0)
        store = _stalling(desk, call)
        desk.table.add(*desk.orders(2, 2))
        async with desk.running(desk.relay(store)):
            await desk.until(functools.partial(_has_asked, store, 4), step=0.5)
        assert not desk.log.messages, call
        assert len(desk.table.rows) == 4, call


async def test_what_was_acknowledged_before_the_lease_ended_is_known_and_what_was_not_tried_gains_no_attempt() -> None:
    desk = Desk(lease=15.0)

    class SlowLink(Sender):
        async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
            desk.table.now += 4.0
            return await super().send_many(messages, stop_keys=stop_keys) if len(messages) == 1 else [lost()] * len(messages)

    desk._new_sender = lambda: SlowLink(desk.log, lambda message: None, lambda: None)  # type: ignore[method-assign]
    desk.table.add(*desk.orders(1, 8))
    async with desk.running(desk.relay()):
        await desk.until(desk.is_empty)
    assert desk.log.of_key(b"key-0") == [b"%d" % number for number in range(8)]
    assert set(desk.log.ids.values()) == {1}, "none is sent twice"


def _stalling(desk: Desk, stalled: str) -> Store:
    store = Store(desk.table)

    def harm(call: str, when: str) -> None:
        if (call, when) == (stalled, "after"):
            desk.table.now += 5.0
            desk.table.take_over()

    store.harm = harm
    return store


def _has_asked(store: Store, times: int) -> bool:
    return store.calls["own"] >= times


class Gated(Store):
    """Deletes nothing before it may."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Any:
        self.begun.set()
        await self.go_on.wait()
        return await super().sent(rows, shards)


async def test_no_shard_is_given_back_while_rows_are_sent_also_if_another_relay_has_come() -> None:
    desk, renewed = Desk(lease=1.0), list[str]()
    store = Gated(desk.table)
    desk.table.add(*desk.orders(40, 1))
    async with desk.running(desk.relay(store)):
        await store.begun.wait()
        (owner,) = desk.table.owners
        await desk.table.own("another", lease=60.0, share=32)
        store.harm = lambda call, when: renewed.append(when) if call == "own" else None
        desk.table.now += 0.5  # half of the lease is over, it is renewed beside the sweep
        await desk.until(lambda: "after" in renewed)
        assert desk.table.owners == {owner}
        store.go_on.set()
        await desk.until(desk.is_empty)


async def test_rows_of_a_shard_that_was_taken_over_meanwhile_are_not_deleted(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(), OutboxCounts()
    store = Store(desk.table)
    desk.table.add(*desk.orders(4, 1))

    def taken_over(call: str, when: str) -> None:
        if (call, when) == ("sent", "before"):
            desk.table.take_over()

    store.harm = taken_over
    async with desk.running(desk.relay(store, counts=counts)):
        await desk.until(lambda: counts.taken_over == 4)
    assert len(desk.table.rows) == 4
    assert fields(caplog, "sent outbox rows belong to another relay")


async def test_nothing_is_deleted_before_its_event_is_durable_and_then_it_is_not_sent_again() -> None:
    desk = Desk()
    desk.table.add(*desk.orders(2, 2))
    relay = desk.relay()

    desk.refuse = lambda message: _full(desk)
    async with desk.running(relay):
        await desk.until(lambda: len(desk.log.messages) == 4)
        await turns(50)
        assert len(desk.table.rows) == 4
        desk.refuse = lambda message: None
        desk.sink.error = None
        await desk.until(desk.is_empty)
    assert set(desk.log.ids.values()) == {1}
    sent = [event for event in desk.sink.durable if event.code is EventCode.OUTBOX_SENT]
    assert sorted(event.dedup_key or "" for event in sent) == sorted(desk.log.ids)
    assert {(event.topic, event.partition, event.offset) for event in sent} == {("orders", 0, offset) for offset in range(4)}


def _full(desk: Desk) -> SendFailed | None:
    desk.sink.error = EventLogUnavailable("no space left")
    return None


async def test_two_relays_share_the_shards_and_give_back_what_is_above_their_share() -> None:
    desk, counts = Desk(), [OutboxCounts(), OutboxCounts()]
    first, second = (desk.relay(counts=each) for each in counts)
    async with desk.running(first) as tasks:
        await desk.until(lambda: counts[0].shards == SHARDS)
        tasks.append(asyncio.create_task(second.run(desk.stop)))
        await desk.until(lambda: [each.shards for each in counts] == [32, 32], step=0.002)


async def test_a_stop_lets_what_is_being_sent_be_deleted_and_frees_the_shards() -> None:
    desk = Desk(batch=4)
    desk.table.add(*desk.orders(4, 10))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.log.messages) > 5)
        desk.stop.set()
    assert 0 < len(desk.table.rows) < 40
    assert len(desk.log.messages) == 40 - len(desk.table.rows), "what was sent is deleted, the rest was not sent"
    assert desk.table.owners == {""}


async def test_the_shards_are_free_only_once_nothing_is_sent_any_more() -> None:
    for ends_by in ("stop", "error"):
        desk = Desk(batch=4)
        open_at_leave = _watching_leaves(desk, store := Store(desk.table), fails=ends_by == "error")
        desk.table.add(*desk.orders(4, 10))
        async with desk.running(desk.relay(store)):
            await desk.until(functools.partial(_has_sent, desk, 6))
        assert open_at_leave, ends_by
        assert not any(open_at_leave), ends_by


def _has_sent(desk: Desk, messages: int) -> bool:
    return len(desk.log.messages) >= messages


def _watching_leaves(desk: Desk, store: Store, *, fails: bool) -> list[bool]:
    """Whether a sender was open each time that the relay left its shards; with `fails` its first deletion raises."""
    seen: list[bool] = []

    def harm(call: str, when: str) -> None:
        if call == "leave":
            seen.append(any(sender.is_open for sender in desk.senders))
        if (call, when) == ("sent", "before") and fails and not seen:
            raise StoreUnavailable("gone")

    store.harm = harm
    return seen


async def test_a_second_signal_ends_it_at_once_and_frees_the_shards() -> None:
    desk = Desk()
    desk.table.add(*desk.orders(2, 2))
    hanging = asyncio.Event()

    async def hang(call: str = "") -> None:
        hanging.set()
        await asyncio.Event().wait()

    store = Store(desk.table)
    store.sent = lambda rows, shards: hang()  # type: ignore[method-assign]
    running = asyncio.create_task(desk.relay(store).run(desk.stop))
    async with asyncio.timeout(PATIENCE):
        await hanging.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert desk.table.owners == {""}
    assert len(desk.table.rows) == 4


async def test_a_second_signal_while_it_leaves_its_shards_is_obeyed_once_they_are_free() -> None:
    desk, leaving, may_leave = Desk(), asyncio.Event(), asyncio.Event()
    store = Store(desk.table)
    leave = store.leave

    async def leave_slowly(owner: str) -> None:
        leaving.set()
        await may_leave.wait()
        await leave(owner)

    store.leave = leave_slowly  # type: ignore[method-assign]
    desk.table.add(*desk.orders(1, 1))
    running = asyncio.create_task(desk.relay(store).run(desk.stop))
    async with asyncio.timeout(PATIENCE):
        await desk.until(desk.is_empty)
        desk.stop.set()
        await leaving.wait()
        running.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not running.done()
        may_leave.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert desk.table.owners == {""}


async def test_brokers_that_are_away_at_the_start_are_waited_for() -> None:
    desk = Desk()
    desk.table.add(*desk.orders(1, 1))
    left = iter([True] * 3)

    def away() -> None:
        if next(left, False):
            raise StoreUnavailable("no broker")

    desk.starting = away
    async with desk.running(desk.relay()):
        await desk.until(desk.is_empty)


async def test_a_relay_that_may_never_begin_says_so_alone_and_in_a_worker_stops_no_handlers(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    store = Store(desk.table)
    _breaking(store, "claim_relay", "before", ConfigurationError("relays of kind cdc send these rows"), after=1, always=True)
    with pytest.raises(ConfigurationError, match="kind cdc"):
        await desk.relay(store, is_alone=True).run(desk.stop)
    async with desk.running(desk.relay(store)) as (task,):
        await desk.until(lambda: store.calls["claim_relay"] > 5)
        assert not task.done()
    assert len(fields(caplog, "outbox relay refused")) == 1


async def test_over_a_link_that_is_too_slow_for_many_rows_one_is_read_at_a_time() -> None:
    asked: list[int] = []

    class SlowLink(Store):
        async def pending(self, shards: Mapping[int, int], **how: Any) -> Any:
            asked.append(how["most"])
            if how["most"] > 1:
                raise StoreUnavailable("no answer within 5 s")
            return await super().pending(shards, **how)

    desk = Desk()
    desk.table.add(*desk.orders(5, 1))
    async with desk.running(desk.relay(SlowLink(desk.table))):
        await desk.until(desk.is_empty)
    assert asked[10:12] == [1, 1]
