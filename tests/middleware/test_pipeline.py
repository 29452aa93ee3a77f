"""One batch from fetch to commit: what moves the watermark, and what never does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import CONSUME_LATER, DONE, Dead, Duplicate, Reject
from ackwise.middleware.entry import Stage
from ackwise.middleware.errors import InvalidRuling, PublishRefused, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message import Message
from ackwise.middleware.pipeline import HandlerStopped
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.store import Outcome

SETTLED = Stage.SETTLED


async def test_A01_a_batch_that_succeeds_is_passed_by_the_watermark(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed)
    assert await spine.run(spine.entries(5)) == [SETTLED] * 5
    assert (spine.watermark.commit, spine.sent()) == (105, [])


async def test_A02_what_lies_behind_the_ack_index_comes_back_and_the_partition_goes_on(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.ack_index = 2

    spine = make_spine(handler)
    await spine.run(spine.entries(5))
    assert spine.sent() == [("billing.delay.10s", b"v103"), ("billing.delay.10s", b"v104")]
    assert spine.watermark.commit == 105


async def test_A04_each_message_behind_an_ack_index_of_minus_one_has_a_failure_of_its_own(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.ack_index = -1

    spine = make_spine(handler)
    await spine.run(spine.entries(5))
    assert [spine.sink.codes(100 + index) for index in range(5)] == [[EventCode.FAILED, EventCode.SENT_BACK]] * 5


async def test_A16_a_negative_delay_level_is_a_dead_letter_at_once(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        batch.delay_level = -1
        return CONSUME_LATER

    spine = make_spine(handler)
    await spine.run(spine.entries(2))
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"] * 2


@pytest.mark.parametrize(
    ("refused", "commit"), [pytest.param({b"v101"}, 101, id="A18"), pytest.param({b"v100", b"v101", b"v102"}, 100, id="A19")]
)
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


async def test_A26_a_handler_can_not_change_the_batch(make_spine: Any) -> None:
    async def handler(batch: Any) -> None:
        batch[0] = batch[1]

    spine = make_spine(handler)
    await spine.run(spine.entries(2))
    assert len(spine.sent()) == 2


async def test_A30_any_exception_is_later(make_spine: Any) -> None:
    class Odd(BaseException): ...

    async def handler(batch: Batch[bytes]) -> None:
        raise Odd

    spine = make_spine(handler)
    assert await spine.run(spine.entries(1)) == [SETTLED]
    assert len(spine.sent()) == 1


async def test_a_cancellation_that_nobody_asked_for_is_later(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise asyncio.CancelledError

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    assert len(spine.sent()) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_what_stops_a_program_rules_on_nothing_and_keeps_its_claim(make_spine: Any, error: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise error

    spine = make_spine(handler, dedup=True)
    with pytest.raises(HandlerStopped) as stopped:
        await spine.run(spine.entries(2))
    await spine.leases.flush()
    assert stopped.value.error is error
    assert spine.watermark.commit == 100
    assert not any(trip.releases or trip.completes for trip in spine.store.trips)


async def test_K17_a_message_handler_goes_on_behind_a_failure(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        if message.offset == 101:
            raise ValueError

    spine = make_spine(handler, kind="message")
    await spine.run(spine.entries(3))
    assert spine.sent() == [("billing.delay.10s", b"v101")]
    assert spine.watermark.commit == 103


async def test_what_is_done_before_a_system_exit_is_settled(make_spine: Any) -> None:
    async def handler(message: Message[bytes]) -> None:
        if message.offset == 101:
            raise SystemExit

    spine = make_spine(handler, kind="message", dedup=True)
    with pytest.raises(HandlerStopped):
        await spine.run(spine.entries(3))
    assert spine.watermark.commit == 101


async def test_an_undecodable_value_is_a_dead_letter_with_its_raw_bytes_and_is_not_in_the_batch(make_spine: Any) -> None:
    seen = []

    async def handler(batch: Batch[int]) -> None:
        seen.append([message.value for message in batch])

    def decode(value: bytes | None) -> int:
        return int(value or b"")

    spine = make_spine(handler, decode=decode, dedup=True)
    entries = [spine.entry(100, value=b"7"), spine.entry(101, value=b"\xff"), spine.entry(102, value=b"9")]
    await spine.run(entries)
    assert seen == [[7, 9]]
    assert spine.sent() == [("billing.dlq", b"\xff")]
    assert dict(spine.publisher.sent[0].headers)["ackwise-reason"] == b"undecodable"
    assert len(spine.store.trips[0].claims) == 2
    assert spine.watermark.commit == 103


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
    spine.sink.broken = True
    entries = spine.entries(2)
    await spine.run(entries)
    assert not any(trip.completes for trip in spine.store.trips)
    assert spine.watermark.commit == 100

    spine.sink.broken = False
    spine.clock.now += 1
    await spine.run(entries)
    assert spine.watermark.commit == 102
    assert [event.code for event in spine.sink.durable].count(EventCode.SUCCEEDED) == 2


async def test_two_store_calls_per_batch_whatever_its_size(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await spine.run(spine.entries(200))
    assert len(spine.store.trips) == 2


async def test_K01_a_new_key_is_claimed_for_the_lease_and_completed_for_the_retention(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await spine.run(spine.entries(1))
    claim, complete = spine.store.trips
    assert (claim.lease, complete.retention) == (30.0, 86400.0)
    assert complete.completes[0].token == claim.claims[0].token


async def test_K02_a_second_delivery_of_a_finished_key_is_settled_and_not_run(make_spine: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(batch)

    spine = make_spine(handler, dedup={"key": lambda message: "order-1"})
    await spine.run(spine.entries(1))
    other = make_spine(handler, dedup={"key": lambda message: "order-1"}, store=spine.store, clock=spine.clock)
    entry = other.entry(107)
    assert await other.run([entry]) == [SETTLED]
    assert len(runs) == 1
    assert other.sink.codes(107) == [EventCode.DUP_SUPPRESSED]


async def test_K03_a_key_in_flight_elsewhere_is_held_not_published_and_no_attempt_is_charged(make_spine: Any, succeed: Any) -> None:
    async def hang(batch: Batch[bytes]) -> None:
        await asyncio.Event().wait()

    first = make_spine(hang, dedup=True)
    running = asyncio.create_task(first.run(first.entries(1)))
    await first.store.claimed.wait()
    second = make_spine(succeed, dedup=True, store=first.store, clock=first.clock)
    entries = second.entries(1)
    await second.run(entries)
    await second.run(entries)
    assert (entries[0].stage, second.watermark.commit, second.sent()) == (Stage.FETCHED, 100, [])
    assert entries[0].not_before > second.clock.now
    assert second.sink.codes(100) == [EventCode.IN_FLIGHT_ELSEWHERE]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_K04_a_failure_releases_the_claim_for_the_copy_and_the_original_is_stale(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup=True)
    await spine.run(spine.entries(1))
    again = spine.entry(100)  # the crash before the commit delivers the original once more
    assert await spine.run([again]) == [SETTLED]
    assert again.disposition == Duplicate(stale=True)
    assert len(spine.publisher.sent) == 1

    copy = spine.returned(spine.publisher.sent[0])
    await spine.run([copy])
    assert [int(dict(sent.headers)["ackwise-attempt"]) for sent in spine.publisher.sent] == [2, 3]


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


@pytest.mark.parametrize("lost", ["before", "after"])
async def test_K09_while_the_store_is_down_nothing_runs_and_the_same_claims_are_asked_again(make_spine: Any, lost: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(batch)

    spine = make_spine(handler, dedup=True)
    setattr(spine.store, "fail" if lost == "before" else "swallow", lambda exchange: True)
    entries = spine.entries(2)
    await spine.run(entries)
    assert (runs, spine.watermark.commit) == ([], 100)
    first = spine.store.trips[0].claims
    spine.store.fail = spine.store.swallow = lambda exchange: False
    await spine.run(entries)
    assert spine.store.trips[1].claims == first
    assert (len(runs), spine.watermark.commit) == (2, 102)


@pytest.mark.parametrize("lost", ["fail", "swallow"])
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


@pytest.mark.parametrize("key", [pytest.param(None, id="K11"), pytest.param("", id="K12"), pytest.param(b"", id="K12-bytes")])
async def test_a_message_without_a_key_runs_and_is_counted(make_spine: Any, succeed: Any, key: Any) -> None:
    spine = make_spine(succeed, dedup={"key": lambda message: key})
    await spine.run(spine.entries(3))
    assert (spine.watermark.commit, spine.store.trips, spine.pipeline.undeduplicated) == (103, [], 3)


@pytest.mark.parametrize("answer", [ZeroDivisionError(), 7])
async def test_a_key_function_that_fails_is_as_if_the_handler_had_raised(make_spine: Any, answer: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(batch)

    def key(message: Message[Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    spine = make_spine(handler, dedup={"key": key})
    await spine.run(spine.entries(1))
    assert (runs, spine.watermark.commit, [topic for topic, _ in spine.sent()]) == ([], 101, ["billing.delay.10s"])


@pytest.mark.parametrize(
    ("dedup", "run"),
    [
        pytest.param({}, ["orders", "orders", "parcels"], id="nothing-is-named"),
        pytest.param({"message_id_header": "message-id"}, ["orders", "parcels"], id="the-header-is-named"),
        pytest.param({"message_id_header": "request-id"}, ["orders", "orders", "parcels"], id="another-header-is-named"),
        pytest.param({"message_id_scope": "legacy"}, ["orders"], id="legacy-without-a-name"),
        pytest.param({"message_id_scope": "legacy", "message_id_header": "message-id"}, ["orders"], id="legacy-with-its-name"),
    ],
)
async def test_a_header_counts_only_where_it_is_named_and_two_topics_never_suppress_each_other(
    make_spine: Any, dedup: dict[str, Any], run: list[str]
) -> None:
    runs: list[str] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(message.topic for message in batch)

    spine = make_spine(handler, dedup=dedup)
    header = (("message-id", b"1"),)
    entries = [spine.entry(100, headers=header), spine.entry(101, headers=header), spine.entry(102, headers=header)]
    entries[2].delivery = entries[2].delivery._replace(origin=entries[2].delivery.origin._replace(topic="parcels"))
    await spine.run(entries)
    assert (runs, spine.watermark.commit) == (run, 103)


async def test_equal_keys_in_a_batch_follow_their_leader_and_no_second_copy_is_sent(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    await spine.run(spine.entries(3))
    assert (len(spine.publisher.sent), spine.watermark.commit) == (1, 103)
    assert spine.sink.codes(101) == [EventCode.DUP_SUPPRESSED]


async def test_followers_are_held_while_their_leaders_copy_is_not_acknowledged(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    spine.publisher.answer = lambda copy: PublishUnavailable("no broker")
    entries = spine.entries(2)
    assert SETTLED not in await spine.run(entries)
    spine.publisher.answer = lambda copy: None
    assert await spine.run(entries) == [SETTLED, SETTLED]


async def test_the_highest_attempt_leads_and_a_lower_one_is_stale(make_spine: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(message.reconsume_times for message in batch)

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    entries = [spine.entry(100), spine.entry(101, attempt=3), spine.entry(102, attempt=3)]
    await spine.run(entries)
    assert runs == [2]
    assert [spine.sink.codes(offset)[-1] for offset in (100, 102)] == [EventCode.STALE, EventCode.DUP_SUPPRESSED]


async def test_a_key_that_succeeded_here_is_completed_and_not_run_even_if_the_store_forgot(make_spine: Any, make_store: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.extend(batch)

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    await spine.run([spine.entry(100)])
    spine.store.inner = make_store(spine.clock).inner
    await spine.run([spine.entry(101)])
    assert (len(runs), spine.watermark.commit) == (1, 102)
    assert spine.store.trips[-1].completes


async def test_a_lease_that_is_lost_calls_the_handler_off_and_the_message_is_held(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        spine.clock.now += 15
        spine.store.fail = lambda exchange: bool(exchange.renews)
        await spine.leases.beat()
        spine.clock.now += 15
        await spine.leases.beat()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    entries = spine.entries(1)
    await spine.run(entries)
    assert (entries[0].stage, spine.watermark.commit) == (Stage.FETCHED, 100)
    assert EventCode.CLAIM_LOST in spine.sink.codes(100)


async def test_renewal_keeps_a_handler_that_takes_three_leases(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for _ in range(9):
            spine.clock.now += 10
            await spine.leases.beat()

    spine = make_spine(handler, dedup=True)
    assert await spine.run(spine.entries(2)) == [SETTLED] * 2


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


async def test_rulings_on_single_messages_stand_when_the_handler_is_called_off(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        batch.done(batch[0])
        entries[1].run.call_off()
        await asyncio.Event().wait()

    spine = make_spine(handler, dedup=True)
    entries = spine.entries(2)
    assert await spine.run(entries) == [SETTLED, Stage.FETCHED]


async def _crash(spine: Any, **fields: Any) -> None:
    """A worker claims and dies: the claim is neither completed nor released, and its lease ends."""

    async def die(batch: Batch[bytes]) -> None:
        raise SystemExit

    worker = type(spine)(die, dedup=True, store=spine.store, clock=spine.clock)
    entry = worker.entry(100, **fields)
    for _ in range(3):
        try:
            await worker.run([entry])
        except HandlerStopped:
            break
    spine.clock.now += 31


async def test_K18_what_a_crashed_worker_held_waits_for_the_lease_and_then_runs(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await _crash(spine)
    spine.clock.now -= 1.5  # half a second before the lease ends
    entries = spine.entries(1)
    assert await spine.run(entries) == [Stage.FETCHED]
    assert entries[0].not_before <= spine.clock.now + 0.5
    spine.clock.now += 0.5
    assert await spine.run(entries) == [SETTLED]
    assert (entries[0].lost, entries[0].took_unreleased) == (1, True)


async def test_K19_at_the_instant_of_expiry_exactly_one_of_two_holds_the_claim(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await _crash(spine)
    spine.clock.now -= 1.0  # the very instant
    other = make_spine(succeed, dedup=True, store=spine.store, clock=spine.clock)
    first, second = spine.entry(100), other.entry(100)
    await asyncio.gather(spine.run([first]), other.run([second]))
    assert sorted((first.disposition, second.disposition), key=repr) in ([DONE, Duplicate()], [DONE, None])


async def test_a_message_that_killed_three_workers_runs_alone(make_spine: Any) -> None:
    held = []

    async def handler(batch: Batch[bytes]) -> None:
        held.append((len(batch), len(spine.leases)))

    spine = make_spine(handler, dedup=True)
    for _ in range(4):
        await _crash(spine)
    entries = spine.entries(3)
    await spine.run(entries)
    assert held == [(2, 2)]
    assert entries[0].alone
    await spine.run([entries[0]])
    assert held == [(2, 2), (1, 1)]
    assert spine.watermark.commit == 103


async def test_a_message_that_killed_ten_workers_is_dead_and_its_neighbours_are_not(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    for _ in range(10):
        await _crash(spine)
    entries = spine.entries(2)
    await spine.run(entries)
    assert entries[0].disposition == Dead("crashed-worker")
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"]
    assert spine.watermark.commit == 102


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


async def test_S16_a_second_copy_of_the_same_failure_is_recognised(make_spine: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> Any:
        runs.extend(batch)
        return CONSUME_LATER if len(runs) == 1 else None

    spine = make_spine(handler, dedup=True)
    await spine.run(spine.entries(1))
    first, second = (spine.returned(spine.publisher.sent[0], offset) for offset in (0, 1))
    await spine.run([first])
    await spine.run([second])
    assert (len(runs), second.stage, second.disposition) == (2, SETTLED, Duplicate())


async def test_S17_a_message_that_always_fails_is_delivered_seventeen_times_then_dead(make_spine: Any) -> None:
    runs: list[Any] = []

    async def handler(batch: Batch[bytes]) -> None:
        runs.append(spine.clock.now)
        raise ValueError

    spine = make_spine(handler, dedup=True)
    entry = spine.entry(100)
    waits = []
    while True:
        await spine.run([entry])
        copy = spine.publisher.sent[-1]
        if copy.topic == "billing.dlq":
            break
        waits.append(spine.worker.later.levels.delay(spine.worker.delay_topics.index(copy.topic) + 1))
        entry = spine.returned(copy)
    assert (len(runs), sum(waits)) == (17, 17140)


async def test_a_retry_policy_that_raises_does_not_lose_the_message(make_spine: Any) -> None:
    class Broken:
        def delay(self, attempt: int) -> float:
            raise ZeroDivisionError

    async def handler(batch: Batch[bytes]) -> None:
        raise ValueError

    spine = make_spine(handler, later=ConsumeLater(16, retry=Broken()))
    await spine.run(spine.entries(1))
    assert spine.sent() == [("billing.delay.10s", b"v100")]


async def test_a_ruling_on_a_message_of_another_batch_raises_in_the_handler(make_spine: Any) -> None:
    seen: list[Batch[bytes]] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.append(batch)
        with pytest.raises(InvalidRuling):
            batch.done(seen[0][0] if batch is not seen[0] else Message(batch[0].delivery, b""))

    spine = make_spine(handler)
    await spine.run(spine.entries(1))
    await spine.run(spine.entries(1, start=101))


@pytest.mark.parametrize(("limit", "sizes"), [(16, [200, 25, 3, 1, 1]), (3, [200, 25, 3, 1]), (1, [200, 1]), (0, [1])])
def test_the_batches_of_further_attempts_are_smaller_and_the_last_attempt_is_alone(make_spine: Any, limit: int, sizes: list[int]) -> None:
    spine = make_spine(None, later=ConsumeLater(limit))
    assert [spine.pipeline.batch_limit(spine.entry(100, attempt=attempt)) for attempt in range(1, len(sizes) + 1)] == sizes


def _suppressed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "keys are those of dead letters" in record.getMessage()]


async def test_a_key_that_the_store_knows_as_dead_is_not_run_and_not_silently_suppressed(
    make_spine: Any, succeed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def bury(batch: Batch[bytes]) -> None:
        raise Reject("no")

    spine = make_spine(bury, dedup={"key": lambda message: message.value})
    await spine.run([spine.entry(100, value=b"a")])
    other = make_spine(succeed, dedup={"key": lambda message: message.value}, store=spine.store, clock=spine.clock)
    again = [other.entry(207, value=b"a"), other.entry(208, value=b"b"), other.entry(209, value=b"a")]
    assert await other.run(again) == [SETTLED] * 3
    assert [entry.disposition for entry in again] == [Duplicate(dead=True), DONE, Duplicate(leader="orders/3/207", dead=True)]
    told = {event.offset: event.attrs for event in other.sink.durable if event.code is EventCode.DUP_SUPPRESSED}
    assert told == {207: '{"outcome": "dead"}', 209: '{"leader": "orders/3/207", "outcome": "dead"}'}
    assert len(_suppressed(caplog)) == 1
    assert "handler=bill messages=2 topic=orders partition=3 offset=207" in _suppressed(caplog)[0]


async def test_what_follows_a_dead_leader_in_one_batch_says_so(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def bury(batch: Batch[bytes]) -> None:
        raise Reject("no")

    spine = make_spine(bury, dedup={"key": lambda message: "one"})
    entries = spine.entries(3)
    assert await spine.run(entries) == [SETTLED] * 3
    assert [entry.disposition for entry in entries[1:]] == [Duplicate(leader="orders/3/100", dead=True)] * 2
    assert len(spine.sent()) == len(_suppressed(caplog)) == 1


async def test_what_follows_a_success_says_nothing_of_the_dead(make_spine: Any, succeed: Any, caplog: pytest.LogCaptureFixture) -> None:
    spine = make_spine(succeed, dedup={"key": lambda message: "one"})
    entries = spine.entries(2)
    await spine.run(entries)
    assert (entries[1].disposition, _suppressed(caplog)) == (Duplicate(leader="orders/3/100"), [])
