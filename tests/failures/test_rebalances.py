"""Partitions change hands at the worst moments, on a real broker: nothing is lost, and nothing is committed early.

A rebalance takes all partitions from all members and then gives them out again, so that a second member that joins is
a revoke for the first. Names such as A23 are rows of the table of semantics.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest
from tests.failures.calls import Fault
from tests.failures.world import BATCH, Member, NewWorld, Record, World, each, expected, mixed_messages, start_process

from ackwise.middleware.message.batch import Batch

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


class SlowOnce:
    """A handler whose first call waits until the test sets `go`; `seen` counts what it was given, first time or not."""

    def __init__(self, world: World, *, later: bool = False) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.seen: Counter[str] = Counter()
        self.reconsumed = 0
        self._world = world
        self._later = later

    async def __call__(self, batch: Batch[Any]) -> None:
        self.seen.update(message.value["id"] for message in batch)
        self.reconsumed += sum(message.reconsume_times for message in batch)
        if not self.entered.is_set():
            self.entered.set()
            await self.go.wait()
            if self._later:
                batch.ack_index = -1
                batch.delay_level = 1
                return
        self._world.ledger.ran([message.value["id"] for message in batch])


def orders(count: int) -> list[Record]:
    return [Record.of(f"m{number}", 0) for number in range(count)]


async def take_over(world: World, first: Member, handler: Any = None) -> Member:
    """A second member joins, and the first has given up what it had: answers once both have partitions again."""
    assigned = first.tap.moments["consumer assigned"]
    second = world.join(handler)
    await first.tap.wait_for("consumer assigned", assigned + 1)
    await second.tap.wait_for("consumer assigned")
    return second


async def finish(world: World, *members: Member) -> Counter[object]:
    """Consume the rest, leave, and assert what holds after any rebalance; returns what ran and how often."""
    await world.wait_until_committed()
    await asyncio.gather(*(member.leave() for member in members))
    runs, dead = expected(world.sent)
    await world.judge()
    ran = world.ledger.runs()
    assert set(ran) == runs
    assert {letter.id for letter in await world.dead_letters()} == dead
    return ran


async def test_a_member_that_joins_and_one_that_leaves_cost_nothing(new_world: NewWorld) -> None:
    world = new_world()
    await world.create()
    first = world.join()
    await world.send(mixed_messages()[:30])
    await first.tap.wait_for("store.complete-ok")
    second = world.join()
    await world.send(mixed_messages()[30:])
    await second.tap.wait_for("store.claim")
    await first.leave()
    ran = await finish(world, second)
    assert max(ran.values()) == 1


async def test_a_rebalance_that_begins_while_a_member_drains_waits_for_the_drain(new_world: NewWorld) -> None:
    world = new_world(settings={"commit_interval": 1.0})
    await world.create()
    first = world.join()
    await first.tap.wait_for("consumer assigned")
    second = await take_over(world, first)
    await first.tap.wait_for("consumer assigned", 2)
    await world.send(mixed_messages())
    await first.tap.wait_for("store.complete-ok")
    leaving = asyncio.create_task(first.leave())
    held = first.tap.hold("consumer.commit", first.tap.calls["consumer.commit"] + 1)
    await held.reached.wait()
    revoked = first.tap.moments["consumer revoked"]
    other = asyncio.create_task(second.leave())
    await first.tap.wait_for("consumer revoked", revoked + 1)
    held.go.set()
    await asyncio.gather(leaving, other)
    await finish(world, world.join())


async def test_a_call_under_way_when_its_partition_is_revoked_is_finished_first(new_world: NewWorld) -> None:
    async def attempt(held_at: tuple[str, int]) -> None:
        world = new_world()
        await world.create()
        await world.send(mixed_messages())
        first = world.join()
        held = first.tap.hold(*held_at)
        await held.reached.wait()
        revoked = first.tap.moments["consumer revoked"]
        second = world.join()
        await first.tap.wait_for("consumer revoked", revoked + 1)
        held.go.set()
        ran = await finish(world, first, second)
        assert max(ran.values()) == 1

    sites = ("store.claim", "publish.retry-copy", "publish.dead-letter", "store.complete-ok", "store.release")
    # The first commit is a part of the assignment.
    await each([*((site, 1) for site in sites), ("sink.flush", 3), ("consumer.commit", 2)], attempt)


async def test_a_call_that_outlasts_the_drain_costs_nothing(new_world: NewWorld) -> None:
    async def attempt(site: str) -> None:
        world = new_world(settings={"revoke_timeout": 0.3})
        await world.create()
        await world.send(mixed_messages())
        first = world.join()
        held = first.tap.hold(site)
        await held.reached.wait()
        second = await take_over(world, first)
        held.go.set()
        ran = await finish(world, first, second)
        repeated = [id for id, times in ran.items() if times > 1]
        assert len(repeated) <= BATCH, "only what was in flight in the one lane may run again, and only once its lease is over"

    await each(["store.claim", "publish.retry-copy", "publish.dead-letter", "store.complete-ok", "store.release"], attempt)


@pytest.mark.parametrize("later", [pytest.param(False, id="A23-success"), pytest.param(True, id="A24-later")])
async def test_a_handler_that_outlasts_the_drain_publishes_and_commits_nothing(new_world: NewWorld, later: bool) -> None:
    world = new_world(partitions=1, settings={"revoke_timeout": 0.3})
    await world.create()
    await world.send(orders(BATCH))
    handler = SlowOnce(world, later=later)
    first = world.join(handler)
    await handler.entered.wait()
    claims = first.tap.calls["store.claim"]
    second = await take_over(world, first, handler)
    await world.wait(lambda: first.tap.calls["store.claim"] + second.tap.calls["store.claim"] > claims, "the next owner's claim")
    assert set(handler.seen.values()) == {1}, "K03: what is running elsewhere is held"
    handler.go.set()
    ran = await finish(world, first, second)
    assert set(ran.values()) == {1}
    assert set(handler.seen.values()) == ({2} if later else {1})
    assert handler.reconsumed == 0, "no attempt is charged"
    assert first.tap.calls["publish.retry-copy"] + second.tap.calls["publish.retry-copy"] == 0


async def test_A25_what_waits_behind_a_slow_handler_is_not_begun_once_its_partition_is_revoked(new_world: NewWorld) -> None:
    world = new_world(partitions=1, max_batch=1, dedup=False, settings={"revoke_timeout": 0.3})
    await world.create()
    await world.send(orders(5))
    handler = SlowOnce(world)
    first = world.join(handler)
    await handler.entered.wait()
    second = await take_over(world, first, handler)
    handler.go.set()
    ran = await finish(world, first, second)
    assert ran == {"m0": 2, "m1": 1, "m2": 1, "m3": 1, "m4": 1}  # without dedup, the one that ran is run by the next owner as well


async def test_K03_a_second_delivery_of_what_is_running_is_held_and_costs_no_attempt(new_world: NewWorld) -> None:
    world = new_world(partitions=2)
    await world.create()
    handler = SlowOnce(world)
    first = world.join(handler)
    await world.send([Record.of("m0", 0)])
    await handler.entered.wait()
    await world.send([Record.of("m0", 1)])
    await first.tap.wait_for("store.claim", 3)  # asked, was told that it is busy, and asked again
    handler.go.set()
    ran = await finish(world, first)
    assert ran == {"m0": 1}
    assert handler.seen == {"m0": 1}
    assert first.tap.calls["publish.retry-copy"] == 0


@pytest.mark.parametrize(
    "site",
    [
        pytest.param("store.complete-ok", id="K05-store.complete-ok"),
        *(
            pytest.param(site, marks=pytest.mark.nightly)
            for site in ("store.claim", "publish.retry-copy", "publish.dead-letter", "consumer.commit", "relay.commit")
        ),
    ],
)
async def test_a_worker_that_stood_still_longer_than_its_session_and_lease_does_no_harm(new_world: NewWorld, site: str) -> None:
    world = new_world()
    await world.create()
    await world.send(mixed_messages())
    zombie = start_process(world, Fault(site, "before", call=2, signal=signal.SIGSTOP))
    try:
        await world.wait(lambda: any(fact["fact"] == "broke" for fact in world.ledger.read()), f"the {site} of the first worker")
        second = world.join()
        await world.wait_until_committed()
        zombie.send_signal(signal.SIGCONT)
        await world.send([Record.of(f"after{partition}", partition) for partition in range(3)])
        await world.wait(lambda: {f"after{partition}" for partition in range(3)} <= set(world.ledger.runs()), "what was sent afterwards")
        zombie.send_signal(signal.SIGTERM)
        assert await zombie.wait() == 0
    finally:
        await zombie.gone()
    ran = await finish(world, second)
    assert max(ran.values()) <= 2
    assert sum(times - 1 for times in ran.values()) <= 6 * BATCH, "at most what was in flight runs again"
