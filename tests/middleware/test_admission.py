"""Admission of a batch: what is decoded, claimed, led and followed before anything runs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, DONE, Dead, Duplicate
from ackwise.middleware.message.message import Message, Origin
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.pipeline.admission import _leaves_after
from ackwise.middleware.pipeline.pipeline import HandlerStopped
from ackwise.middleware.runs.run import Run, Stage

SETTLED = Stage.SETTLED


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


def _suppressed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "messages with keys of dead letters skipped" in record.getMessage()]


@each("bad", [(101,), (100, 101), (102,), (100, 101, 102)], ids=str)
async def test_a_decoder_that_raises_stop_iteration_has_not_come_to_the_end_of_the_records(make_spine: Any, bad: tuple[int, ...]) -> None:
    seen: list[int] = []

    async def handler(batch: Batch[int]) -> None:
        seen.extend(message.offset for message in batch)

    def decode(value: bytes | None) -> int:
        return next(number for number in [int((value or b"")[1:])] if number not in bad)

    spine = make_spine(handler, decode=decode, dedup=True)
    await spine.run([spine.together(3)])
    assert seen == [offset for offset in (100, 101, 102) if offset not in bad]
    assert [copy.value for copy in spine.publisher.sent] == [b"v%d" % offset for offset in bad]
    assert spine.watermark.commit == 103


async def test_a_message_and_its_copy_have_one_key_under_a_header_of_ids(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup={"message_id_header": "id"})
    assert await spine.run([spine.entry(100, headers=(("id", b"a"),))]) == [SETTLED]
    copy = spine.entry(0, topic="billing.retry", origin=Origin("orders", 3, 105, 0), headers=(("id", b"a"),), attempt=2)
    assert await spine.run([copy]) == [SETTLED]
    assert copy.disposition == Duplicate()


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


async def busy(make_spine: Any, handler: Any, *, order: Any = None, **dedup: Any) -> tuple[Any, list[Run], asyncio.Task[Any]]:
    """A worker whose message another one runs, for as long as a lease of ten minutes lasts; what it was given was asked about once."""

    async def hang(batch: Batch[bytes]) -> None:
        await asyncio.Event().wait()

    first = make_spine(hang, dedup=True)
    first.leases.lease = 600.0
    running = asyncio.create_task(first.run(first.entries(1)))
    await first.store.claimed.wait()
    second = make_spine(handler, dedup=dedup, store=first.store, clock=first.clock)
    if order is not None:
        second.pipeline.agent = dataclasses.replace(second.pipeline.agent, order=order)
        second.pipeline.admission._leaves_after = _leaves_after(second.pipeline.agent, second.worker, second.worker.dedup)
    entries = second.entries(2)
    await second.run(entries)
    return second, entries, running


async def ended(running: asyncio.Task[Any]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_message_whose_key_another_call_has_for_a_lease_leaves_as_a_copy_that_is_charged_no_attempt(make_spine: Any) -> None:
    ran: list[int] = []

    async def handler(batch: Batch[bytes]) -> None:
        ran.extend(message.offset for message in batch)

    second, entries, running = await busy(make_spine, handler, lease=30.0)
    assert (ran, second.sent(), second.watermark.commit) == ([101], [], 100)
    second.clock.now += 29.9
    await second.run(entries)
    assert (second.sent(), second.watermark.commit) == ([], 100)
    second.clock.now += 0.1
    await second.run(entries)
    assert (ran, second.watermark.commit) == ([101], 102)
    (copy,) = second.publisher.sent
    headers = dict(copy.headers)
    assert (headers["ackwise-attempt"], headers["ackwise-reason"]) == (b"1", b"ClaimHeldElsewhere")
    assert second.sink.codes(100) == [EventCode.IN_FLIGHT_ELSEWHERE, EventCode.SENT_BACK]
    await ended(running)


@each("order", [None, "key", "partition"])
async def test_where_it_is_to_wait_or_has_an_order_it_waits_for_the_end_of_that_call(make_spine: Any, succeed: Any, order: Any) -> None:
    second, entries, running = await busy(make_spine, succeed, order=order, on_busy="wait" if order is None else "copy")
    second.clock.now += 500
    await second.run(entries)
    assert (second.sent(), second.watermark.commit) == ([], 100)
    await ended(running)


async def test_what_succeeded_here_never_leaves_as_a_copy(make_spine: Any, succeed: Any) -> None:
    second, entries, running = await busy(make_spine, succeed)
    (waiting,) = [run for run in entries if run.elsewhere_since is not None]
    waiting.succeeded = True
    second.clock.now += 500
    await second.run(entries)
    assert (second.sent(), waiting.stage) == ([], Stage.FETCHED)
    await ended(running)


@each("lost", ["before", "after"])
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


@each("key", [pytest.param(None, id="K11"), pytest.param("", id="K12"), pytest.param(b"", id="K12-bytes")])
async def test_a_message_without_a_key_runs_and_is_counted(make_spine: Any, succeed: Any, key: Any) -> None:
    spine = make_spine(succeed, dedup={"key": lambda message: key})
    await spine.run(spine.entries(3))
    assert (spine.watermark.commit, spine.store.trips, spine.pipeline.undeduplicated) == (103, [], 3)


@each("answer", [ZeroDivisionError(), 0.5])
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


@each(
    ("dedup", "run"),
    [
        pytest.param({}, ["orders", "orders", "parcels"], id="nothing-is-named"),
        pytest.param({"message_id_header": "message-id"}, ["orders", "parcels"], id="the-header-is-named"),
        pytest.param({"message_id_header": "request-id"}, ["orders", "orders", "parcels"], id="another-header-is-named"),
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
    delivery = entries[2].delivery
    entries[2] = Run.of(delivery._replace(origin=delivery.origin._replace(topic="parcels")))
    await spine.run(entries)
    assert (runs, spine.watermark.commit) == (run, 103)


async def test_equal_keys_in_a_batch_follow_their_leader_and_no_second_copy_is_sent(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER

    spine = make_spine(handler, dedup={"key": lambda message: "one"})
    await spine.run(spine.entries(3))
    assert (len(spine.publisher.sent), spine.watermark.commit) == (1, 103)
    assert spine.sink.codes(101) == [EventCode.DUP_SUPPRESSED]


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


async def test_records_that_succeeded_here_are_not_run_again_when_they_are_fetched_again(make_spine: Any, make_store: Any) -> None:
    seen: list[list[int]] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.append([message.offset for message in batch])

    spine = make_spine(handler, dedup=True)
    await spine.run([spine.together(3)])
    spine.store.inner = make_store(spine.clock).inner  # the store forgot
    again, new = spine.together(4), spine.together(2, start=104)
    await spine.run([again, new])
    assert seen == [[100, 101, 102], [103, 104, 105]]


async def test_a_record_is_not_run_whose_copy_succeeded_here_while_the_store_forgot(make_spine: Any, make_store: Any) -> None:
    seen: list[int] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.extend(message.offset for message in batch)

    spine = make_spine(handler, dedup=True)
    copy = spine.entry(7, topic="billing.retry", partition=0, attempt=2, origin=Origin("orders", 3, 105, 1_700_000_000_000))
    await spine.run([copy])
    spine.store.inner = make_store(spine.clock).inner
    run = spine.together(2, start=104)
    await spine.run(runs := [run])
    assert (len(seen), seen[-1]) == (2, 104)
    assert {each.first: each.disposition for each in runs}[105] == Duplicate()


async def test_K18_what_a_crashed_worker_held_waits_for_the_lease_and_then_runs(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await _crash(spine)
    spine.clock.now -= 1.5  # half a second before the lease ends
    entries = spine.entries(1)
    assert await spine.run(entries) == [Stage.FETCHED]
    assert entries[0].not_before <= spine.clock.now + 0.5
    spine.clock.now += 0.5
    assert await spine.run(entries) == [SETTLED]
    assert entries[0].claims.grant[1:] == (1, True)


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


async def test_what_has_the_key_of_a_dead_letter_is_told_of_once_a_minute_with_the_way_to_redrive_it(
    make_spine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def bury(batch: Batch[bytes]) -> None:
        raise Reject("no")

    spine = make_spine(bury, dedup={"key": lambda message: "one"})
    await spine.run([spine.entry(100)])
    for offset, later in ((101, 0), (102, 59), (103, 1), (104, 1)):
        spine.clock.now += later
        await spine.run([spine.entry(offset)])
    lines = _suppressed(caplog)
    assert [line.partition("messages=")[2].split()[0] for line in lines] == ["1", "2"]
    assert all("messages with keys of dead letters skipped" in line for line in lines)
