"""Every call that a worker makes is broken once, alone: nothing is lost, and nothing is committed early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka.errors import KafkaError
from tests.failures.calls import Fault
from tests.failures.world import Member, World, expected, mixed_messages

from ackwise.middleware.errors import AckwiseError

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: What the promise is about; a worker that makes other calls has them broken as well.
PROMISED = {
    "consumer.beginning_offsets", "consumer.commit", "consumer.committed", "consumer.start", "consumer.stop", "consumer.take",
    "publish.dead-letter", "publish.due-copy", "publish.retry-copy", "publisher.start", "publisher.stop",
    "relay.commit", "relay.getmany", "relay.start", "relay.stop",
    "sink.close", "sink.flush", "sink.open",
    "store.claim", "store.close", "store.complete-dead", "store.complete-ok", "store.open", "store.release", "store.renew",
}  # fmt: skip

#: Where a fault may end the worker, with an error that says so; everywhere else it goes on by itself.
MAY_END = {site for site in PROMISED if site.split(".")[1] in ("open", "close", "start", "stop")}

#: aiokafka's fetch that fails has taken nothing: that an answer to it is lost can't happen.
NEVER_AFTER = {"relay.getmany"}

#: Scenarios at a time: two cores are not kept busier by more.
AT_ONCE = 8


async def finish(world: World, fault: Fault | None) -> Member:
    """Consume all of it, with workers one after the other as each ends; returns the first."""
    first = member = world.join(fault=fault)
    finished = asyncio.create_task(world.wait_until_committed())
    while True:
        await asyncio.wait({member.task, finished}, return_when=asyncio.FIRST_COMPLETED)
        is_finished = finished.done() and not member.task.done()
        ended_with = await _leave(member)
        if ended_with is not None:
            assert fault is not None, f"the worker ended with {ended_with!r}"
            assert fault.site in MAY_END, f"{fault} ended the worker with {ended_with!r}"
        if is_finished:
            await finished
            return first
        member = world.join()


async def _leave(member: Member) -> Exception | None:
    """Let `member` leave; returns the error with which it ended, one that says what happened."""
    try:
        await member.leave()
    except (AckwiseError, KafkaError) as error:
        return error
    finally:
        await member.tap.close_what_stayed_open()
    return None


async def consume_mixed_messages(world: World, fault: Fault | None) -> Member:
    """Consume the mixed messages while `fault` breaks one call, and assert the promise."""
    await world.create()
    await world.send(mixed_messages())
    first = await finish(world, fault)
    runs, dead = expected(world.sent)
    await world.judge()
    assert dict(world.ledger.runs()) == dict.fromkeys(runs, 1), "each message runs once, whatever breaks, as long as nobody dies"
    assert {letter.id for letter in await world.dead_letters()} == dead
    assert fault is None or first.tap.broke, f"{fault} was never broken"
    return first


async def test_whatever_call_breaks_nothing_is_lost_and_nothing_committed_early(new_world: Callable[..., World]) -> None:
    unbroken = await consume_mixed_messages(new_world(), None)
    sites = set(unbroken.tap.calls)
    assert sites >= PROMISED
    faults = [Fault(site, when) for site in sorted(sites) for when in ("before", "after") if when == "before" or site not in NEVER_AFTER]
    room = asyncio.Semaphore(AT_ONCE)

    async def attempt(fault: Fault) -> str | None:
        async with room:
            try:
                await consume_mixed_messages(new_world(), fault)
            except AssertionError as error:
                return f"{fault}: {error}"
        return None

    failures = [failure for failure in await asyncio.gather(*map(attempt, faults)) if failure is not None]
    assert not failures, "\n".join(failures)
