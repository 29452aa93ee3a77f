"""What once lost messages or stopped workers, under a hostile client; and that the trial finds it where the mend is taken out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.failures.hostile.looping import loop
from tests.failures.hostile.records import send_with_header
from tests.failures.hostile.trial import Join, Trial, host
from tests.failures.world import Record, World

from ackwise.plugin.client import offsets as standing
from ackwise.plugin.host.fetching import Fetching
from ackwise.plugin.relay import member as delaymember
from ackwise.testing.hostile.client import install
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(90)]

NewWorld = Callable[..., World]

#: Seconds after which a worker without its mend has stopped for good. One that goes on wrongly has all the time that it needs.
SOON = 8.0

MOVED = ["worker.drain:raises-afterx2", "worker.drain:raises-oddly@2", "worker.drain:cancelled-after@2"]
SILENT = ["relay.OffsetFetch:loadingx8", "relay.OffsetFetch:shortx8", "relay.OffsetFetch:emptyx8"]
LEAKED = ["relay.drain:raises-after relay.close:cancelled-after"]


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def suffer(new_world: NewWorld, plans: Sequence[str], join: Join = host) -> None:
    """Let a worker suffer each of `plans`."""
    await asyncio.gather(*(Trial(new_world(), Plan.parse(plan), join).run() for plan in plans))


async def fails(new_world: NewWorld, plans: Sequence[str], why: str, *, within: float | None = SOON) -> None:
    """Assert that the trial of each plan fails, and says why."""
    trials = (Trial(new_world(), Plan.parse(plan), within=within).run() for plan in plans)
    for plan, found in zip(plans, await asyncio.gather(*trials, return_exceptions=True), strict=True):
        assert isinstance(found, AssertionError), f"{plan}: {found!r}"
        assert re.search(why, str(found)), f"{plan}: {found}"


@pytest.mark.parametrize("join", [host, loop], ids=["host", "loop"])
async def test_a_fetch_that_raises_after_it_moved_loses_nothing_of_what_it_had_drained(new_world: NewWorld, join: Join) -> None:
    await suffer(new_world, MOVED, join)


async def test_whatever_the_reading_of_the_control_topic_raises_the_worker_goes_on(new_world: NewWorld) -> None:
    await suffer(new_world, ["control.drain:raises-oddly"])


async def test_without_the_way_back_what_a_fetch_had_drained_is_found_to_be_lost(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fetching, "_return", lambda *_: None)
    await fails(new_world, MOVED[:1], "not finished|committed at|lost")


async def test_a_relay_that_gets_no_answer_begins_nowhere_and_moves_nothing_again(new_world: NewWorld) -> None:
    await suffer(new_world, SILENT)


async def test_a_relay_that_takes_no_answer_for_no_commit_is_found_to_move_copies_again(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = standing.ask

    async def overlook(*arguments: Any, **options: Any) -> standing.Asked:
        asked = await ask(*arguments, **options)
        return standing.Asked({**asked.known, **dict.fromkeys(asked.unknown, standing.Standing(None, 0, 1_000_000))}, {})

    monkeypatch.setattr(delaymember, "ask", overlook)
    await fails(new_world, SILENT, "moved them again", within=None)


async def test_a_relay_whose_client_leaks_cancellation_as_it_closes_comes_back(new_world: NewWorld) -> None:
    await suffer(new_world, LEAKED)


async def test_a_relay_that_lets_the_cancellation_through_is_found_not_to_come_back(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close(consumer: Any, **_: Any) -> None:
        await consumer.stop()

    monkeypatch.setattr(delaymember, "close_consumer", close)
    await fails(new_world, LEAKED, "not finished|ended the worker|ended with CancelledError")


async def test_a_header_name_that_is_not_utf8_stops_its_own_partition_alone(new_world: NewWorld) -> None:
    world = new_world(dedup=False)
    await world.create()
    await world.send(Record.of(f"before{partition}", partition) for partition in range(3))
    await send_with_header(world.brokers, world.topic, 0, b'{"id": "unreadable", "kind": "ok"}')
    member = world.join()
    await world.send(Record.of(f"after{number}", 1 + number % 2, "later", times=1) for number in range(4))
    readable = {"before0", "before1", "before2", *(f"after{number}" for number in range(4))}
    await world.wait(lambda: readable <= set(world.ledger.runs()), "everything that can be read", [member])
    await member.leave()


async def test_a_worker_that_lets_the_error_through_is_found_to_end(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def recover(self: Fetching, error: BaseException) -> None:
        raise error

    monkeypatch.setattr(Fetching, "_recover", recover)
    with pytest.raises(UnicodeDecodeError):
        await test_a_header_name_that_is_not_utf8_stops_its_own_partition_alone(new_world)
