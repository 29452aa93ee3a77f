"""Settlement of a batch: copies, events and the store, in this order, each step repeated alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.tables import each

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Done, Duplicate
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.message.wire import due_ms
from ackwise.middleware.runs.run import Stage
from ackwise.middleware.storage.claimstore import Outcome

SETTLED = Stage.SETTLED


@each(("refused", "commit"), [pytest.param({b"v101"}, 101, id="A18"), pytest.param({b"v100", b"v101", b"v102"}, 100, id="A19")])
async def test_a_copy_that_is_not_acknowledged_holds_the_commit_and_only_the_publish_is_repeated(
    make_spine: Any, refused: Any, commit: Any
) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> Any:
        runs.append([message.value for message in batch])
        return CONSUME_LATER

    spine = make_spine(handler, dedup=True)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker") if copy.value in refused else None
    entries = spine.entries(3)
    await spine.run(entries)
    assert spine.watermark.commit == commit
    assert {entry.not_before - spine.clock.now for entry in entries if entry.stage is not SETTLED} == {5.0}

    spine.publisher.answer = lambda copy: None
    spine.clock.now += 5
    await spine.run([entry for entry in entries if entry.stage is not SETTLED])
    assert spine.watermark.commit == 103
    assert len(runs) == 1
    assert sorted(value for _, value in spine.sent()) == [b"v100", b"v101", b"v102"]
    assert {dict(copy.headers)["ackwise-attempt"] for copy in spine.publisher.sent} == {b"2"}


async def test_A23_what_succeeds_after_the_cut_off_is_completed_and_recorded(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        spine.partition.cut_off = True

    spine = make_spine(handler, dedup=True)
    await spine.run(spine.entries(2))
    assert [complete.outcome for complete in spine.store.trips[-1].completes] == [Outcome.OK, Outcome.OK]
    assert [event.code for event in spine.sink.durable][-1] is EventCode.SUCCEEDED


async def test_A24_what_fails_after_the_cut_off_publishes_nothing_and_releases_its_claim(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        spine.partition.cut_off = True
        return CONSUME_LATER

    spine = make_spine(handler, dedup=True)
    assert SETTLED not in await spine.run(spine.entries(2))
    await spine.leases.flush()
    assert spine.sent() == []
    assert spine.watermark.commit == 100
    assert [release.sent_back for release in spine.store.trips[-1].releases] == [None, None]
    assert spine.sink.codes(100) == [EventCode.CLAIMED, EventCode.FAILED]


async def test_a_copy_that_is_refused_for_good_becomes_a_dead_letter_that_is_cut_until_it_fits(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler)
    spine.publisher.answer = lambda copy: PublishRefused("too large") if copy.value is not None else None
    await spine.run(spine.entries(1))
    headers = dict(spine.publisher.sent[0].headers)
    assert spine.sent() == [("billing.dlq", None)]
    assert (headers["ackwise-reason"], headers["ackwise-dropped"]) == (b"too-large", b"value")
    assert spine.watermark.commit == 101


async def test_a_dead_letter_that_never_fits_holds_the_partition(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise Reject("no")

    spine = make_spine(handler)
    spine.publisher.answer = lambda copy: PublishRefused("too large")
    await spine.run(spine.entries(1))
    assert spine.watermark.commit == 100


async def test_the_event_log_comes_before_the_store_and_a_full_disk_settles_nothing(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    spine.sink.error = FULL_DISK
    entries = spine.entries(2)
    await spine.run(entries)
    assert not any(trip.completes for trip in spine.store.trips)
    assert spine.watermark.commit == 100

    spine.sink.error = None
    spine.clock.now += 1
    await spine.run(entries)
    assert spine.watermark.commit == 102
    assert [event.code for event in spine.sink.durable].count(EventCode.SUCCEEDED) == 2


async def test_K05_a_success_whose_claim_was_taken_over_is_claimed_again_and_never_run_again(make_spine: Any, succeed: Any) -> None:
    runs: list[Any] = []

    async def slow(batch: Batch[bytes]) -> None:
        runs.append(1)
        spine.clock.now += 31  # the lease ends while it runs
        await other.run(other.entries(1))  # and somebody else takes over

    spine = make_spine(slow, dedup=True)
    other = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    entries = spine.entries(1)
    await spine.run(entries)
    assert entries[0].stage is SETTLED  # LOST_DONE: the other one finished
    assert runs == [1]


async def test_a_success_that_answers_lost_is_held_claimed_again_and_completed_at_once(make_spine: Any) -> None:
    runs: list[Any] = []

    async def hang(batch: Batch[bytes]) -> None:
        await asyncio.Event().wait()

    async def slow(batch: Batch[bytes]) -> None:
        runs.append(1)
        spine.clock.now += 31
        spine.store.claimed.clear()
        tasks.append(asyncio.create_task(other.run(other.entries(1))))
        await spine.store.claimed.wait()

    tasks: list[asyncio.Task[Any]] = []
    spine = make_spine(slow, dedup=True)
    other = make_spine(hang, dedup=True, store=spine.store, clock=spine.clock)
    entries = spine.entries(1)
    await spine.run(entries)
    assert (entries[0].stage, spine.watermark.commit) == (Stage.FETCHED, 100)
    await spine.run(entries)
    assert spine.watermark.commit == 100  # the other one still holds it

    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    spine.clock.now += 31
    await spine.run(entries)
    assert (runs, spine.watermark.commit) == ([1], 101)


@each("lost", ["fail", "swallow"])
async def test_K10_a_completion_that_fails_holds_the_offset_and_is_repeated_without_running_again(make_spine: Any, lost: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(batch)

    spine = make_spine(handler, dedup=True)
    setattr(spine.store, lost, lambda exchange: bool(exchange.completes))
    entries = spine.entries(2)
    await spine.run(entries)
    assert (len(runs), spine.watermark.commit) == (2, 100)
    setattr(spine.store, lost, lambda exchange: False)
    await spine.run(entries)
    assert (len(runs), spine.watermark.commit) == (2, 102)
    assert [event.code for event in spine.sink.durable].count(EventCode.SUCCEEDED) == 2


async def test_a_release_that_fails_holds_nothing_and_travels_with_the_next_trip(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup=True)
    spine.store.fail = lambda exchange: bool(exchange.releases)
    await spine.run(spine.entries(1))
    assert spine.watermark.commit == 101
    spine.store.fail = lambda exchange: False
    await spine.leases.flush()
    assert [release.sent_back for release in spine.store.trips[-1].releases] == [2]


async def test_followers_are_held_while_their_leaders_copy_is_not_acknowledged(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(2)
    assert SETTLED not in await spine.run(entries)
    spine.publisher.answer = lambda copy: None
    assert await spine.run(entries) == [SETTLED, SETTLED]


async def test_past_the_local_deadline_only_a_renewed_claim_may_publish(make_spine: Any, succeed: Any) -> None:
    async def slow(batch: Batch[bytes]) -> Any:
        spine.clock.now += 31
        await other.run(other.entries(1))
        return CONSUME_LATER

    spine = make_spine(slow, dedup=True)
    other = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    entries = spine.entries(1)
    await spine.run(entries)
    assert (entries[0].stage, spine.sent()) == (Stage.FETCHED, [])


async def test_a_copy_is_due_later_by_what_clocks_may_differ(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.later(batch[0], delay=30)

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    (copy,) = spine.publisher.sent
    assert due_ms(copy.headers, "billing") == round((spine.clock.now + 30 + spine.worker.clock_skew) * 1000)
    assert spine.worker.clock_skew == 0.5


async def test_past_the_local_deadline_nothing_is_published_while_the_claim_can_not_be_renewed(make_spine: Any) -> None:
    async def slow(batch: Batch[bytes]) -> Any:
        spine.clock.now += 31
        return CONSUME_LATER

    spine = make_spine(slow, dedup=True)
    spine.store.fail = lambda exchange: bool(exchange.renews)
    assert (await spine.run(spine.entries(1)), spine.sent()) == ([Stage.RULED], [])


async def test_a_held_copy_is_not_published_after_the_cut_off(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(1)
    assert await spine.run(entries) == [Stage.RULED]
    spine.publisher.answer = lambda copy: None
    spine.clock.now += 60
    spine.partition.cut_off = True
    await spine.run(entries)
    assert (spine.sent(), spine.watermark.commit) == ([], 100)


async def test_S13_a_second_failure_keeps_the_origin_and_the_first_sight(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise ValueError

    spine = make_spine(handler, dedup=True)
    await spine.run([spine.entry(100, headers=(("trace", b"t"),))])
    spine.clock.now += 100
    await spine.run([spine.returned(spine.publisher.sent[0])])
    first, second = (dict(copy.headers) for copy in spine.publisher.sent)
    same = ("trace", "ackwise-origin-topic", "ackwise-origin-partition", "ackwise-origin-offset", "ackwise-first-seen")
    assert [first[name] for name in same] == [second[name] for name in same]


async def test_S14_a_dead_letter_that_can_not_be_published_stays_a_dead_letter(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise Reject("no")

    spine = make_spine(handler)
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(1)
    await spine.run(entries)
    spine.publisher.answer = lambda copy: None
    await spine.run(entries)
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"]


async def test_a_success_that_the_store_has_not_heard_of_is_completed_when_its_partition_is_given_back(
    make_spine: Any, succeed: Any
) -> None:
    spine = make_spine(succeed, dedup=True)
    spine.store.fail = lambda exchange: bool(exchange.completes)
    (entry,) = entries = spine.entries(1)
    assert await spine.run(entries) == [Stage.RECORDED]
    spine.store.fail = lambda exchange: False
    spine.leases.give_back(entry)
    await spine.leases.flush()
    again = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock).entry(100)
    other = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    await other.run([again])
    assert again.disposition == Duplicate()


async def test_a_replay_that_succeeds_makes_its_key_a_success_also_for_new_records(make_spine: Any, succeed: Any) -> None:
    spine = await _dead(make_spine)
    other = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    replay = other.entry(0, value=b"one", replay_id=b"redrive-1")
    assert await other.run([replay]) == [SETTLED]
    assert await _again(make_spine, spine, succeed) == Duplicate()


async def test_a_replay_that_dies_once_more_leaves_its_key_dead(make_spine: Any) -> None:
    spine = await _dead(make_spine)
    other = make_spine(_bury, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    assert await other.run([other.entry(0, value=b"one", replay_id=b"redrive-1")]) == [SETTLED]
    assert await _again(make_spine, spine, _bury) == Duplicate(dead=True)


async def test_a_replay_whose_store_fails_is_held_until_the_key_is_a_success_and_runs_once(make_spine: Any) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[bytes]) -> None:
        ran.extend(message.offset for message in batch)

    spine = await _dead(make_spine)
    other = make_spine(handler, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    spine.store.fail = lambda exchange: bool(exchange.completes)
    replay = other.entry(0, value=b"one", replay_id=b"redrive-1")
    assert await other.run([replay]) == [Stage.RECORDED]
    spine.store.fail = lambda exchange: False
    other.clock.now += 60
    assert await other.run([replay]) == [SETTLED]
    assert (await _again(make_spine, spine, handler), len(ran)) == (Duplicate(), 1)


async def test_a_replay_that_is_given_back_when_it_is_done_makes_its_key_a_success(make_spine: Any, succeed: Any) -> None:
    spine = await _dead(make_spine)
    spine.store.fail = lambda exchange: bool(exchange.completes)
    other = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    replay = other.entry(0, value=b"one", replay_id=b"redrive-1")
    await other.run([replay])
    spine.store.fail = lambda exchange: False
    other.leases.give_back(replay)
    await other.leases.flush()
    assert await _again(make_spine, spine, succeed) == Duplicate()


@each("ended", [False, True])
async def test_a_death_that_the_store_hears_of_after_its_replay_succeeded_leaves_its_key_a_success(
    make_spine: Any, succeed: Any, ended: bool
) -> None:
    spine = make_spine(_bury, dedup=BY_VALUE)
    spine.store.fail = lambda exchange: bool(exchange.completes)
    letter = spine.entry(100, value=b"one")
    assert await spine.run([letter]) == [Stage.RECORDED]  # its letter is there, and the store does not know it
    spine.store.fail = lambda exchange: False
    if ended:
        spine.clock.now += 60  # the lease is over
    other = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    assert await other.run([other.entry(0, value=b"one", replay_id=b"redrive-1")]) == [SETTLED]
    spine.clock.now += 60
    assert await spine.run([letter]) == [SETTLED]
    assert await _again(make_spine, spine, succeed) == Duplicate()


async def test_a_death_and_the_success_of_its_replay_that_wait_for_the_store_together_make_a_success(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(_bury, dedup=BY_VALUE)
    spine.store.fail = lambda exchange: bool(exchange.completes)
    letter = spine.entry(100, value=b"one")
    await spine.run([letter])
    replay = spine.entry(0, value=b"one", replay_id=b"redrive-1")
    spine.agent = type(spine.agent)(spine.agent.name, spine.agent.topics, "batch", succeed, spine.agent.decode)
    other = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    await other.run([replay])
    other.leases.give_back(replay)
    other.leases.give_back(letter)  # as one process that stops: both are marks now
    spine.store.fail = lambda exchange: False
    await other.leases.flush()
    assert await _again(make_spine, spine, succeed) == Duplicate()


async def test_a_replay_that_is_delivered_once_more_makes_up_for_what_its_dead_worker_left(make_spine: Any, succeed: Any) -> None:
    spine = await _dead(make_spine)
    first = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    replay = first.entry(0, value=b"one", replay_id=b"redrive-1")
    base = spine.store.inner._days[None].copy()
    await first.run([replay])
    spine.store.inner._days[None].update(base)  # as a server that ended between the two
    other = make_spine(succeed, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    redelivered = other.entry(0, value=b"one", replay_id=b"redrive-1")
    assert await other.run([redelivered]) == [SETTLED]
    assert redelivered.disposition == Duplicate()
    assert await _again(make_spine, spine, succeed) == Duplicate()


async def test_a_replay_by_coordinates_makes_its_origin_a_success(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(_bury, dedup=True)
    (dead,) = entries = spine.entries(1)
    await spine.run(entries)
    other = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    copy = other.entry(0, topic="billing.retry", origin=dead.origin, replay_id=b"redrive-1")
    assert await other.run([copy]) == [SETTLED]
    third = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    (again,) = entries = third.entries(1)
    await third.run(entries)
    assert (copy.disposition, again.disposition) == (Done(), Duplicate())


BY_VALUE: dict[str, Any] = {"key": lambda message: message.value}


async def _bury(batch: Batch[bytes]) -> None:
    raise Reject("no")


async def _dead(make_spine: Any) -> Any:
    """A worker whose one message died, with the key that is its value."""
    spine = make_spine(_bury, dedup=BY_VALUE)
    assert await spine.run([spine.entry(100, value=b"one")]) == [SETTLED]
    return spine


async def _again(make_spine: Any, spine: Any, handler: Any) -> Any:
    """What becomes of a new record with that key, at another worker."""
    new = make_spine(handler, dedup=BY_VALUE, store=spine.store, clock=spine.clock)
    entry = new.entry(200, value=b"one")
    await new.run([entry])
    return entry.disposition
