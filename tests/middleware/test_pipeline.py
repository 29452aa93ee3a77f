"""One batch from fetch to commit: what moves the watermark, and what never does."""

from __future__ import annotations

from typing import Any

from tests.tables import each

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Duplicate
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Stage

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
    codes = [EventCode.STARTED, EventCode.FAILED, EventCode.SENT_BACK]
    assert [spine.sink.codes(100 + index) for index in range(5)] == [codes] * 5


async def test_A16_a_negative_delay_level_is_a_dead_letter_at_once(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> Any:
        batch.delay_level = -1
        return CONSUME_LATER

    spine = make_spine(handler)
    await spine.run(spine.entries(2))
    assert [topic for topic, _ in spine.sent()] == ["billing.dlq"] * 2


async def test_two_store_calls_per_batch_whatever_its_size(make_spine: Any, succeed: Any) -> None:
    spine = make_spine(succeed, dedup=True)
    await spine.run(spine.entries(200))
    assert len(spine.store.trips) == 2


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
        waits.append(copy.until / 1000 - spine.wall() - 0.5)
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


async def test_a_message_that_its_handler_named_is_ruled_as_named_whatever_its_batch_raised(make_spine: Any) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        for message in batch:
            if message.offset == 100:
                batch.later(message)
        raise ValueError

    spine = make_spine(handler, later=ConsumeLater(16, no_retry=ValueError))
    await spine.run(spine.entries(2))
    assert sorted(spine.sent()) == [("billing.delay.10s", b"v100"), ("billing.dlq", b"v101")]


@each(("limit", "sizes"), [(16, [200, 25, 3, 1, 1]), (3, [200, 25, 3, 1]), (1, [200, 1]), (0, [1])])
def test_the_batches_of_further_attempts_are_smaller_and_the_last_attempt_is_alone(make_spine: Any, limit: int, sizes: list[int]) -> None:
    spine = make_spine(None, later=ConsumeLater(limit))
    assert [spine.pipeline.batch_limit(spine.entry(100, attempt=attempt)) for attempt in range(1, len(sizes) + 1)] == sizes
