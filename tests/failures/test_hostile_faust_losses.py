"""What would lose messages or stop workers of Faust, under a hostile client; and that the trial finds it where the mend is taken out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from tests.failures.hostile import fausting
from tests.failures.hostile.records import send_with_header
from tests.failures.hostile.trial import Trial, started
from tests.failures.world import Member, Record, World

from ackwise.plugin.client import offsets
from ackwise.plugin.client.internals import position_of
from ackwise.plugin.faust import thread
from ackwise.plugin.faust.thread import Fetched, ReliableThread
from ackwise.plugin.relay import member as delaymember
from ackwise.testing.hostile.client import install
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

NewWorld = Callable[..., World]

#: Seconds after which a worker without its mend has stopped for good. One that goes on wrongly has all the time that it needs.
SOON = 10.0

MOVED = ["worker.drain:raises-afterx2", "worker.drain:raises-oddly@2", "worker.drain:cancelled-after"]
SILENT = ["relay.OffsetFetch:loadingx8", "relay.OffsetFetch:shortx8"]
LEAKED = ["relay.drain:raises-after relay.close:cancelled-after"]
UNHEARD = ["worker.JoinGroup:unknown", "worker.SyncGroup:unknown", "worker.Heartbeat:unknown"]
LEFT = ["worker.JoinGroup:cancelled-after"]


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    fausting.install(monkeypatch)


async def suffer(new_world: NewWorld, plans: Sequence[str], *, may_end: bool = False) -> None:
    """Let a worker suffer each of `plans`."""
    join = fausting.worker(fausting.by_take)
    await asyncio.gather(*(Trial(new_world(), Plan.parse(plan), join, may_end=may_end).run() for plan in plans))


async def fails(new_world: NewWorld, plans: Sequence[str], why: str, *, may_end: bool = False, within: float | None = SOON) -> None:
    """Assert that the trial of each plan fails, and says why."""
    join = fausting.worker(fausting.by_take)
    trials = (Trial(new_world(), Plan.parse(plan), join, may_end=may_end, within=within).run() for plan in plans)
    for plan, found in zip(plans, await asyncio.gather(*trials, return_exceptions=True), strict=True):
        assert isinstance(found, AssertionError), f"{plan}: {found!r}"
        assert re.search(why, str(found)), f"{plan}: {found}"


async def test_a_fetch_that_raises_after_it_moved_loses_nothing_of_what_it_had_drained(new_world: NewWorld) -> None:
    await suffer(new_world, MOVED)


async def test_without_the_way_back_what_a_fetch_had_drained_is_found_to_be_lost(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = ReliableThread._stand

    async def believe(self: Any, consumer: Any, partitions: Collection[Any]) -> Any:
        for partition, cursor in self._reading.cursors.items():
            if cursor.expected is not None:
                cursor.expected = position_of(consumer, partition)
        return await stand(self, consumer, partitions)

    async def go_on(self: Any, consumer: Any, stood: Mapping[Any, int], error: BaseException) -> Fetched:
        return Fetched()

    monkeypatch.setattr(ReliableThread, "_stand", believe)
    monkeypatch.setattr(ReliableThread, "_recover", go_on)
    await fails(new_world, MOVED[:1], "not finished|committed at|lost")


async def test_a_relay_that_gets_no_answer_begins_nowhere_and_moves_nothing_again(new_world: NewWorld) -> None:
    await suffer(new_world, SILENT)


async def test_a_relay_that_takes_no_answer_for_no_commit_is_found_to_move_copies_again(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = offsets.ask

    async def overlook(*arguments: Any, **options: Any) -> offsets.Asked:
        asked = await ask(*arguments, **options)
        return offsets.Asked({**asked.known, **dict.fromkeys(asked.unknown, offsets.Standing(None, 0, 1_000_000))}, {})

    monkeypatch.setattr(delaymember, "ask", overlook)
    await fails(new_world, SILENT[:1], "moved them again", within=None)


async def test_a_relay_whose_client_leaks_cancellation_as_it_closes_comes_back(new_world: NewWorld) -> None:
    await suffer(new_world, LEAKED)


async def test_a_relay_that_lets_the_cancellation_through_is_found_not_to_come_back(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close(consumer: Any, **_: Any) -> None:
        await consumer.stop()

    monkeypatch.setattr(delaymember, "close_consumer", close)
    await fails(new_world, LEAKED, "not finished|ended the worker|ended with CancelledError")


async def test_a_fetch_that_lets_a_cancellation_of_the_client_through_is_found_to_stop_the_worker(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "is_cancelled", lambda: True)
    await fails(new_world, MOVED[2:], "not finished|ended the worker|ended with CancelledError|did not leave")


async def test_a_client_that_could_not_join_or_keep_its_place_tries_again(new_world: NewWorld) -> None:
    await suffer(new_world, UNHEARD)


async def test_a_worker_that_does_not_hear_its_client_is_found_never_to_join(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReliableThread, "_hear", lambda *_: None)
    await fails(new_world, UNHEARD[:1], "not finished")


async def test_a_client_that_is_cancelled_from_inside_as_it_joins_ends_the_worker_and_the_next_one_loses_nothing(
    new_world: NewWorld,
) -> None:
    await suffer(new_world, LEFT, may_end=True)


async def test_a_worker_that_does_not_see_its_client_leave_is_found_to_wait_for_ever(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReliableThread, "_require_membership", lambda *_: None)
    monkeypatch.setattr(ReliableThread, "_hear", lambda *_: None)
    await fails(new_world, LEFT, "not finished", may_end=True)


async def consume_past_an_unreadable_name(world: World) -> Member:
    """A worker that has done everything else that was sent."""
    await world.create()
    await world.send(Record.of(f"before{partition}", partition) for partition in range(3))
    await send_with_header(world.brokers, world.topic, 0, b'{"id": "unreadable", "kind": "ok"}')
    member = started(world, fausting.worker(fausting.by_take), Plan())
    await world.send(Record.of(f"after{number}", number % 3, "later", times=1) for number in range(6))
    readable = {*(f"before{number}" for number in range(3)), *(f"after{number}" for number in range(6))}
    await world.wait(lambda: readable <= set(world.ledger.runs()), "everything that can be read", [member])
    return member


async def test_a_header_name_that_is_not_utf8_stops_nobody(new_world: NewWorld) -> None:
    await (await consume_past_an_unreadable_name(new_world())).leave()


async def test_a_worker_that_lets_the_error_through_is_found_to_end(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def recover(self: Any, consumer: Any, stood: Mapping[Any, int], error: BaseException) -> Fetched:
        raise error

    monkeypatch.setattr(ReliableThread, "_recover", recover)
    with pytest.raises(UnicodeDecodeError):
        await consume_past_an_unreadable_name(new_world())


async def test_a_table_is_not_recovered_before_the_broker_tells_the_end_of_each_changelog(new_world: NewWorld) -> None:
    world = new_world()
    await Trial(world, Plan.parse("worker.ListOffsets:shortx6"), fausting.worker(fausting.with_table)).run()
    counted, executed = await fausting.counted(world), fausting.executions(world.sent)
    assert counted == executed, f"the table counts {counted}, and {executed} were executed"
