"""A worker that says how it is, and one that can't: its messages go on either way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.waiting import until

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.wire import Copy
from ackwise.plugin.consumer import workerstate
from ackwise.plugin.consumer.workerstate import WorkerState


class Desk:
    """A member whose publisher answers as the test wants."""

    def __init__(self) -> None:
        self.sent: list[Copy] = []
        self.answer: Callable[[], PublishUnavailable | PublishRefused | None] = lambda: None
        self.worker: Any = SimpleNamespace(
            publisher=self,
            outage=SimpleNamespace(is_on=True),
            flow=SimpleNamespace(pausing=SimpleNamespace(paused={}), stopped={"bill": 1}, expired=7),
            leases=None,
        )
        self.state = self.state_while(lambda: True)

    def state_while(self, is_there: Callable[[], bool]) -> WorkerState:
        joined = asyncio.Event()
        joined.set()
        return WorkerState("billing.control", "ackwise", lambda: cast(Any, self.worker), list, joined, is_there)

    async def publish(self, copies: Sequence[Copy]) -> list[Any]:
        self.sent += copies
        return [self.answer() for _ in copies]

    async def telling(self, is_said: Callable[[], object]) -> None:
        task = asyncio.create_task(self.state.tell())
        await until(is_said)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(workerstate, "EVERY", 0.0)
    monkeypatch.setattr(workerstate, "_LOOK_AGAIN", 0.0)
    return Desk()


async def test_a_worker_says_what_keeps_it_from_its_work_and_takes_it_back_at_the_end(desk: Desk) -> None:
    await desk.telling(lambda: len(desk.sent) >= 2)
    await desk.state.take_back()
    assert len({copy.key for copy in desk.sent}) == 1
    assert desk.sent[-1].value is None
    assert b"its event log can't be written, and it starts nothing" in (desk.sent[0].value or b"")
    assert b"the breaker has stopped bill" in (desk.sent[0].value or b"")
    assert b'"expired": 7' in (desk.sent[0].value or b"")


async def test_without_a_control_topic_nothing_is_written_which_would_make_one(desk: Desk) -> None:
    looks = itertools.count()
    desk.state = desk.state_while(lambda: next(looks) < 0)
    await desk.telling(lambda: next(looks) > 5)
    await desk.state.take_back()
    assert desk.sent == []


async def test_a_broker_that_takes_no_record_is_logged_once_and_asked_again(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.answer = lambda: PublishRefused("topic 'billing.control' refuses the copy for good (TopicAuthorizationFailedError)")
    await desk.telling(lambda: len(desk.sent) >= 3)
    (line,) = [record for record in caplog.records if "worker state could not be published" in record.getMessage()]
    assert "TopicAuthorizationFailedError" in line.getMessage()
    written = len(desk.sent)
    await desk.state.take_back()
    assert len(desk.sent) == written  # there is nothing to take back


async def test_whatever_a_publisher_raises_is_logged_and_ends_no_worker(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    desk.answer = fail
    await desk.telling(lambda: len(desk.sent) >= 3)
    (line,) = [record for record in caplog.records if "worker state could not be published" in record.getMessage()]
    assert "LookupError" in line.getMessage()
