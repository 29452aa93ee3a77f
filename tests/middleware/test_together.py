"""What would be dead only because it was in a batch with others: it is run again in halves, and only the culprit dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.tables import each

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Delayed, Failure, Reason
from ackwise.middleware.message.raising import Reject
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Run, Stage

SETTLED, FETCHED = Stage.SETTLED, Stage.FETCHED
LAST = 17


class Poison:
    """Raises if one of `culprits` is in the batch; counts what ran."""

    def __init__(self, *culprits: int, error: BaseException | None = None) -> None:
        self.culprits = culprits
        self.error = error or ConnectionError("not now")
        self.ran: list[list[int]] = []

    async def __call__(self, batch: Batch[bytes]) -> Any:
        self.ran.append([message.offset for message in batch])
        if any(message.offset in self.culprits for message in batch):
            raise self.error


def dead(spine: Any) -> list[bytes | None]:
    return [value for topic, value in spine.sent() if topic == "billing.dlq"]


@each("culprit", range(100, 110))
async def test_S20_of_ten_at_their_last_attempt_nine_succeed_and_the_one_that_raises_is_dead(make_spine: Any, culprit: int) -> None:
    handler = Poison(culprit)
    spine = make_spine(handler, dedup=True)
    entries = spine.entries(10, attempt=LAST)
    assert await spine.run(entries) == [SETTLED] * 10
    assert (dead(spine), spine.watermark.commit) == ([b"v%d" % culprit], 110)
    assert [entry.delivery.offset for entry in entries if entry.succeeded] == [offset for offset in range(100, 110) if offset != culprit]
    assert handler.ran[:2] == [list(range(100, 110)), list(range(100, 105))]
    assert len(spine.store.trips) == 2, "the claims are those of the first run"


async def test_each_run_is_on_record_with_its_failure(make_spine: Any) -> None:
    spine = make_spine(Poison(101), dedup=True)
    await spine.run(spine.entries(2, attempt=LAST))
    assert spine.sink.codes(100) == [EventCode.CLAIMED, EventCode.FAILED, EventCode.CLAIMED, EventCode.SUCCEEDED]
    assert spine.sink.codes(101) == [EventCode.CLAIMED, EventCode.FAILED, EventCode.CLAIMED, EventCode.FAILED, EventCode.DEAD_LETTERED]
    assert {event.attempt for event in spine.sink.durable} == {LAST}
    assert len({event.exec_id for event in spine.sink.durable if event.exec_id is not None}) == 4


async def test_what_unless_names_costs_no_neighbour(make_spine: Any) -> None:
    handler = Poison(103, error=ValueError("no"))
    spine = make_spine(handler, later=ConsumeLater(16, no_retry=(ValueError,)))
    await spine.run(spine.entries(8))
    assert dead(spine) == [b"v103"]
    assert dict(spine.publisher.sent[0].headers)["ackwise-reason"] == b"not-retried"


async def test_a_batch_that_asks_for_later_at_its_last_attempt_is_halved_too(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        return CONSUME_LATER if any(message.offset == 102 for message in batch) else None

    spine = make_spine(handler)
    await spine.run(spine.entries(4, attempt=LAST))
    assert dead(spine) == [b"v102"]


@each("limit", [0])
async def test_S21_with_a_limit_of_0_a_batch_is_one_delivery_and_nothing_of_it_runs_again(make_spine: Any, limit: int) -> None:
    handler = Poison(101)
    spine = make_spine(handler, later=ConsumeLater(limit))
    await spine.run(spine.entries(3))
    assert (len(dead(spine)), len(handler.ran)) == (3, 1)


async def test_what_the_handler_itself_buries_is_not_run_again(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        ran.append(len(batch))
        batch.dead(batch[0])
        raise Reject("no")

    ran: list[int] = []
    spine = make_spine(handler)
    await spine.run(spine.entries(4, attempt=LAST))
    assert (len(dead(spine)), ran) == (4, [4])


async def test_a_ruling_on_a_single_message_stands_and_only_the_others_run_again(make_spine: Any) -> None:
    seen: list[list[int]] = []

    async def handler(batch: Batch[bytes]) -> None:
        seen.append([message.offset for message in batch])
        if len(batch) == 4:
            batch.done(batch[0])
            raise ConnectionError

    spine = make_spine(handler)
    assert await spine.run(spine.entries(4, attempt=LAST)) == [SETTLED] * 4
    assert seen == [[100, 101, 102, 103], [101, 102], [103]]
    assert dead(spine) == []


async def test_those_that_have_attempts_left_come_back_as_ever(make_spine: Any) -> None:
    handler = Poison(100)
    spine = make_spine(handler)
    entries = [spine.entry(100, attempt=3), spine.entry(101, attempt=LAST), spine.entry(102, attempt=LAST)]
    await spine.run(entries)
    assert handler.ran == [[100, 101, 102], [101], [102]]
    assert spine.sent() == [("billing.delay.1m", b"v100")]


class Slow(Poison):
    """Each run takes as long as `seconds`."""

    def __init__(self, clock: Any, seconds: float, *culprits: int) -> None:
        super().__init__(*culprits)
        self.clock, self.seconds = clock, seconds

    async def __call__(self, batch: Batch[bytes]) -> Any:
        self.clock.now += self.seconds
        return await super().__call__(batch)


async def test_after_a_lease_what_is_left_goes_back_uncharged_and_comes_up_in_parts_as_small(make_spine: Any, make_clock: Any) -> None:
    clock = make_clock()
    handler = Slow(clock, 20.0, 107)
    spine = make_spine(handler, dedup=True, clock=clock)
    spine.leases.expired, spine.leases.lost = lambda run: False, lambda run: ()  # renewed, as the worker does while a handler runs
    entries = spine.entries(8, attempt=LAST)
    await spine.run(entries)
    assert [entry.stage for entry in entries] == [SETTLED] * 4 + [FETCHED] * 4
    await spine.leases.flush()
    assert [release.sent_back for trip in spine.store.trips for release in trip.releases] == [None] * 4
    assert (dead(spine), {entry.delivery.attempt for entry in entries}) == ([], {LAST})

    before = len(handler.ran)
    for _ in range(8):
        clock.now += 5
        await spine.run([entry for entry in entries if entry.stage is not SETTLED])
    assert handler.ran[before] == [104, 105], "not all of them once more"
    assert {entry.stage for entry in entries} == {SETTLED}
    assert dead(spine) == [b"v107"]


async def test_after_the_cut_off_no_half_is_begun(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        ran.append(len(batch))
        spine.partition.cut_off = True
        raise ConnectionError

    ran: list[int] = []
    spine = make_spine(handler, dedup=True)
    assert await spine.run(spine.entries(4, attempt=LAST)) == [FETCHED] * 4
    assert (ran, spine.sent()) == ([4], [])


async def test_the_log_says_that_they_run_again_and_of_the_one_that_is_dead(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    spine = make_spine(Poison(100))
    await spine.run(spine.entries(2, attempt=LAST))
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == ["failed batch split before it dies", "messages are dead letters"]


class Taking:
    """A loop that takes as many as it may, and fails with all of them if one is poison."""

    def __init__(self, spine: Any, culprit: int) -> None:
        self.spine, self.culprit = spine, culprit
        self.ran: list[list[int]] = []
        self.pipeline = Pipeline(spine.agent, spine.worker, partial(Streaming, hand_over=self.hand_over, flush=self.flush))

    async def flush(self) -> None: ...

    def hand_over(self, members: Sequence[InFlight]) -> None:
        waiting = list(members)
        while waiting:
            limit = min(member.limit for member in waiting)
            taken = [member for member in waiting[:limit] if member.take(self.spine.clock())]
            waiting = waiting[limit:]
            self.ran.append([member.message.offset for member in taken])
            fails = self.culprit in self.ran[-1]
            for member in taken:
                if fails:
                    error = ConnectionError()
                    member.decide(Delayed(failure=Failure.of(error)), error, company=len(taken))
                else:
                    member.decide()


class Stretch:
    """A partition, reduced to what the pipeline asks of it."""

    def __init__(self) -> None:
        self.cut_off = self.is_stopping = False
        self.turn = asyncio.Lock()

    def pass_settled(self, runs: Sequence[Run]) -> None: ...


async def test_of_ten_that_a_loop_took_together_nine_succeed_and_one_is_dead(make_spine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spine = make_spine(None, dedup=True, later=ConsumeLater(1))
    loop = Taking(spine, 103)
    monkeypatch.setattr(
        "ackwise.middleware.pipeline.streaming.batch_limit", lambda *_: 10
    )  # they were admitted before the limit was lowered
    entries = spine.entries(10, attempt=2)
    await loop.pipeline(entries, Stretch())
    assert [entry.stage for entry in entries] == [SETTLED] * 10
    assert dead(spine) == [b"v103"]
    assert [len(run) for run in loop.ran[:3]] == [10, 5, 5]
    assert entries[3].disposition == Dead(Reason.MAX_RECONSUME_TIMES, entries[3].disposition.failure)
    assert Counter(spine.sink.codes(103))[EventCode.FAILED] == Counter(spine.sink.codes(103))[EventCode.CLAIMED]
    assert sum(len(trip.claims) for trip in spine.store.trips) == 10


async def test_a_loop_is_given_nothing_again_for_a_partition_that_takes_nothing_new(make_spine: Any) -> None:
    spine = make_spine(None, dedup=True, later=ConsumeLater(16, no_retry=ConnectionError))
    loop = Taking(spine, 103)
    stretch = Stretch()
    give = loop.hand_over

    def cut_then(members: Sequence[InFlight]) -> None:
        stretch.cut_off = stretch.is_stopping = True
        give(members)

    steps: Any = loop.pipeline.steps
    steps._give = cut_then
    entries = spine.entries(10)
    await loop.pipeline(entries, stretch)
    assert [entry.stage for entry in entries] == [FETCHED] * 10
    assert (len(loop.ran), spine.sent()) == (1, [])
