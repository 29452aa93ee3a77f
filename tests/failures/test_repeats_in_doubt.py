"""Without `Dedup` nothing keeps a message from running twice when its worker is killed; the books must not say that it ran once.

What really ran is in the handler's own ledger, fsynced before the handler returns.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.failures.calls import Fault
from tests.failures.world import Record, World, start_process

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.spark.topic.records import records_of
from ackwise.spark.vocabulary import Verdict
from ackwise.stores.journal import recover

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

MESSAGES = [
    Record.of(f"m{number}", number % 3, "later" if number in (4, 11, 27, 40) else "ok", times=1) for number in range(60)
]  # fmt: skip

#: The handler has run, and nothing of that is durable, or published, or committed.
FAULTS = [
    *(Fault("sink.flush", when, call, signal.SIGKILL) for when in ("before", "after") for call in (2, 3, 4, 5, 6, 8, 11)),
    *(Fault("consumer.commit", "before", call, signal.SIGKILL) for call in (2, 4)),
    Fault("publish.retry-copy", "after", 1, signal.SIGKILL),
    Fault("publish.due-copy", "after", 1, signal.SIGKILL),
]


async def killed_once(world: World, fault: Fault) -> None:
    """Consume everything with a worker that is killed at `fault` and one that goes on."""
    await world.create()
    await world.send(MESSAGES)
    first = await start_process(world, fault, stderr=subprocess.DEVNULL, dedup=False)
    try:
        await killed(first, world, fault)
    finally:
        await gone(first)
    second = await start_process(world, None, stderr=subprocess.DEVNULL, dedup=False)
    try:
        await world.wait_until_finished(workers=2)
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    finally:
        await gone(second)


async def killed(process: asyncio.subprocess.Process, world: World, fault: Fault) -> None:
    """Wait until `process` is killed. A busy machine commits so seldom that everything may be done before: then it is killed at its end."""
    end, finished = asyncio.ensure_future(process.wait()), asyncio.ensure_future(world.wait_until_finished(workers=1))
    await asyncio.wait({end, finished}, return_when=asyncio.FIRST_COMPLETED)
    finished.cancel()
    await asyncio.gather(finished, return_exceptions=True)
    if not end.done():
        process.kill()
    assert await end == -signal.SIGKILL, f"nobody was killed at {fault}"


async def gone(process: asyncio.subprocess.Process) -> None:
    """Whatever became of it, nobody leaves it behind."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def exported(world: World) -> list[dict[str, Any]]:
    """All events, rolled by somebody else, since the workers of these tests can't."""
    root = world.folder / f"{world.group}.events"
    recovery = recover(root)
    assert [*recovery.live, *recovery.unreadable] == []
    return [json.loads(value) for file in sorted(root.rglob("*.parquet")) for _, value in records_of(file)]


async def said_wrongly(world: World, fault: Fault) -> list[str]:
    """Messages that ran twice and are said to have run once."""
    await killed_once(world, fault)
    messages = rule(exported(world), ReconcileConfig()).messages
    judged = {(partition[2], partition[4], offset): found for (partition, _, _, offset), found in messages.items()}
    wrong, repeated = [], {id for id, times in world.ledger.runs().items() if times > 1}
    for record in await world.read(world.topic):
        verdict, flags = judged[record.topic, record.partition, record.offset]
        if json.loads(record.value)["id"] in repeated and verdict is not Verdict.MAYBE_TWICE:
            wrong.append(f"{fault}: {record.partition}/{record.offset} is {verdict.name} {flags!r}")
    assert all(verdict in (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE) for verdict, _ in judged.values())
    return [f"{len(repeated)} ran twice", *wrong] if wrong else [""] * bool(repeated)


async def test_what_ran_again_after_a_kill_without_claims_is_in_doubt_and_never_said_to_have_run_once(
    new_world: Callable[..., World],
) -> None:
    room = asyncio.Semaphore(4)

    async def attempt(fault: Fault) -> list[str]:
        async with room:
            return await said_wrongly(new_world(dedup=False), fault)

    found = await asyncio.gather(*map(attempt, FAULTS))
    assert [line for lines in found for line in lines if line] == []
    assert sum(bool(lines) for lines in found) >= 3, "these kills are to repeat something"
