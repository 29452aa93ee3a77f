"""What is paused, or stopped by a breaker, in a share group: a lock can't wait for it, so it is polled no more, or goes aside."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from tests.plugin.share.desk import Desk, Handler, refuse

from ackwise.middleware.breaker import FIRST, Breaker
from ackwise.middleware.pausing import Target

RETRY = "billing.retry"


async def test_what_was_polled_for_a_paused_handler_is_copied_uncharged_and_not_run() -> None:
    kinds: tuple[Literal["batch", "message"], ...] = ("batch", "message")
    for kind in kinds:
        desk = Desk(handler := Handler(), kind=kind)
        desk.member.worker.flow.pausing.pause(Target("bill"), "code")
        await desk.deliver(3, 4)
        assert (handler.seen, desk.accepted()) == ([], [3, 4]), kind
        assert desk.copies() == [(RETRY, b"v3", 1, "Held"), (RETRY, b"v4", 1, "Held")], kind


async def test_while_every_handler_is_paused_nothing_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.share.sharing._LOOK_AGAIN", 0.001)
    desk = Desk(handler := Handler())
    polled = asyncio.Event()

    class Client:
        async def poll(self) -> Any:
            polled.set()
            desk.stop.set()
            return None

    flow = desk.member.worker.flow
    flow.pausing.pause(Target("bill"), "code")
    pulling = asyncio.create_task(desk.sharing._pull(Client()))  # type: ignore[arg-type]  # a client reduced to its polls
    for _ in range(20):
        await asyncio.sleep(0)
    assert not polled.is_set()
    flow.pausing.resume(Target("bill"), "code")
    async with asyncio.timeout(5):
        await pulling
    assert (polled.is_set(), handler.seen) == (True, [])


async def test_letters_that_a_breaker_withholds_for_longer_than_the_lock_go_aside_unpublished() -> None:
    desk = Desk(Handler(), decode=refuse, breaker=Breaker())
    await desk.deliver(*range(FIRST))
    assert desk.accepted() == list(range(FIRST))
    assert {(topic, reason) for topic, _, _, reason in desk.copies()} == {(RETRY, "Held")}


async def test_letters_that_a_breaker_withholds_for_a_moment_wait_within_the_lock() -> None:
    desk = Desk(Handler(), decode=refuse, breaker=Breaker())
    await desk.end(asyncio.create_task(desk.deliver(3)), step=1.0)
    assert [topic for topic, *_ in desk.copies()] == ["billing.dlq"]
