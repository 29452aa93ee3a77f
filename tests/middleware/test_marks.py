"""Start marks: whatever a handler has is marked in the written event log before it has it, and nothing starts if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import FULL_DISK, offsets_of
from tests.tables import each

from ackwise.middleware.events import MOST_SPAN, EventCode, marks_of
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import DONE
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.streaming import InFlight, Streaming
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Stage

WAYS = [{"kind": kind, "dedup": dedup} for kind in ("batch", "message") for dedup in (False, True)]


def messages_of(argument: Any) -> list[Any]:
    return [*argument] if isinstance(argument, Batch) else [argument]


class Watcher:
    """A handler that keeps what it had, and what of that was not marked by then; the first `failures` calls raise."""

    def __init__(self, failures: int = 0) -> None:
        self.sink: Any = None
        self.had: list[int] = []
        self.unmarked: set[int] = set()
        self.failures = failures

    async def __call__(self, argument: Any) -> None:
        offsets = [message.offset for message in messages_of(argument)]
        self.had += offsets
        self.unmarked |= {*offsets} - self.sink.marked()
        if self.failures:
            self.failures -= 1
            raise ValueError


def watched(make_spine: Any, watcher: Watcher, **options: Any) -> Any:
    spine = make_spine(watcher, **options)
    watcher.sink = spine.sink
    return spine


def give(spine: Any, number: int) -> list[Any]:
    """A run of `number` messages, the last of which stands behind a hole."""
    run = spine.together(number)
    run.records = [*run.records[:-1], SimpleNamespace(**{**vars(run.records[-1]), "offset": 300})]
    return [run]


@each("way", WAYS)
async def test_a_handler_has_nothing_that_is_not_marked(make_spine: Any, way: dict[str, Any]) -> None:
    spine = watched(make_spine, watcher := Watcher(), **way)
    assert {*await spine.run(give(spine, 5))} == {Stage.SETTLED}
    assert (watcher.had, watcher.unmarked) == ([100, 101, 102, 103, 300], set())


@each("dedup", [False, True])
async def test_single_messages_share_a_mark(make_spine: Any, dedup: bool) -> None:
    spine = watched(make_spine, Watcher(), kind="message", dedup=dedup)
    await spine.run(give(spine, 5))
    (marked,) = [event for event in spine.sink.events if event.code is EventCode.MARKED]
    assert (marked.topic, marked.partition, marked.handler, marked.range_end) == ("orders", 3, "bill", 301)
    assert offsets_of(marked) == {100, 101, 102, 103, 300}


async def test_a_batch_needs_no_event_but_that_of_its_start(make_spine: Any) -> None:
    spine = watched(make_spine, Watcher(), dedup=True)
    await spine.run(give(spine, 5))
    assert {event.code for event in spine.sink.events} == {EventCode.CLAIMED, EventCode.SUCCEEDED}


@each("way", WAYS)
async def test_nothing_starts_whose_mark_is_not_written_and_it_comes_again(make_spine: Any, way: dict[str, Any]) -> None:
    spine = watched(make_spine, watcher := Watcher(), **way)
    runs = give(spine, 5)
    spine.sink.mark_error = FULL_DISK
    assert {*await spine.run(runs)} == {Stage.FETCHED}
    assert (watcher.had, spine.watermark.commit, spine.sent()) == ([], 100, [])
    assert all(run.not_before > spine.clock.now for run in runs)
    spine.sink.mark_error = None
    spine.clock.now += 60
    assert {*await spine.run(runs)} == {Stage.SETTLED}
    assert (sorted(watcher.had), watcher.unmarked) == ([100, 101, 102, 103, 300], set())
    codes = spine.sink.codes(101)
    assert codes.count(EventCode.CLAIMED) == codes.count(EventCode.RELEASED) + (1 if way["dedup"] else 0)


@each("dedup", [False, True])
async def test_what_runs_again_in_halves_is_marked_again(make_spine: Any, dedup: bool) -> None:
    spine = watched(make_spine, watcher := Watcher(failures=1), dedup=dedup, later=ConsumeLater(1))
    runs = [spine.entry(100, attempt=2), spine.entry(101, attempt=2)]
    marked: list[int] = []
    mark = spine.sink.mark

    def count() -> None:
        mark()
        marked.append(spine.sink.written)

    spine.sink.mark = count
    await spine.run(runs)
    assert (watcher.had, watcher.unmarked, len(marked)) == ([100, 101, 100, 101], set(), 3)


class Loop:
    """A loop that takes what it is given, and decides at once."""

    def __init__(self, spine: Any, watcher: Watcher) -> None:
        self.spine, self.watcher = spine, watcher
        self.partition: Any = SimpleNamespace(cut_off=False, is_stopping=False, turn=asyncio.Lock(), pass_settled=lambda runs: None)
        self.pipeline = Pipeline(spine.agent, spine.worker, partial(Streaming, hand_over=self.take, flush=self.flush))

    async def flush(self) -> None: ...

    def take(self, given: Sequence[InFlight]) -> None:
        for member in given:
            if member.take(self.spine.clock()):
                self.watcher.had.append(member.run.first)
                self.watcher.unmarked |= {member.run.first} - self.spine.sink.marked()
                member.decide(DONE)


@each("dedup", [False, True])
async def test_a_loop_is_given_nothing_that_is_not_marked(make_spine: Any, dedup: bool) -> None:
    spine = make_spine(None, dedup=dedup)
    loop = Loop(spine, watcher := Watcher())
    runs = give(spine, 5)
    spine.sink.mark_error = FULL_DISK
    await loop.pipeline(runs, loop.partition)
    assert (watcher.had, {run.stage for run in runs}) == ([], {Stage.FETCHED})
    spine.sink.mark_error = None
    spine.clock.now += 60
    await loop.pipeline(runs, loop.partition)
    assert (watcher.had, watcher.unmarked, {run.stage for run in runs}) == ([100, 101, 102, 103, 300], set(), {Stage.SETTLED})


@given(offsets=st.lists(st.integers(0, 10 * MOST_SPAN) | st.integers(2**61, 2**61 + 200), min_size=1, max_size=50, unique=True).map(sorted))
def test_marks_cover_the_offsets_and_no_other(offsets: list[int]) -> None:
    marks = list(marks_of("orders", 3, "bill", offsets))
    assert sorted(offset for mark in marks for offset in offsets_of(mark)) == offsets
    assert all(mark.range_end is not None and mark.offset is not None and mark.range_end - mark.offset <= MOST_SPAN for mark in marks)
