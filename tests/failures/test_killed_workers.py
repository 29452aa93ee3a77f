"""A worker is killed at every call that it makes, before the call has an effect and after it: nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
from collections.abc import Callable

import pytest
from tests.failures.calls import Fault
from tests.failures.test_broken_calls import NEVER_AFTER, PROMISED
from tests.failures.world import BATCH, World, expected, mixed_messages, start_process

from ackwise.middleware.identity import Identity, business_id
from ackwise.middleware.store import Outcome

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: Processes at a time: each start takes a core for a second, the rest is waiting.
AT_ONCE = 6

#: Sources and retry topic have three partitions each, and each runs one batch.
IN_FLIGHT = 6 * BATCH

FAULTS = [
    Fault(site, when, signal=signal.SIGKILL)
    for site in sorted(PROMISED)
    for when in ("before", "after")
    if when == "before" or site not in NEVER_AFTER
]  # fmt: skip


def completed(world: World, ids: set[str]) -> set[str]:
    """Those of `ids` that the claim store knows as done, read by SQLite alone."""
    path = world.folder / f"{world.group}.db"
    if not path.exists():
        return set()
    connection = sqlite3.connect(path)
    try:
        (there,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'ackwise_claims'").fetchone()
        rows = connection.execute("SELECT place FROM ackwise_claims WHERE outcome = ?", (Outcome.OK,)).fetchall() if there else []
    finally:
        connection.close()
    done = {place for (place,) in rows}
    identity = Identity("ackwise", world.group, "bill", 0)
    return {id for id in ids if identity.of(business_id(id))[0].hex() in done}


async def kill_once(world: World, fault: Fault) -> None:
    """Consume the mixed messages with a worker that is killed at `fault` and one that goes on; assert the promise."""
    await world.create()
    await world.send(mixed_messages())
    runs, dead = expected(world.sent)

    async def finish_and_leave() -> int:
        """A worker that may be killed before it is finished, or while it leaves."""
        process = await start_process(world, None if killed else fault, stderr=subprocess.DEVNULL)
        ended = asyncio.create_task(process.wait())
        finished = asyncio.create_task(world.wait_until_finished(workers=2 if killed else 1))
        try:
            await asyncio.wait({ended, finished}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await finished
                process.send_signal(signal.SIGTERM)
            return await ended
        finally:
            finished.cancel()
            await asyncio.wait([finished])
            if process.returncode is None:
                process.kill()
                await process.wait()

    killed = False
    assert await finish_and_leave() == -signal.SIGKILL, f"nobody was killed at {fault}"
    killed = True
    unmarked = set(world.ledger.runs()) - completed(world, runs)
    assert len(unmarked) <= IN_FLIGHT
    assert await finish_and_leave() == 0

    await world.judge()
    ran = world.ledger.runs()
    assert set(ran) == runs
    assert {id for id, times in ran.items() if times > 1} <= unmarked, "what the store knew as done ran again"
    assert max(ran.values()) <= 2
    assert {letter.id for letter in await world.dead_letters()} == dead


async def test_wherever_a_worker_is_killed_nothing_is_lost_and_only_what_was_not_marked_runs_again(new_world: Callable[..., World]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def attempt(fault: Fault) -> str | None:
        async with room:
            try:
                await kill_once(new_world(), fault)
            except AssertionError as error:
                return f"{fault}: {error}"
        return None

    failures = [failure for failure in await asyncio.gather(*map(attempt, FAULTS)) if failure is not None]
    assert not failures, "\n".join(failures)
