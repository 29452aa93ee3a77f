"""Messages that are sent back without a charge: neither the copy nor a redelivered original is ever taken for stale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.tables import each

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Delayed
from ackwise.middleware.pipeline.transactions import finish_of
from ackwise.middleware.policies.retry import ConsumeLater, SendBack
from ackwise.middleware.runs.run import Stage

SETTLED = Stage.SETTLED


class Uncharged(ConsumeLater):
    """Sends everything back without a charge."""

    def decide(self, later: Delayed, reconsume_times: int, error: BaseException | None = None) -> Any:
        decided = super().decide(later, reconsume_times, error)
        return replace(decided, charged=False) if isinstance(decided, SendBack) else decided


class Handler:
    """Puts off what it sees for the first time, `failures` times; counts what succeeds."""

    def __init__(self, failures: int = 1) -> None:
        self.failures = failures
        self.attempts: list[int] = []
        self.succeeded: list[bytes] = []

    async def __call__(self, batch: Batch[bytes]) -> Any:
        self.attempts += [message.reconsume_times + 1 for message in batch]
        if len(self.attempts) <= self.failures:
            return CONSUME_LATER
        self.succeeded += [message.value for message in batch]
        return None


@each("original_first", [False, True], ids=["the copy first", "the original first"])
async def test_an_uncharged_copy_and_a_redelivered_original_run_once_together(make_spine: Any, original_first: bool) -> None:
    handler = Handler()
    spine = make_spine(handler, dedup=True, later=Uncharged(16))
    assert await spine.run([spine.entry(100)]) == [SETTLED]
    (copy,) = spine.publisher.sent
    assert [release.sent_back for release in spine.store.trips[-1].releases] == [None], "a later attempt would make the copy stale"

    again = [spine.returned(copy), spine.entry(100)]
    for entry in reversed(again) if original_first else again:
        assert await spine.run([entry]) == [SETTLED]
    assert (handler.attempts, handler.succeeded) == ([1, 1], [b"v100"])
    assert EventCode.STALE not in spine.sink.codes(100)


async def test_in_one_batch_a_redelivered_original_follows_its_uncharged_copy(make_spine: Any) -> None:
    handler = Handler()
    spine = make_spine(handler, dedup=True, later=Uncharged(16))
    await spine.run([spine.entry(100)])
    assert await spine.run([spine.returned(spine.publisher.sent[0], offset=7), spine.entry(100)]) == [SETTLED, SETTLED]
    assert handler.succeeded == [b"v100"]


async def test_the_copy_of_one_that_is_charged_later_makes_the_uncharged_one_stale_and_is_run(make_spine: Any) -> None:
    """The original comes again and fails, charged this time, while its uncharged copy is still on its way."""
    handler = Handler(failures=2)
    spine = make_spine(handler, dedup=True, later=Uncharged(16))
    await spine.run([spine.entry(100)])
    other = make_spine(handler, dedup=True, store=spine.store, clock=spine.clock)
    await other.run([other.entry(100)])
    assert await spine.run([spine.returned(spine.publisher.sent[0])]) == [SETTLED], "stale: a charged copy is on its way"
    assert handler.succeeded == []
    await other.run([other.returned(other.publisher.sent[0])])
    assert (handler.attempts, handler.succeeded) == ([1, 1, 2], [b"v100"])


async def test_the_limit_counts_only_what_is_charged(make_spine: Any) -> None:
    handler = Handler(failures=5)
    spine = make_spine(handler, dedup=True, later=Uncharged(1))
    await spine.run([spine.entry(100)])
    for _ in range(5):
        await spine.run([spine.returned(spine.publisher.sent[-1])])
    assert (handler.attempts, handler.succeeded) == ([1] * 6, [b"v100"])


async def test_the_event_says_that_nothing_was_charged(make_spine: Any) -> None:
    spine = make_spine(Handler(), dedup=True, later=Uncharged(16))
    await spine.run([spine.entry(100)])
    (back,) = [event for event in spine.sink.durable if event.code is EventCode.SENT_BACK]
    assert back.attrs == '{"charged": false}'


@each(("charged", "next_attempt"), [(True, 3), (False, 2)])
async def test_a_database_is_told_of_a_later_attempt_only_if_there_is_one(make_spine: Any, charged: bool, next_attempt: int) -> None:
    spine = make_spine(Handler(), dedup=True)
    run = spine.entry(100, attempt=2)
    run.claims.ids = [b"0" * 16]
    run.send_back = SendBack(10.0, 3, charged=charged)
    run.rule(Delayed())
    assert finish_of(run, run.key).next_attempt == next_attempt
