"""Messages that expire: dead letters with the reason `expired`, before their handler runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.middleware.test_transactional import Database
from tests.tables import each

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Duplicate, Reason
from ackwise.middleware.message.message import Delivery, Message, Origin
from ackwise.middleware.message.wire import parse_copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.middleware.runs.expiry import expires_ms
from ackwise.middleware.runs.redelivery import Dropping
from ackwise.middleware.runs.run import Stage

SETTLED = Stage.SETTLED

#: When the messages of a spine were written, in seconds.
WRITTEN = 1_700_000_000.0


class Hand:
    """A handler of batches or of messages that remembers the offsets it saw."""

    def __init__(self, answer: object = None) -> None:
        self.saw: list[int] = []
        self.answer = answer

    async def __call__(self, given: Any) -> Any:
        self.saw += [message.offset for message in (given if isinstance(given, Batch) else [given])]
        return self.answer


@pytest.fixture
def make(make_spine: Any) -> Callable[..., Any]:
    """A spine at 60 s after its messages were written, with options of its agent."""

    def made(handler: Any, kind: str = "batch", *, at: float = 60.0, worker: dict[str, Any] | None = None, **options: Any) -> Any:
        agent = {name: options.pop(name) for name in ("max_age", "expires", "order", "in_place", "around") if name in options}
        spine = make_spine(handler, kind=kind, **options)
        spine.clock.now = WRITTEN + at
        spine.worker = replace(spine.worker, **(worker or {}))
        spine.agent = replace(spine.agent, **agent)
        spine.pipeline = Pipeline(spine.agent, spine.worker)
        return spine

    return made


def until(seconds: float) -> tuple[tuple[str, bytes], ...]:
    """The header of a message that expires so long after it was written."""
    return (("expires", b"%d" % round((WRITTEN + seconds) * 1000)),)


def reasons(spine: Any) -> list[bytes | None]:
    return [dict(copy.headers)["ackwise-reason"] for copy in spine.publisher.sent]


@each("kind", ["batch", "message"])
@each("dedup", [False, True])
async def test_a_message_older_than_max_age_is_a_dead_letter_and_its_handler_does_not_run(make: Any, kind: str, dedup: bool) -> None:
    hand = Hand()
    spine = make(hand, kind, max_age=60.0, dedup=dedup)
    assert await spine.run(spine.entries(2)) == [SETTLED] * 2
    assert hand.saw == []
    assert [(copy.topic, dict(copy.headers)["ackwise-attempt"]) for copy in spine.publisher.sent] == [("billing.dlq", b"1")] * 2
    assert reasons(spine) == [b"expired"] * 2
    assert spine.worker.flow.expired == 2
    assert spine.sink.codes(100) == [EventCode.DEAD_LETTERED]


@each("kind", ["batch", "message"])
async def test_a_message_younger_than_max_age_runs(make: Any, kind: str) -> None:
    hand = Hand()
    spine = make(hand, kind, max_age=60.0, at=59.999)
    assert await spine.run(spine.entries(2)) == [SETTLED] * 2
    assert (hand.saw, spine.publisher.sent) == ([100, 101], [])


@each("kind", ["batch", "message"])
async def test_of_a_batch_those_whose_header_is_past_are_dead_letters_and_the_others_run(make: Any, kind: str) -> None:
    hand = Hand()
    spine = make(hand, kind, expires=True)
    headers = [until(60), until(61), (), until(1)]
    run = spine.together(4)
    for record, each_one in zip(run.records, headers, strict=True):
        record.headers = each_one
    entries = [run]
    await spine.run(entries)
    assert {entry.stage for entry in entries} == {SETTLED}
    assert hand.saw == [101, 102]
    assert [copy.value for copy in spine.publisher.sent] == [b"v100", b"v103"]


async def test_the_header_means_nothing_to_an_agent_that_does_not_ask_for_it(make: Any) -> None:
    hand = Hand()
    spine = make(hand, max_age=3600.0)
    await spine.run(spine.entries(1, headers=until(1)))
    assert hand.saw == [100]


async def test_max_age_holds_beside_a_header_that_is_later(make: Any) -> None:
    spine = make(hand := Hand(), expires=True, max_age=30.0)
    await spine.run(spine.entries(1, headers=until(3600)))
    assert (hand.saw, reasons(spine)) == ([], [b"expired"])


@each(
    ("headers", "expected"),
    [
        ((("expires", b"1700000060000"),), 1_700_000_060_000),
        ((("expires", b"1"), ("expires", b"1700000060000")), 1_700_000_060_000),
        ((), None),
        ((("Expires", b"1700000060000"),), None),
        ((("expires", None),), None),
        ((("expires", b""),), None),
        ((("expires", b"1700000060"),), None),
        ((("expires", b"999999999999"),), None),
        ((("expires", b"1700000060000000"),), None),
        ((("expires", b"253402300800000"),), None),
        ((("expires", b"-1700000060000"),), None),
        ((("expires", b" 1700000060000"),), None),
        ((("expires", b"1700000060000.5"),), None),
        ((("expires", b"2023-11-14T22:14:20Z"),), None),
        ((("expires", "١٧٠٠٠٠٠٠٦٠٠٠٠".encode()),), None),
        ((("expires", b"9" * 5000),), None),
        ((("expires", b"\xff\x00"),), None),
    ],
)
def test_the_header_is_epoch_milliseconds_in_decimal_digits(headers: Any, expected: int | None) -> None:
    assert expires_ms(headers) == expected


async def test_a_message_whose_header_can_t_be_read_runs_and_the_log_says_so_once_a_minute(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hand = Hand()
    spine = make(hand, expires=True)
    with caplog.at_level(logging.WARNING):
        for start, wait in ((100, 0.0), (103, 59.0), (106, 1.0)):
            spine.clock.now += wait
            await spine.run(spine.entries(3, start=start, headers=(("expires", b"1700000000"),)))
    assert (hand.saw, spine.publisher.sent) == ([*range(100, 109)], [])
    lines = [record.getMessage() for record in caplog.records if "could not be read" in record.getMessage()]
    assert [line.split("messages=")[1].split()[0] for line in lines] == ["3", "6"]
    assert all("1700000000" not in line for line in lines)


@each("timestamp", [-1, 0, 1_700_000_000, 1_700_000_000_000_000])
async def test_a_record_without_a_time_has_no_age(make: Any, timestamp: int) -> None:
    hand = Hand()
    spine = make(hand, max_age=60.0)
    await spine.run(spine.entries(1, origin=Origin("orders", 3, 100, timestamp)))
    assert hand.saw == [100]


async def test_a_record_from_the_future_has_not_expired(make: Any) -> None:
    spine = make(hand := Hand(), max_age=60.0, at=-3600.0)
    await spine.run(spine.entries(1))
    assert hand.saw == [100]


async def test_a_copy_that_waited_expires_by_the_age_of_its_origin(make: Any) -> None:
    hand = Hand(CONSUME_LATER)
    spine = make(hand, max_age=3600.0, dedup=True)
    await spine.run(spine.entries(1))
    spine.clock.now += 3600
    copy = spine.returned(spine.publisher.sent[0])
    assert await spine.run([copy]) == [SETTLED]
    assert hand.saw == [100]
    assert (reasons(spine)[1], dict(spine.publisher.sent[1].headers)["ackwise-attempt"]) == (b"expired", b"2")


async def test_a_message_that_ran_before_is_a_duplicate_and_no_dead_letter(make: Any) -> None:
    """It is delivered again since the commit behind it was lost."""
    spine = make(hand := Hand(), max_age=60.0, at=0.0, dedup=True)
    await spine.run(spine.entries(1))
    spine.clock.now += 3600
    later = make(hand, max_age=60.0, at=3600.0, dedup=True, store=spine.store)
    entries = later.entries(1)
    assert await later.run(entries) == [SETTLED]
    assert (hand.saw, later.publisher.sent, entries[0].disposition) == ([100], [], Duplicate())


async def test_what_was_redriven_does_not_expire_nor_does_its_copy(make: Any) -> None:
    hand = Hand(CONSUME_LATER)
    spine = make(hand, max_age=60.0, expires=True, at=3600.0, dedup=True)
    await spine.run(spine.entries(1, replay_id=b"redrive-1", headers=until(1)))
    copy = spine.publisher.sent[0]
    assert (copy.topic, hand.saw) == ("billing.delay", [100])
    spine.clock.now += 3600
    await spine.run([spine.returned(copy)])
    assert hand.saw == [100, 100]


async def test_a_message_with_the_key_of_one_that_expired_runs_if_it_is_in_time(make: Any) -> None:
    """In one batch, where the expired one leads, and later."""
    hand = Hand()
    spine = make(hand, expires=True, dedup={"key": lambda message: "order 17"})
    entries = [spine.entry(100, headers=until(1)), spine.entry(101), spine.entry(102)]
    while not all(entry.stage is SETTLED for entry in entries):
        await spine.run([entry for entry in entries if entry.stage is not SETTLED])
    assert (hand.saw, reasons(spine)) == ([101], [b"expired"])
    assert isinstance(entries[2].disposition, Duplicate)
    assert not entries[2].disposition.dead


async def test_a_dead_letter_whose_handler_gave_the_reason_expired_ends_its_key(make: Any) -> None:
    async def handle(batch: Batch[Any]) -> None:
        batch.dead(batch[0], Reason.EXPIRED)

    spine = make(handle, expires=True, dedup=True)
    await spine.run(spine.entries(1))
    again = spine.entries(1)
    await spine.run(again)
    assert again[0].disposition == Duplicate(dead=True)


async def test_a_message_that_has_expired_waits_while_its_handler_is_paused(make: Any) -> None:
    spine = make(Hand(), max_age=60.0)
    spine.worker.flow.pausing.pause(Target("bill"), "code")
    entries = spine.entries(2)
    await spine.run(entries)
    assert spine.publisher.sent == []
    spine.worker.flow.pausing.resume(Target("bill"), "code")
    assert await spine.run(entries) == [SETTLED] * 2


async def test_messages_that_have_expired_wait_for_no_rate(make: Any) -> None:
    hand = Hand()
    spine = make(hand, expires=True)
    spine.worker.flow.rate_limit = RateLimit("1/s")
    expired = spine.entries(50, headers=until(1))
    assert set(await spine.run([*expired])) == {SETTLED}
    assert await spine.run(spine.entries(1, start=150)) == [SETTLED]
    assert hand.saw == [150]


@each("kind", ["batch", "message"])
async def test_in_an_order_what_follows_an_expired_message_runs_once_its_dead_letter_is_there(make: Any, kind: str) -> None:
    hand = Hand()
    spine = make(hand, kind, expires=True, order="partition", in_place=RetryInPlace(3), dedup=True)
    entries = [spine.entry(offset, headers=until(1) if offset < 150 else ()) for offset in range(100, 152)]
    await spine.run(entries)
    assert (len(spine.publisher.sent), hand.saw) == (50, [])
    await spine.run([entry for entry in entries if entry.stage is not SETTLED])
    assert hand.saw == [150, 151]


async def test_a_message_that_waits_in_place_expires_with_what_it_failed_of(make: Any) -> None:
    async def handle(message: Message[Any]) -> None:
        raise RuntimeError("no")

    spine = make(handle, "message", max_age=120.0, order="partition", in_place=RetryInPlace(100, delay=30), dedup=True)
    entries = spine.entries(1)
    while entries[0].stage is not SETTLED:
        await spine.run(entries)
        spine.clock.now += 30
    headers = dict(spine.publisher.sent[0].headers)
    assert (headers["ackwise-reason"], headers["ackwise-error-class"], headers["ackwise-attempt"]) == (b"expired", b"RuntimeError", b"3")
    assert spine.sink.codes(100).count(EventCode.FAILED) == 2


async def test_a_middleware_around_batches_gets_no_message_that_has_expired(make: Any) -> None:
    seen: list[int] = []

    def around(call_next: Any) -> Any:
        async def call(batch: Batch[Any]) -> object:
            seen.extend(message.offset for message in batch)
            return await call_next(batch)

        return call

    hand = Hand()
    spine = make(hand, "message", expires=True, around=around)
    await spine.run([spine.entry(100, headers=until(1)), spine.entry(101)])
    assert (seen, hand.saw) == ([101], [101])


async def test_where_nothing_is_sent_back_an_expired_message_is_dropped_and_counted(make: Any) -> None:
    dropping = Dropping()
    spine = make(hand := Hand(), max_age=60.0, worker={"dropping": dropping})
    await spine.run(spine.entries(2))
    assert (hand.saw, spine.publisher.sent, dropping.messages) == ([], [], 2)
    assert [(event.code, event.error) for event in spine.sink.events if event.code is EventCode.DROPPED] == [
        (EventCode.DROPPED, "expired")
    ] * 2


@each("kind", ["batch", "message"])
@each("culprit", [False, True])
async def test_in_a_transaction_an_expired_message_is_a_dead_letter_and_its_key_is_free(make: Any, kind: str, culprit: bool) -> None:
    database, hand = Database(), Hand()

    async def handle(given: Any) -> None:
        await hand(given)
        if culprit and any(message.offset == 102 for message in (given if isinstance(given, Batch) else [given])):
            raise RuntimeError("no")

    spine = make(handle, kind, expires=True, worker={"dedup": Transactional(database, key=lambda message: message.raw), "leases": None})
    spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
    entries = [spine.entry(100), spine.entry(101, headers=until(1)), spine.entry(102)]
    assert await spine.run(entries) == [SETTLED] * 3
    assert 101 not in hand.saw
    assert [(copy.topic, copy.value) for copy in spine.publisher.sent if copy.value == b"v101"] == [("billing.dlq", b"v101")]
    assert EventCode.FAILED not in spine.sink.codes(101)
    again = [spine.entry(103, value=b"v101")]
    assert await spine.run(again) == [SETTLED]
    assert hand.saw[-1] == 103


@each("kind", ["batch", "message"])
async def test_in_a_transaction_with_an_order_what_follows_an_expired_message_runs_after_it(make: Any, kind: str) -> None:
    database, hand = Database(), Hand()
    worker = {"dedup": Transactional(database, key=lambda message: message.raw), "leases": None}
    spine = make(hand, kind, expires=True, order="partition", in_place=RetryInPlace(3), worker=worker)
    spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
    entries = [spine.entry(offset, headers=until(1) if offset == 101 else ()) for offset in range(100, 104)]
    for _ in range(3):
        if waiting := [entry for entry in entries if entry.stage is not SETTLED]:
            await spine.run(waiting)
    assert [entry.stage for entry in entries] == [SETTLED] * 4
    assert (hand.saw, [copy.value for copy in spine.publisher.sent]) == ([100, 102, 103], [b"v101"])


async def test_an_expired_message_is_no_failure_of_its_batch(make: Any) -> None:
    """What ran beside it keeps its rulings."""

    async def handle(batch: Batch[Any]) -> Any:
        return CONSUME_LATER

    spine = make(handle, expires=True)
    await spine.run([spine.entry(100, headers=until(1)), spine.entry(101)])
    assert sorted(copy.topic for copy in spine.publisher.sent) == ["billing.delay", "billing.dlq"]
    assert {parse_copy_of(copy).attempt for copy in spine.publisher.sent if copy.topic == "billing.delay"} == {2}


def parse_copy_of(copy: Any) -> Any:
    return parse_copy(Delivery(copy.topic, 0, 0, 0, copy.key, copy.value, copy.headers, Origin(copy.topic, 0, 0, 0)), "billing")


async def test_without_an_answer_for_its_dead_letter_an_expired_message_is_held(make: Any) -> None:
    spine = make(hand := Hand(), max_age=60.0, dedup=True)
    spine.publisher.answer = lambda copy: PublishUnavailable("no")
    entries = spine.entries(1)
    assert await spine.run(entries) == [Stage.RULED]
    spine.publisher.answer = lambda copy: None
    spine.clock.now += 10
    assert await spine.run(entries) == [SETTLED]
    assert (hand.saw, entries[0].disposition) == ([], Dead(Reason.EXPIRED))
