"""The relay of an outbox: nothing is lost whatever breaks, keys keep their order, and nothing is sent after a lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.plugin.outbox.desk import PATIENCE, Desk, Store, fields, lost, refused

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.outbox import SHARDS
from ackwise.middleware.outgoing import Outgoing, SendFailed
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.outbox import relay as outboxrelay
from ackwise.plugin.outbox import stay as outboxstay


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ackwise")
    monkeypatch.setattr(outboxrelay, "_BEGIN_ANEW", (0.0, 0.0))
    monkeypatch.setattr(outboxstay, "_LONGEST_REST", 0.0)


async def test_rows_are_sent_by_id_and_deleted() -> None:
    desk = Desk(batch=7)
    desk.book.add(*desk.orders(5, 20))
    async with desk.running(desk.relay()):
        await desk.until(lambda: not desk.book.rows)
    assert [message.value for message in desk.log.messages] == [b"%d" % number for number in range(20) for _ in range(5)]
    assert set(desk.log.ids.values()) == {1}


async def test_a_row_that_commits_late_with_a_low_id_is_sent() -> None:
    desk = Desk(batch=2)
    desk.book.add(*desk.orders(2, 2))
    late = desk.book.rows.pop(1)
    async with desk.running(desk.relay()):
        await desk.until(lambda: not desk.book.rows)
        desk.book.rows[1] = late
        await desk.until(lambda: not desk.book.rows)
    assert len(desk.log.ids) == 4


async def test_what_is_under_way_is_not_read_again() -> None:
    desk = Desk(batch=3)
    store = Store(desk.book)
    desk.book.add(*desk.orders(1, 12))
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: not desk.book.rows)
    assert set(desk.log.ids.values()) == {1}
    assert any(len(under_way) == 6 for under_way, _, _ in store.asked), "while one window is sent, the next one is read"


async def test_a_row_that_failed_is_looked_at_when_it_is_due_and_not_a_poll_later() -> None:
    desk = Desk(poll=60.0, lease=600.0)
    store = Store(desk.book)
    failing = iter([True])
    desk.refuse = lambda message: lost() if message.value == b"1" and next(failing, False) else None
    desk.book.add(Outgoing("orders", b"0", b"k"), Outgoing("orders", b"1", b"k"))
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: bool(desk.book.due) and len(store.waits) > 0)
        seen = len(store.waits)
        await desk.until(lambda: len(store.waits) > seen)
        assert max(store.waits[seen:]) <= max(desk.book.due.values())
        await desk.until(lambda: not desk.book.rows, step=0.05)
        asked = store.calls["next_due"]
        waits = len(store.waits)
        await desk.until(lambda: len(store.waits) > waits + 3)
    assert store.calls["next_due"] <= asked + 1, "an outbox where nothing has failed is not asked each time"


def _breaking(desk: Desk, store: Store, call: str, when: str, error: BaseException, *, after: int) -> None:
    left = [after]

    def harm(made: str, at: str) -> None:
        if (made, at) == (call, when):
            left[0] -= 1
            if left[0] == 0:
                raise error

    store.harm = harm


@pytest.mark.slow
@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OSError("gone"), ValueError("odd"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("claim_relay", "before"),
        ("own", "before"),
        ("own", "after"),
        ("relays", "before"),
        ("pending", "before"),
        ("pending", "after"),
        ("sent", "before"),
        ("sent", "after"),
        ("failed", "before"),
        ("failed", "after"),
        ("wait_for_rows", "before"),
        ("next_due", "before"),
        ("leave", "before"),
    ],
)
async def test_whatever_a_call_of_the_database_ends_with_every_row_is_sent_in_order(
    call: str, when: str, after: int, error: BaseException
) -> None:
    desk = Desk(batch=4)
    store = Store(desk.book)
    failing = iter([True, True])
    desk.refuse = lambda message: lost() if message.value == b"1" and next(failing, False) else None
    desk.book.add(*desk.orders(3, 4))
    _breaking(desk, store, call, when, error, after=after)
    async with desk.running(desk.relay(store)) as (task,):
        await desk.until(lambda: not desk.book.rows, step=0.05)
        desk.book.add(Outgoing("orders", b"last", b"key-0"))
        await desk.until(lambda: not desk.book.rows, step=0.05)
        assert not task.done()
    assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2", b"3", b"last"]
    assert desk.log.of_key(b"key-1") == [b"0", b"1", b"2", b"3"]
    assert set(desk.log.ids.values()) == {1}, "what this process knows to be acknowledged is not sent again"


async def test_an_answer_that_was_lost_after_the_delete_changes_nothing() -> None:
    desk = Desk()
    store = Store(desk.book)
    desk.book.add(*desk.orders(2, 2))
    _breaking(desk, store, "sent", "after", StoreUnavailable("gone"), after=1)
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: not desk.book.rows and store.calls["pending"] > 2)
    assert set(desk.log.ids.values()) == {1}


@pytest.mark.parametrize("seed", range(5))
async def test_four_relays_with_failures_and_kills_send_each_row_and_reorder_no_key(seed: int) -> None:
    rng = random.Random(seed)
    desk = Desk(batch=20, lease=5.0)
    desk.refuse = lambda message: lost() if rng.random() < 0.02 else None
    alive = [Store(desk.book) for _ in range(4)]
    desk.book.add(*desk.orders(40, 10))
    async with desk.running(*(desk.relay(store) for store in alive)) as tasks:
        more = [desk.orders(40, 25)[400 + 100 * step : 500 + 100 * step] for step in range(6)]
        for messages in more:
            await desk.until(lambda: rng.random() < 0.05, step=0.1)
            desk.book.add(*messages)
            killed = rng.randrange(4)
            _kill(alive[killed], tasks[killed])
            alive[killed] = Store(desk.book)
            tasks[killed] = asyncio.create_task(desk.relay(alive[killed]).run(desk.stop))
        await desk.until(lambda: not desk.book.rows, step=0.1)
        desk.stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not desk.book.parked
    for key in range(40):
        assert desk.log.of_key(b"key-%d" % key) == [b"%d" % number for number in range(25)]


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
    desk.book.add(*desk.orders(3, 3))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.book.rows) == 2)
        assert {row.message.value for row in desk.book.rows.values()} == {b"1", b"2"}
        assert desk.log.of_key(b"key-0") == [b"0"]
        failing = False
        await desk.until(lambda: not desk.book.rows, step=0.1)
    assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2"]


async def test_a_blocked_key_with_many_rows_does_not_keep_the_others_from_being_sent() -> None:
    desk = Desk(batch=10)
    desk.refuse = lambda message: lost() if message.key == b"bad" else None
    desk.book.add(*(Outgoing("orders", b"%d" % number, b"bad") for number in range(500)), *desk.orders(20, 5))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.log.ids) == 100)
    assert len(desk.book.rows) == 500


async def test_a_refused_row_is_parked_with_its_cause_and_holds_its_key_until_it_is_requeued(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(), OutboxCounts()
    desk.refuse = lambda message: refused("topic 'orders' refuses the message for good") if message.value == b"1" else None
    (_, bad, _) = desk.book.add(*desk.orders(1, 3))
    async with desk.running(desk.relay(counts=counts)):
        await desk.until(lambda: bool(desk.book.parked))
        assert desk.book.parked == {bad: "topic 'orders' refuses the message for good"}
        assert desk.log.of_key(b"key-0") == [b"0"]
        await desk.until(lambda: any(event.code is EventCode.OUTBOX_PARKED for event in desk.sink.events))
        desk.refuse = lambda message: None
        desk.book.requeue()
        await desk.until(lambda: not desk.book.rows)
    assert desk.log.of_key(b"key-0") == [b"0", b"1", b"2"]
    assert (counts.parked, counts.sent) == (1, 3)
    (event,) = [event for event in desk.sink.events if event.code is EventCode.OUTBOX_PARKED]
    assert event.attrs == f'{{"row": {bad}, "outbox": "shop", "attempts": 1, "cause": "MessageSizeTooLargeError"}}'
    (line,) = fields(caplog, "a row of the outbox is parked, it is not sent until it is requeued")
    assert (line["row"], line["holds_key"]) == (bad, True)


async def test_with_skip_the_later_rows_of_a_parked_key_are_sent() -> None:
    desk = Desk(on_error="skip")
    desk.refuse = lambda message: refused() if message.value == b"1" else None
    desk.book.add(*desk.orders(1, 3))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.book.rows) == 1)
    assert desk.log.of_key(b"key-0") == [b"0", b"2"]


async def test_a_row_is_parked_once_its_attempts_are_used_up() -> None:
    desk = Desk(max_attempts=3)
    desk.refuse = lambda message: lost() if message.key == b"key-0" else None
    desk.book.add(*desk.orders(2, 1))
    async with desk.running(desk.relay()):
        await desk.until(lambda: bool(desk.book.parked), step=0.2)
    assert [row.attempts for row in desk.book.rows.values()] == [3]


async def test_while_no_broker_answers_rows_wait_and_no_attempt_is_used_up(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(max_attempts=2, batch=2), OutboxCounts()
    store = Store(desk.book)
    desk.refuse = lambda message: lost()
    desk.are_brokers_there = False
    desk.book.add(*desk.orders(3, 3))
    async with desk.running(desk.relay(store, counts=counts)):
        await desk.until(lambda: desk.asked_brokers >= 10, step=0.1)
        assert counts.brokers_away
        assert store.calls["failed"] == 0
        assert not desk.log.messages
        desk.refuse, desk.are_brokers_there = lambda message: None, True
        await desk.until(lambda: not desk.book.rows, step=0.1)
        assert not counts.brokers_away
    assert all(desk.log.of_key(b"key-%d" % key) == [b"0", b"1", b"2"] for key in range(3))
    assert len(fields(caplog, "no broker answers, the rows of the outbox wait and no attempt is counted")) == 1
    assert len(fields(caplog, "the brokers answer again, the rows of the outbox are sent")) == 1


async def test_the_wait_for_brokers_grows_and_is_no_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(outboxstay, "_LONGEST_REST", 10.0)
    desk = Desk()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if 0.5 < seconds != float(desk.policy.lease) / 12:
            waits.append(seconds)
        await real(0 if len(waits) < 9 else 3600)

    monkeypatch.setattr("ackwise.plugin.outbox.stay.asyncio.sleep", sleep)
    desk.refuse, desk.are_brokers_there = lambda message: lost(), False
    desk.book.add(*desk.orders(1, 1))
    async with desk.running(desk.relay()):
        async with asyncio.timeout(PATIENCE):
            while len(waits) < 9:
                await real(0)
    assert waits[0] < 1.3
    assert max(waits) == 10.0


async def test_a_bad_topic_while_brokers_answer_uses_up_its_attempts() -> None:
    desk = Desk(max_attempts=2)
    desk.refuse = lambda message: lost()
    desk.book.add(*desk.orders(1, 1))
    async with desk.running(desk.relay()):
        await desk.until(lambda: bool(desk.book.parked), step=0.1)


async def test_a_relay_whose_lease_is_over_sends_nothing() -> None:
    desk = Desk(batch=1, lease=5.0)
    store = Store(desk.book)
    desk.book.add(*desk.orders(2, 2))

    def stalls(call: str, when: str) -> None:
        if (call, when) == ("pending", "after"):  # the process is stopped once it has read, and goes on later
            desk.book.now += 5.0
            for shard, (_, token, _) in desk.book.owners.items():
                desk.book.owners[shard] = ("another", token + 1, desk.book.now + 1e6)

    store.harm = stalls
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: store.calls["own"] > 3, step=0.5)
    assert not desk.log.messages
    assert len(desk.book.rows) == 4


async def test_rows_of_a_shard_that_was_taken_over_meanwhile_are_not_deleted(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(), OutboxCounts()
    store = Store(desk.book)
    desk.book.add(*desk.orders(4, 1))

    def taken_over(call: str, when: str) -> None:
        if (call, when) == ("sent", "before"):
            for shard, (_, token, until) in desk.book.owners.items():
                desk.book.owners[shard] = ("another", token + 1, until + 1e6)

    store.harm = taken_over
    async with desk.running(desk.relay(store, counts=counts)):
        await desk.until(lambda: counts.taken_over == 4)
    assert len(desk.book.rows) == 4
    assert fields(caplog, "rows of the outbox were sent here and belong to another relay by now, it sends them again under the same ids")


async def test_nothing_is_deleted_before_its_event_is_durable_and_then_it_is_not_sent_again() -> None:
    desk = Desk()
    desk.book.add(*desk.orders(2, 2))
    relay = desk.relay()

    desk.refuse = lambda message: _full(desk)
    async with desk.running(relay):
        await desk.until(lambda: len(desk.log.messages) == 4)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(desk.book.rows) == 4
        desk.refuse = lambda message: None
        desk.sink.error = None
        await desk.until(lambda: not desk.book.rows)
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
    desk.book.add(*desk.orders(4, 10))
    async with desk.running(desk.relay()):
        await desk.until(lambda: len(desk.log.messages) > 5)
        desk.stop.set()
    assert 0 < len(desk.book.rows) < 40
    assert len(desk.log.messages) == 40 - len(desk.book.rows), "what was sent is deleted, the rest was not sent"
    assert {owner for owner, _, _ in desk.book.owners.values()} == {""}


@pytest.mark.parametrize("ends_by", ["stop", "error"])
async def test_the_shards_are_free_only_once_nothing_is_sent_any_more(ends_by: str) -> None:
    desk, open_at_leave = Desk(batch=4), list[bool]()
    store = Store(desk.book)

    def harm(call: str, when: str) -> None:
        if call == "leave":
            open_at_leave.append(any(sender.is_open for sender in desk.senders))
        if (call, when) == ("sent", "before") and ends_by == "error" and not open_at_leave:
            raise StoreUnavailable("gone")

    store.harm = harm
    desk.book.add(*desk.orders(4, 10))
    async with desk.running(desk.relay(store)):
        await desk.until(lambda: len(desk.log.messages) > 5)
    assert open_at_leave
    assert not any(open_at_leave)


async def test_a_second_signal_ends_it_at_once_and_frees_the_shards() -> None:
    desk = Desk()
    desk.book.add(*desk.orders(2, 2))
    hanging = asyncio.Event()

    async def hang(call: str = "") -> None:
        hanging.set()
        await asyncio.Event().wait()

    store = Store(desk.book)
    store.sent = lambda rows, shards: hang()  # type: ignore[method-assign,assignment,return-value]
    running = asyncio.create_task(desk.relay(store).run(desk.stop))
    async with asyncio.timeout(PATIENCE):
        await hanging.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert {owner for owner, _, _ in desk.book.owners.values()} == {""}
    assert len(desk.book.rows) == 4


async def test_brokers_that_are_away_at_the_start_are_waited_for() -> None:
    desk = Desk()
    desk.book.add(*desk.orders(1, 1))
    left = iter([True] * 3)

    def away() -> None:
        if next(left, False):
            raise StoreUnavailable("no broker")

    desk.starting = away
    async with desk.running(desk.relay()):
        await desk.until(lambda: not desk.book.rows)


@pytest.fixture
def refusing() -> Callable[[Store], None]:
    def refuse(store: Store) -> None:
        def harm(call: str, when: str) -> None:
            if call == "claim_relay":
                raise ConfigurationError("relays of kind cdc send these rows")

        store.harm = harm

    return refuse


async def test_alone_a_relay_that_may_never_begin_says_so(refusing: Callable[[Store], None]) -> None:
    desk = Desk()
    refusing(store := Store(desk.book))
    with pytest.raises(ConfigurationError, match="kind cdc"):
        await desk.relay(store, is_alone=True).run(desk.stop)


async def test_in_a_worker_a_relay_that_may_not_begin_stops_no_handlers(
    refusing: Callable[[Store], None], caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    refusing(store := Store(desk.book))
    async with desk.running(desk.relay(store)) as (task,):
        await desk.until(lambda: store.calls["claim_relay"] > 5)
        assert not task.done()
    assert len(fields(caplog, "the relay of the outbox is refused, its rows wait until this changes")) == 1
