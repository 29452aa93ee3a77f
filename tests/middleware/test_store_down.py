"""What `on_store_down` of Dedup does while the store does not answer, and what is made good when it does again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Claim, Column, Exchange, Outcome, Release

DOWN = '{"store": "down"}'


class Handler:
    """Remembers what it ran; fails as long as it is told to."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.tokens: list[int | None] = []
        self.later = False

    async def __call__(self, batch: Batch[Any]) -> None:
        self.ran += [message.offset for message in batch]
        self.tokens += [message.fencing_token for message in batch]
        if self.later:
            raise ConnectionError("not now")


def by_value(message: Any) -> str:
    return str(message.raw)


def down(exchange: Exchange) -> bool:
    return True


def up(exchange: Exchange) -> bool:
    return False


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def spine(make_spine: Any, handler: Handler, request: pytest.FixtureRequest) -> Any:
    return make_spine(handler, dedup={"on_store_down": getattr(request, "param", "fail_open"), "key": by_value})


@pytest.mark.parametrize("spine", ["block"], indirect=True)
async def test_block_holds_everything_and_runs_nothing(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    entries = spine.entries(3)
    assert await spine.run(entries) == [Stage.FETCHED] * 3
    assert (handler.ran, spine.watermark.commit) == ([], 100)
    spine.store.fail = up
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert handler.ran == [100, 101, 102]


@pytest.mark.parametrize("spine", ["fail_closed"], indirect=True)
async def test_fail_closed_stops_with_a_sentence_and_runs_and_charges_nothing(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    entries = spine.entries(3)
    with pytest.raises(StoreUnavailable, match="out of reach; on_store_down is fail_closed: the app stops, and nothing is run"):
        await spine.run(entries)
    assert handler.ran == []
    assert [(entry.stage, entry.delivery.attempt) for entry in entries] == [(Stage.FETCHED, 1)] * 3
    assert (spine.watermark.commit, spine.sent()) == (100, [])


async def test_fail_open_runs_without_a_claim_says_so_and_lets_the_offset_pass(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    assert await spine.run(spine.entries(2)) == [Stage.SETTLED] * 2
    assert (handler.ran, handler.tokens) == ([100, 101], [None, None])
    assert spine.watermark.commit == 102
    assert spine.pipeline.unprotected == 2
    assert spine.sink.codes(100) == [EventCode.STARTED, EventCode.SUCCEEDED]
    assert {event.attrs for event in spine.sink.durable if event.code is EventCode.SUCCEEDED} == {DOWN}


async def test_what_ran_without_a_claim_is_marked_as_soon_as_the_store_answers(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    await spine.run([spine.entry(100, value=b"a")])
    spine.store.fail = up
    spine.clock.now += 2
    await spine.run([spine.entry(101, value=b"b")])
    assert [[complete.outcome for complete in trip.completes] for trip in spine.store.trips if trip.completes] == [
        [Outcome.OK],
        [Outcome.OK],
    ]
    assert await spine.run([spine.entry(102, value=b"a")]) == [Stage.SETTLED]
    assert handler.ran == [100, 101], "the second record of what ran without a claim is a duplicate"


async def test_a_key_that_is_claimed_while_its_mark_is_waiting_is_marked_first(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    await spine.run([spine.entry(100, value=b"a")])
    spine.leases._succeeded = {}, {}  # as if another worker had run it: only the mark says so
    spine.store.fail = up
    spine.clock.now += 2
    before = len(spine.store.trips)
    await spine.run([spine.entry(101, value=b"a")])
    first, second = spine.store.trips[before : before + 2]
    assert (len(first.completes), len(first.claims)) == (1, 0)
    assert (len(second.completes), len(second.claims)) == (0, 1)
    assert handler.ran == [100]


async def test_fail_open_does_not_run_again_what_succeeded_in_this_process(spine: Any, handler: Handler) -> None:
    await spine.run([spine.entry(100, value=b"a")])
    spine.store.fail = down
    assert await spine.run([spine.entry(101, value=b"a")]) == [Stage.SETTLED]
    assert handler.ran == [100]


async def test_fail_open_does_not_run_a_key_that_is_running_in_this_process(make_spine: Any) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    async def handler(batch: Batch[Any]) -> None:
        ran.extend(message.offset for message in batch)
        inside.set()
        await go.wait()

    spine = make_spine(handler, dedup={"on_store_down": "fail_open", "key": by_value})
    spine.store.fail = down
    first, twin = spine.entry(100, value=b"a"), spine.entry(101, value=b"a")
    running = asyncio.create_task(spine.run([first]))
    await inside.wait()
    assert await spine.run([twin]) == [Stage.FETCHED]
    go.set()
    await running
    assert await spine.run([twin]) == [Stage.SETTLED]
    assert ran == [100]


async def test_a_failure_without_a_claim_goes_back_as_a_copy(spine: Any, handler: Handler) -> None:
    spine.store.fail, handler.later = down, True
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    assert [topic for topic, _ in spine.sent()] == ["billing.delay.10s"]
    failed = [event for event in spine.sink.durable if event.code is EventCode.FAILED]
    assert [event.attrs for event in failed] == [DOWN]


async def test_a_claim_that_was_granted_before_the_store_went_down_holds_nothing_under_fail_open(spine: Any, handler: Handler) -> None:
    spine.store.fail = lambda exchange: bool(exchange.completes)
    assert await spine.run(spine.entries(1)) == [Stage.SETTLED]
    assert (handler.tokens, spine.watermark.commit) == ([1], 101)
    spine.store.fail = up
    await spine.leases.flush()
    assert spine.store.trips[-1].completes


async def test_a_store_that_did_not_answer_is_not_asked_by_each_batch(spine: Any, handler: Handler) -> None:
    spine.store.fail = down
    await spine.run([spine.entry(100)])
    asked = len(spine.store.trips)
    await spine.run([spine.entry(101)])
    assert len(spine.store.trips) == asked
    spine.clock.now += 1.1
    await spine.run([spine.entry(102)])
    assert len(spine.store.trips) == asked + 1
    assert handler.ran == [100, 101, 102]


async def test_a_message_that_ends_workers_waits_for_the_store_even_under_fail_open(spine: Any, handler: Handler) -> None:
    entry = spine.entry(100)
    entry.alone = True
    spine.store.fail = down
    assert await spine.run([entry]) == [Stage.FETCHED]
    assert handler.ran == []


async def test_marks_that_wait_are_bounded_and_what_is_dropped_is_counted(
    spine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackwise.middleware.claims.leases._REMEMBERED", 2)
    spine.store.fail = down
    await spine.run(spine.entries(5))
    assert spine.leases.marks_dropped == 3
    assert sum("finished messages not marked" in record.getMessage() for record in caplog.records) == 1
    spine.store.fail = up
    await spine.leases.flush()
    assert len(spine.store.trips[-1].completes) == 2


async def test_after_a_long_outage_no_trip_carries_more_marks_than_a_store_can_take(
    spine: Any, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.middleware.claims.leases._IN_A_TRIP", 2)
    spine.store.fail = down
    await spine.run(spine.entries(5))
    spine.store.fail = up
    spine.clock.now += 60
    before = len(spine.store.trips)
    await spine.leases.exchange(claims=[Column([b"another"], None, 1, [7])])
    await spine.leases.flush()
    assert [len(trip.completes) for trip in spine.store.trips[before:]] == [2, 2, 1]


async def test_marks_that_come_in_while_others_can_not_be_delivered_are_bounded_as_well(
    spine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.middleware.claims.leases._REMEMBERED", 3)
    marks = iter([Column([bytes([number])], None, 1, [number + 1]) for number in range(5)])

    def down_and_another_is_done(exchange: Exchange) -> bool:
        spine.leases.mark_later(next(marks))
        return True

    spine.store.fail = down_and_another_is_done
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await spine.leases.exchange()
    assert spine.leases.marks_dropped == 2
    spine.store.fail = up
    await spine.leases.flush()
    assert [mark.token for mark in spine.store.trips[-1].completes] == [3, 4, 5], "the newest are kept"


async def test_a_handler_is_given_the_fencing_token_of_its_claim(spine: Any, handler: Handler) -> None:
    entry = spine.entry(100, value=b"a")
    await spine.pipeline.admission.prepare([entry])
    assert entry.key is not None
    await spine.store.inner.exchange(Exchange(claims=[Claim(entry.key, 7)]))
    await spine.store.inner.exchange(Exchange(releases=[Release(entry.key, 7)]))
    await spine.run([entry])
    assert handler.tokens == [2], "it grows with every claim that follows another"


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="on_store_down of Dedup is 'open'; it is 'block', 'fail_open' or 'fail_closed'"):
        Dedup("memory://", on_store_down="open")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is tested
