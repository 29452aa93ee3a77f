"""A worker on a real broker whose store stops answering, under each policy."""

from __future__ import annotations

import pytest
from tests.failures.calls import Fault
from tests.failures.world import NewWorld, World, each, expected, mixed_messages

from ackwise.middleware.errors import StoreUnavailable

pytestmark = [pytest.mark.kafka]


async def require_once(world: World) -> None:
    runs, dead = expected(world.sent)
    await world.judge()
    assert dict(world.ledger.runs()) == dict.fromkeys(runs, 1)
    assert {letter.id for letter in await world.dead_letters()} == dead


async def test_fail_closed_ends_the_worker_and_the_next_one_runs_what_is_left(new_world: NewWorld) -> None:
    world = new_world(on_store_down="fail_closed")
    await world.create()
    await world.send(mixed_messages())
    first = world.join(faults=[Fault("store.claim", "before", call=3)])
    with pytest.raises(StoreUnavailable, match="on_store_down is fail_closed: the app stops"):
        await first.task
    second = world.join()
    await world.wait_until_committed()
    await second.leave()
    await require_once(world)


async def test_fail_open_loses_nothing_and_waits_for_nothing_and_runs_nothing_twice_while_it_is_alone(new_world: NewWorld) -> None:
    async def attempt(site: str) -> None:
        world = new_world(on_store_down="fail_open")
        await world.create()
        # The slow one waits until its claim is renewed, and may have none here.
        await world.send(record for record in mixed_messages() if b"slow" not in (record.value or b""))
        member = world.join(faults=[Fault(site, "before", call=2)])
        await world.wait_until_committed()
        await member.leave()
        assert not member.tap.faults
        await require_once(world)

    await each(["store.claim", "store.complete-ok", "store.complete-dead", "store.release"], attempt)
