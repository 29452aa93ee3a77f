"""Every call that a worker makes is broken once: nothing is lost, and nothing is committed early."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaError
from tests.failures.calls import Fault, When
from tests.failures.world import Member, NewWorld, World, each, expected, mixed_messages

from ackwise.middleware.errors import AckwiseError

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: What the promise is about; a worker that makes other calls has them broken as well.
PROMISED = {
    "consumer.commit", "consumer.committed", "consumer.offsets", "consumer.start", "consumer.stop", "consumer.take",
    "publish.dead-letter", "publish.due-copy", "publish.retry-copy", "publisher.start", "publisher.stop",
    "relay.commit", "relay.take", "relay.start", "relay.stop",
    "sink.close", "sink.flush", "sink.open",
    "store.claim", "store.close", "store.complete-dead", "store.complete-ok", "store.open", "store.release", "store.renew",
}  # fmt: skip

#: Where a fault may end the worker, with an error that says so; everywhere else it goes on by itself.
MAY_END = {site for site in PROMISED if site.split(".")[1] in ("open", "close", "start", "stop")}

#: aiokafka's fetch that fails has taken nothing: that an answer to it is lost can't happen.
NEVER_AFTER = {"relay.take"}

SIDES: tuple[When, ...] = ("before", "after")


def faults_at(sites: set[str], *sides: When) -> list[Fault]:
    return [Fault(site, when) for site in sorted(sites) for when in sides if when == "before" or site not in NEVER_AFTER]


async def finish(world: World, faults: list[Fault]) -> Member:
    """Consume all of it, with workers one after the other as each ends; returns the first. Each breaks at one place where it may end."""
    ends = [fault for fault in faults if fault.site in MAY_END]
    inside = [fault for fault in faults if fault.site not in MAY_END]
    first: Member | None = None
    while True:
        breaks, ends = [*ends[:1], *inside], ends[1:]
        member = world.join(faults=breaks)
        first = first or member
        finished = asyncio.create_task(world.wait_until_committed())
        await asyncio.wait({member.task, finished}, return_when=asyncio.FIRST_COMPLETED)
        is_finished = finished.done() and not member.task.done()
        ended_with = await _leave(member)
        inside = [fault for fault in inside if fault in breaks]
        if ended_with is not None:
            assert any(fault.site in MAY_END for fault in faults), f"the worker ended with {ended_with!r}"
        if is_finished and not ends:
            await finished
            assert not breaks, f"never broken: {', '.join(map(str, breaks))}"
            return first
        finished.cancel()
        await asyncio.wait({finished})


async def _leave(member: Member) -> Exception | None:
    """Let `member` leave; returns the error with which it ended, one that says what happened."""
    try:
        await member.leave()
    except (AckwiseError, KafkaError) as error:
        return error
    finally:
        await member.tap.close_what_stayed_open()
    return None


async def consume_mixed_messages(world: World, faults: list[Fault]) -> Member:
    """Consume the mixed messages while `faults` break calls, and assert the promise."""
    await world.create()
    await world.send(mixed_messages())
    first = await finish(world, faults)
    runs, dead = expected(world.sent)
    await world.judge()
    assert dict(world.ledger.runs()) == dict.fromkeys(runs, 1), "each message runs once, whatever breaks, as long as nobody dies"
    assert {letter.id for letter in await world.dead_letters()} == dead
    return first


async def test_whatever_calls_break_nothing_is_lost_and_nothing_committed_early(new_world: NewWorld) -> None:
    """The calls of a worker that may not end it break together; those that may end it one after the other, each in its own worker."""
    unbroken = consume_mixed_messages(new_world(), [])
    inside = [faults_at(PROMISED - MAY_END, when) for when in SIDES]
    ends = [faults_at(MAY_END, when)[part::2] for when in SIDES for part in range(2)]
    first, *_ = await asyncio.gather(unbroken, each([*inside, *ends], lambda faults: consume_mixed_messages(new_world(), faults)))
    assert set(first.tap.calls) >= PROMISED


@pytest.mark.nightly
@pytest.mark.slow  # runs a worker for each call that breaks
async def test_whatever_call_breaks_alone_nothing_is_lost_and_nothing_committed_early(new_world: NewWorld) -> None:
    unbroken = await consume_mixed_messages(new_world(), [])
    ours = set(unbroken.tap.calls) - {"handler"}  # the app's own, which may be killed and says itself how it fails
    await each(faults_at(ours, *SIDES), lambda fault: consume_mixed_messages(new_world(), [fault]))
