"""Without `Dedup` nothing keeps a message from running twice when its worker is killed; the books must not say that it ran once.

What really ran is in the handler's own ledger, fsynced before the handler returns.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from tests.eventfiles import plain_events_in
from tests.failures.calls import Fault, When
from tests.failures.process import WorkerProcess
from tests.failures.world import NewWorld, Record, World, each, start_process

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Verdict
from ackwise.stores.journal import recover

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

MESSAGES = [
    Record.of(f"m{number}", number % 3, "later" if number in (4, 11, 27, 40) else "ok", times=1) for number in range(60)
]  # fmt: skip


def kill(site: str, when: When, call: int = 1) -> Fault:
    return Fault(site, when, call, signal.SIGKILL)


#: The handler has run, and nothing of that is durable, or published, or committed.
KILLS = [kill("sink.flush", "before", 3), kill("sink.flush", "after", 5), kill("consumer.commit", "before", 2)]
KILLS += [kill("publish.retry-copy", "after")]
FURTHER = [kill("sink.flush", when, call) for when in ("before", "after") for call in (2, 4, 6, 8, 11)]
FURTHER += [kill("consumer.commit", "before", 4), kill("publish.due-copy", "after")]


async def killed_once(world: World, fault: Fault) -> None:
    """Consume everything with a worker that is killed at `fault` and one that goes on."""
    await world.create()
    await world.send(MESSAGES)
    first = start_process(world, fault, dedup=False)
    try:
        await killed(first, world, fault)
    finally:
        await first.gone()
    second = start_process(world, dedup=False)
    try:
        await world.wait_until_finished(workers=2)
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0
    finally:
        await second.gone()


async def killed(process: WorkerProcess, world: World, fault: Fault) -> None:
    """Wait until `process` is killed. A busy machine commits so seldom that everything may be done before: then it is killed at its end."""
    end, finished = asyncio.ensure_future(process.wait()), asyncio.ensure_future(world.wait_until_finished(workers=1))
    await asyncio.wait({end, finished}, return_when=asyncio.FIRST_COMPLETED)
    finished.cancel()
    await asyncio.gather(finished, return_exceptions=True)
    if not end.done():
        process.kill()
    assert await end == -signal.SIGKILL, f"nobody was killed at {fault}"


def exported(world: World) -> list[dict[str, Any]]:
    """All events, rolled by another program, since the workers of these tests can't."""
    root = world.folder / f"{world.group}.events"
    recovery = recover(root)
    assert [*recovery.live, *recovery.unreadable] == []
    return plain_events_in(*sorted(root.rglob("*.parquet")))


async def repeats(world: World, fault: Fault) -> int:
    """How many messages ran twice; none of them is said to have run once."""
    await killed_once(world, fault)
    messages = rule(exported(world), ReconcileConfig()).messages
    judged = {(partition[2], partition[4], offset): found for (partition, _, _, offset), found in messages.items()}
    wrong, repeated = [], {id for id, times in world.ledger.runs().items() if times > 1}
    for record in await world.read(world.topic):
        verdict, flags = judged[record.topic, record.partition, record.offset]
        if json.loads(record.value)["id"] in repeated and verdict is not Verdict.MAYBE_TWICE:
            wrong.append(f"{record.partition}/{record.offset} is {verdict.name} {flags!r}")
    assert wrong == []
    assert all(verdict in (Verdict.EXACTLY_ONCE, Verdict.MAYBE_TWICE) for verdict, _ in judged.values())
    return len(repeated)


@pytest.mark.slow  # kills workers one after the other and reconciles what they left
@pytest.mark.parametrize("kills", [KILLS, pytest.param(FURTHER, marks=pytest.mark.nightly)], ids=["kills", "further"])
async def test_what_ran_again_after_a_kill_without_claims_is_in_doubt_and_never_said_to_have_run_once(
    new_world: NewWorld, kills: Sequence[Fault]
) -> None:
    repeated = list[int]()

    async def attempt(fault: Fault) -> None:
        repeated.append(await repeats(new_world(dedup=False), fault))

    await each(kills, attempt)
    assert sum(map(bool, repeated)) >= 2, "these kills are to repeat something"
