"""A batch in the hands of a loop: what is settled while the rest is unavailable, what is taken back, and what is never done early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.waiting import turns, until

from ackwise.middleware.errors import AckwiseError, PublishUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.limits import RateLimit
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.disposition import DONE, Dead, Delayed, Done, Duplicate, Failure
from ackwise.middleware.pipeline.pipeline import HandlerStopped, Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming, Where
from ackwise.middleware.runs.run import Run, Stage
from ackwise.middleware.storage.claimstore import Exchange, Release

SETTLED, FETCHED = Stage.SETTLED, Stage.FETCHED


class Stretch:
    """The lane that a batch came from, reduced to what the pipeline asks of it."""

    def __init__(self) -> None:
        self.cut_off = self.is_stopping = False
        self.turn = asyncio.Lock()
        self.finished: list[int] = []

    def pass_settled(self, runs: Sequence[Run]) -> None:
        self.finished += [run.first for run in runs if run.stage is SETTLED]


class Loop:
    """A loop that does what the test says, behind the pipeline that feeds it."""

    def __init__(self, spine: Any) -> None:
        self.spine = spine
        self.stretch = Stretch()
        self.given: list[InFlight] = []
        self.flush: Callable[[], Any] = self._flush
        self.pipeline = Pipeline(spine.agent, spine.worker, partial(Streaming, hand_over=self.given.extend, flush=lambda: self.flush()))
        self.runs: list[asyncio.Task[None]] = []

    async def _flush(self) -> None: ...

    async def begin(self, entries: list[Run]) -> asyncio.Task[None]:
        """Run the pipeline until it waits for the loop."""
        run = asyncio.create_task(self.pipeline(entries, self.stretch))
        self.runs.append(run)
        await turns()
        return run

    def take(self, *indexes: int) -> list[InFlight]:
        taken = [self.given[index] for index in indexes or range(len(self.given))]
        for member in taken:
            member.take(self.spine.clock())
        return taken


@pytest.fixture
async def loops(make_spine: Any) -> AsyncIterator[Callable[..., Loop]]:
    """Makes loops over spines; a slice takes no time."""
    made: list[Loop] = []

    def make(**options: Any) -> Loop:
        made.append(Loop(make_spine(None, **options)))
        steps: Any = made[-1].pipeline.steps
        steps._slice = 0
        return made[-1]

    yield make
    runs = [run for loop in made for run in loop.runs]
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


def stages(entries: Sequence[Run]) -> list[Stage]:
    return [entry.stage for entry in entries]


async def test_what_the_loop_has_not_decided_is_not_settled(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    loop.take()
    await turns()
    assert (run.done(), stages(entries)) == (False, [Stage.ADMITTED] * 2)


async def test_two_store_calls_for_a_batch_that_a_loop_takes_one_by_one(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(50)
    await loop.begin(entries)
    for member in loop.take():
        member.decide()
    await loop.runs[0]
    assert (len(loop.spine.store.trips), set(stages(entries))) == (2, {SETTLED})


async def test_what_has_come_back_is_settled_while_one_is_away(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(3)
    run = await loop.begin(entries)
    first, _, last = loop.take()
    first.decide()
    last.decide(Delayed())
    await turns()
    assert (run.done(), stages(entries)) == (False, [SETTLED, Stage.ADMITTED, SETTLED])
    assert loop.stretch.finished == [100, 102]
    assert loop.spine.sent() == [("billing.delay.10s", b"v102")]
    assert [len(trip.completes) for trip in loop.spine.store.trips[1:]] == [1]


async def test_what_can_not_be_published_is_not_tried_again_with_every_slice(loops: Any) -> None:
    loop = loops()
    tried: list[bytes | None] = []

    def refuse(copy: Any) -> PublishUnavailable:
        tried.append(copy.value)
        return PublishUnavailable("no broker")

    loop.spine.publisher.answer = refuse
    await loop.begin(loop.spine.entries(2))
    loop.take()[0].decide(Delayed())
    await turns()
    assert tried == [b"v100"]
    loop.spine.clock.now += 5
    await turns()
    assert tried == [b"v100"] * 2


async def test_a_second_decision_counts_for_nothing(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(1)
    run = await loop.begin(entries)
    (member,) = loop.take()
    member.decide(Delayed())
    member.decide(DONE)
    member.leave_undecided()
    await run
    assert loop.spine.sent() == [("billing.delay.10s", b"v100")]


async def test_what_nobody_has_seen_is_taken_back_and_what_is_taken_is_waited_for(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(3)
    run = await loop.begin(entries)
    (taken,) = loop.take(0)
    for entry in entries:
        assert entry.call is not None
        entry.call.recall()
    await turns()
    assert [member.where for member in loop.given] == [Where.TAKEN, Where.BACK, Where.BACK]
    assert not run.done()
    taken.decide()
    await run
    assert stages(entries) == [SETTLED, FETCHED, FETCHED]
    assert [release.sent_back for trip in loop.spine.store.trips for release in trip.releases] == [None, None]
    assert loop.spine.sent() == []


async def test_what_waits_in_a_loop_when_its_handler_is_paused_gives_its_claim_back_at_once_and_is_not_taken(loops: Any) -> None:
    loop = loops(dedup=True)
    await loop.begin(loop.spine.entries(4))
    (taken,) = loop.take(0)
    loop.spine.worker.flow.pausing.pause(Target(loop.pipeline.agent.name), "code")
    late = loop.given[1]
    assert (late.take(loop.spine.clock()), late.where) == (False, Where.BACK)
    await turns()
    assert [member.where for member in loop.given] == [Where.TAKEN, *[Where.BACK] * 3]
    assert sum(len(trip.releases) for trip in loop.spine.store.trips) == 3
    taken.decide()


async def test_a_message_waits_in_a_loop_until_its_rate_lets_it_begin(loops: Any) -> None:
    loop = loops(dedup=True, kind="message")
    flow = loop.spine.worker.flow
    flow.rate_limit, flow._clock = RateLimit("1/s", burst=2), loop.spine.clock
    await loop.begin(loop.spine.entries(9))
    assert len(loop.given) == 4  # two now, two within two seconds
    loop.spine.clock.now += 10.0  # while the loop was busy
    assert [member.due_in() for member in loop.given] == [0.0] * 4
    loop.take(0, 1)
    assert [member.due_in() > 0 for member in loop.given[2:]] == [True, True]
    loop.spine.clock.now += 1.0
    assert loop.given[2].due_in() == 0.0
    for member in loop.given:
        member.recall()


async def test_what_is_called_off_is_waited_for_no_longer_and_what_the_loop_says_later_counts_for_nothing(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(1)
    run = await loop.begin(entries)
    (member,) = loop.take()
    member.call_off()
    await run
    member.decide()
    assert stages(entries) == [FETCHED]
    await loop.spine.leases.flush()
    assert (loop.spine.sent(), len(loop.spine.store.trips[-1].releases)) == ([], 1)


async def test_a_message_whose_claim_is_lost_in_the_loop_is_waited_for_so_that_it_never_runs_beside_itself(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(1)
    run = await loop.begin(entries)
    (member,) = loop.take()
    loop.spine.clock.now += 31
    loop.spine.store.fail = lambda exchange: bool(exchange.renews)
    await loop.spine.leases.beat()
    await turns()
    assert (entries[0].claim_lost, member.where, run.done()) == (True, Where.TAKEN, False)
    member.decide(Delayed())
    await run
    assert (stages(entries), loop.spine.sent()) == ([Stage.RULED], [])  # published only if the claim is renewed


async def test_a_message_whose_claim_is_lost_before_the_loop_has_seen_it_is_taken_back(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(1)
    run = await loop.begin(entries)
    loop.spine.clock.now += 31
    loop.spine.store.fail = lambda exchange: bool(exchange.renews)
    await loop.spine.leases.beat()
    await run
    assert (loop.given[0].where, stages(entries)) == (Where.BACK, [FETCHED])
    assert EventCode.CLAIM_LOST in loop.spine.sink.codes(100)


async def test_a_loop_that_was_cancelled_leaves_its_messages_undecided_and_no_attempt_is_counted(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    for member in loop.take():
        member.leave_undecided()
    await run
    assert (stages(entries), loop.spine.sent()) == ([FETCHED] * 2, [])
    assert min(entry.not_before for entry in entries) > loop.spine.clock.now


async def test_a_batch_that_is_cancelled_lets_go_of_what_is_away(loops: Any) -> None:
    loop = loops()
    run = await loop.begin(loop.spine.entries(2))
    loop.take(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert [(member.where, member.called_off) for member in loop.given] == [(Where.BACK, True)] * 2


async def test_what_stops_the_app_leaves_its_claim_counted_as_lost_and_begins_nothing_more(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(3)
    run = await loop.begin(entries)
    first, second = loop.take(0, 1)
    first.decide()
    error = SystemExit(3)
    second.stop(error)
    assert loop.given[2].where is Where.BACK
    with pytest.raises(HandlerStopped) as stopped:
        await run
    assert stopped.value.error is error
    assert stages(entries) == [SETTLED, FETCHED, FETCHED]
    await loop.spine.leases.flush()
    released = [release.key for trip in loop.spine.store.trips for release in trip.releases]
    assert released == [entries[2].key]


@pytest.mark.parametrize("how", ["is_stopping", "cut_off"])
async def test_what_is_admitted_when_its_partition_goes_is_not_handed_over(loops: Any, how: str) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(2)

    def goes(exchange: Any) -> bool:
        setattr(loop.stretch, how, True)
        return False

    loop.spine.store.fail = goes
    await (await loop.begin(entries))
    await loop.spine.leases.flush()
    assert (loop.given, stages(entries)) == ([], [FETCHED] * 2)
    assert len(loop.spine.store.trips[-1].releases) == 2


async def test_a_key_that_succeeded_here_while_it_waited_for_the_loop_is_not_taken(loops: Any) -> None:
    loop = loops(dedup=True)
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    loop.spine.leases.remember_successes(entries[0])
    first, second = loop.given
    assert (first.take(0.0), second.take(0.0)) == (False, True)
    second.decide()
    await run
    assert (stages(entries), entries[0].disposition) == ([SETTLED] * 2, Duplicate())
    assert [code.name for code in loop.spine.sink.codes(100)] == ["DUP_SUPPRESSED"]


async def test_a_key_that_a_loop_works_on_is_not_taken_beside_itself(loops: Any) -> None:
    loop = loops(dedup={"key": lambda message: "one"})
    (first,), (second,) = loop.spine.entries(1), loop.spine.entries(1, start=101)
    run = await loop.begin([first])
    (working,) = loop.take()
    await loop.spine.store.inner.exchange(Exchange(releases=[Release(first.key, first.token)]))  # as if its lease had ended
    other = await loop.begin([second])
    assert not loop.given[1].take(0.0)
    await other
    assert (second.stage, second.why) == (FETCHED, "its key is running here")
    working.decide()
    await run


async def test_batches_are_handed_over_in_order_though_the_store_answers_the_first_one_last(loops: Any) -> None:
    loop = loops(dedup=True)
    answer = asyncio.Event()
    exchange = loop.spine.store.exchange

    async def slow(asked: Any) -> Any:
        if len(loop.spine.store.trips) == 0:
            loop.spine.store.trips.append(asked)
            await answer.wait()
        return await exchange(asked)

    loop.spine.store.exchange = slow
    await loop.begin(loop.spine.entries(2))
    await loop.begin(loop.spine.entries(2, start=102))
    assert loop.given == []
    answer.set()
    await turns()
    assert [member.message.offset for member in loop.given] == [100, 101, 102, 103]


async def test_a_batch_is_admitted_while_the_one_before_it_is_in_the_loop(loops: Any) -> None:
    loop = loops()
    await loop.begin(loop.spine.entries(2))
    loop.take()
    await loop.begin(loop.spine.entries(2, start=102))
    assert len(loop.given) == 4


async def test_a_duplicate_in_the_batch_is_not_handed_over_and_settled_with_its_leader(loops: Any) -> None:
    loop = loops(dedup={"key": lambda message: "one"})
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    (member,) = loop.take()
    member.decide()
    await run
    assert (stages(entries), entries[1].disposition) == ([SETTLED] * 2, Duplicate(leader="orders/3/100"))


async def test_nothing_is_settled_before_what_the_loop_sent_is_acknowledged(loops: Any) -> None:
    loop = loops()
    acknowledged = asyncio.Event()
    loop.flush = acknowledged.wait
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    first, second = loop.take()
    first.decide()
    await turns()
    assert (stages(entries), loop.stretch.finished) == ([Stage.RULED, Stage.ADMITTED], [])
    second.decide()
    await turns()
    assert SETTLED not in stages(entries)
    acknowledged.set()
    await run
    assert stages(entries) == [SETTLED] * 2


@pytest.mark.parametrize("decided", [1, 2])
async def test_what_the_loop_sent_and_nobody_accepted_settles_nothing(loops: Any, decided: int) -> None:
    loop = loops()

    async def refused() -> None:
        raise AckwiseError("a change of a table was not accepted")

    loop.flush = refused
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    for member in loop.take()[:decided]:
        member.decide()
    with pytest.raises(AckwiseError):
        await run
    assert SETTLED not in stages(entries)


async def test_nothing_is_handed_over_while_the_event_log_is_not_durable(loops: Any) -> None:
    loop = loops()
    run = await loop.begin(loop.spine.entries(1))
    loop.spine.sink.error = FULL_DISK
    loop.take()[0].decide()
    await run
    entries = loop.spine.entries(1, start=101)
    await (await loop.begin(entries))
    assert (len(loop.given), stages(entries)) == (1, [FETCHED])


async def test_a_loop_that_does_not_come_back_is_told_about_by_its_first_message(
    loops: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackwise.middleware.pipeline.streaming.HANG_WARNING", 0.002)
    loop = loops()
    loop.pipeline.steps._slice = 0.001
    await loop.begin(loop.spine.entries(2))
    loop.take()
    await until(lambda: "handler hangs" in caplog.text)
    assert "messages=2 topic=orders partition=3 offset=100" in caplog.text


def doomed(loop: Loop, *, unless: type[Exception] = ValueError) -> Exception:
    """What nothing of `loop` survives."""
    loop.spine.worker.later.no_retry = (unless,)
    return unless("broken")


def fail(members: Sequence[InFlight], error: Exception) -> None:
    for member in members:
        member.decide(Delayed(failure=Failure.of(error)), error, company=len(members))


async def test_what_would_die_together_runs_again_in_halves_until_the_guilty_one_is_alone(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(4)
    run = await loop.begin(entries)
    error = doomed(loop)
    fail(loop.take(0, 1, 2, 3), error)
    await turns()
    again = loop.given[4:]
    assert [(member.run, member.limit) for member in again] == [(entry, 2) for entry in entries]
    assert all(member.again_until == loop.spine.clock() + 30.0 for member in again)
    first, second = loop.take(4, 5), loop.take(6, 7)
    for member in first:
        member.decide()
    fail(second, error)
    await turns()
    assert [member.limit for member in loop.given[8:]] == [1, 1]
    loop.take(8)[0].decide()
    fail(loop.take(9), error)
    await run
    assert [type(entry.disposition) for entry in entries] == [Done, Done, Done, Dead]
    assert [loop.spine.sink.codes(offset).count(EventCode.FAILED) for offset in range(100, 104)] == [1, 1, 2, 3]


async def test_what_still_fails_together_when_a_lease_is_over_comes_up_again_uncharged_and_in_smaller_company(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(4)
    run = await loop.begin(entries)
    error = doomed(loop)
    fail(loop.take(0, 1, 2, 3), error)
    await turns()
    loop.spine.clock.now += 31.0
    fail(loop.take(4, 5), error)
    for member in loop.take(6, 7):
        member.decide()
    await run
    assert [entry.stage for entry in entries] == [FETCHED, FETCHED, SETTLED, SETTLED]
    assert [entry.delivery.attempt for entry in entries] == [1] * 4
    assert [entry.at_most for entry in entries[:2]] == [1, 1]


async def test_nothing_runs_again_once_its_partition_is_to_be_given_back(loops: Any) -> None:
    loop = loops()
    entries = loop.spine.entries(2)
    run = await loop.begin(entries)
    loop.stretch.is_stopping = True
    fail(loop.take(0, 1), doomed(loop))
    await run
    assert [entry.stage for entry in entries] == [FETCHED, FETCHED]
    assert len(loop.given) == 2


async def test_one_that_fails_alone_is_a_dead_letter_at_once(loops: Any) -> None:
    loop = loops()
    (entry,) = loop.spine.entries(1)
    run = await loop.begin([entry])
    fail(loop.take(0), doomed(loop))
    await run
    assert isinstance(entry.disposition, Dead)
