"""What becomes of failures where every instance gets everything."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import FULL_DISK
from tests.tables import each

from ackwise import CONSUME_LATER, Batch, ConsumeLater, ConsumeStatus, Later, Message, Reject
from ackwise.middleware.events import EventCode
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.runs.redelivery import Dropping
from ackwise.middleware.runs.run import Stage


def broadcasting(make_spine: Any, handler: Any, **options: Any) -> Any:
    spine = make_spine(handler, later=ConsumeLater(0), **options)
    worker = spine.worker
    spine.worker = type(worker)(**{name: getattr(worker, name) for name in worker.__dataclass_fields__} | {"dropping": Dropping()})
    spine.pipeline = Pipeline(spine.agent, spine.worker)
    return spine


async def test_B01_three_that_are_to_come_later_are_dropped_and_passed(make_spine: Any) -> None:
    async def later(batch: Batch[Any]) -> ConsumeStatus:
        return CONSUME_LATER

    spine = broadcasting(make_spine, later)
    assert await spine.run([spine.together(3)]) == [Stage.SETTLED] * 3
    assert spine.watermark.commit == 103
    assert spine.sent() == []
    assert spine.worker.dropping.messages == 3
    for offset in (100, 101, 102):
        assert spine.sink.codes(offset) == [EventCode.STARTED, EventCode.FAILED, EventCode.DROPPED]


async def test_a_batch_that_raises_is_dropped_and_nothing_of_it_runs_again(make_spine: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def fail(batch: Batch[Any]) -> None:
        calls.append(len(batch))
        raise ValueError("no")

    spine = broadcasting(make_spine, fail)
    await spine.run([spine.together(4)])
    assert (calls, spine.watermark.commit, spine.worker.dropping.messages) == ([4], 104, 4)
    lines = [record for record in caplog.records if "dropped" in record.getMessage()]
    assert len(lines) == 1
    assert "ValueError" in lines[0].getMessage()


async def test_what_succeeded_beside_a_failure_is_done(make_spine: Any) -> None:
    async def prefix(batch: Batch[Any]) -> None:
        batch.ack_index = 0

    spine = broadcasting(make_spine, prefix)
    await spine.run([spine.together(3)])
    assert spine.sink.codes(100) == [EventCode.STARTED, EventCode.SUCCEEDED]
    assert spine.sink.codes(102) == [EventCode.STARTED, EventCode.FAILED, EventCode.DROPPED]
    assert spine.watermark.commit == 103


@each(
    ("error", "reason"),
    [
        (ValueError("no"), "not-retried"),
        (Later(30), "not-retried"),
        (Later(level=-1), "not-retried"),
        (Reject("no"), "rejected"),
    ],
    ids=["error", "later", "below-zero", "reject"],
)
async def test_the_event_says_why(make_spine: Any, error: Exception, reason: str) -> None:
    async def fail(message: Message[Any]) -> None:
        raise error

    spine = broadcasting(make_spine, fail, kind="message")
    await spine.run([spine.entry(100)])
    assert [event.error for event in spine.sink.durable if event.code is EventCode.DROPPED] == [reason]
    assert spine.sent() == []


async def test_a_value_that_can_not_be_decoded_is_dropped_and_never_run(make_spine: Any) -> None:
    def decode(value: bytes | None) -> object:
        raise ValueError("no JSON")

    async def never(message: Message[Any]) -> None:
        raise AssertionError("it was run")

    spine = broadcasting(make_spine, never, kind="message", decode=decode)
    await spine.run([spine.entry(100)])
    assert spine.sink.codes(100) == [EventCode.DROPPED]
    assert spine.watermark.commit == 101


async def test_the_offset_waits_until_the_drop_is_durable_and_it_is_counted_once(make_spine: Any) -> None:
    async def fail(message: Message[Any]) -> None:
        raise ValueError("no")

    spine = broadcasting(make_spine, fail, kind="message")
    entries = [spine.entry(100)]
    spine.sink.error = FULL_DISK
    await spine.run(entries)
    assert spine.watermark.commit == 100
    spine.sink.error = None
    spine.clock.now += 60
    await spine.run(entries)
    await spine.run(entries)
    assert (spine.watermark.commit, spine.worker.dropping.messages) == (101, 1)


async def test_a_failure_that_comes_back_after_the_cut_off_is_not_dropped_since_it_is_delivered_again(make_spine: Any) -> None:
    async def fail(message: Message[Any]) -> None:
        spine.partition.cut_off = True
        raise ValueError("no")

    spine = broadcasting(make_spine, fail, kind="message")
    await spine.run([spine.entry(100)])
    assert EventCode.DROPPED not in spine.sink.codes(100)
    assert (spine.watermark.commit, spine.worker.dropping.messages) == (100, 0)
