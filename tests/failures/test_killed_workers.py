"""A worker is killed at every call that it makes, before the call has an effect and after it: nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import sqlite3

import pytest
from tests.failures.calls import Fault
from tests.failures.test_broken_calls import PROMISED, SIDES, faults_at
from tests.failures.world import BATCH, NewWorld, World, each, expected, mixed_messages, start_process

from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.storage.claimstore import Outcome

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: Sources and retry topic have three partitions each, and each runs one batch.
IN_FLIGHT = 6 * BATCH

#: Where a kill leaves what only the next worker can know: ran and not marked, marked and not committed, copied and not marked.
TOLD = {"store.complete-ok", "sink.flush", "consumer.commit", "publish.retry-copy", "publish.due-copy", "relay.commit"}

KILLS = [fault._replace(signal=signal.SIGKILL) for fault in faults_at(PROMISED, *SIDES)]


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

    async def finish_and_leave(fault: Fault | None, workers: int) -> int:
        """A worker that may be killed before it is finished, or while it leaves."""
        process = start_process(world, fault)
        ended = asyncio.create_task(process.wait())
        finished = asyncio.create_task(world.wait_until_finished(workers=workers))
        try:
            await asyncio.wait({ended, finished}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await finished
                process.send_signal(signal.SIGTERM)
            return await ended
        finally:
            finished.cancel()
            await asyncio.wait([finished])
            await process.gone()

    assert await finish_and_leave(fault, 1) == -signal.SIGKILL, f"nobody was killed at {fault}"
    unmarked = set(world.ledger.runs()) - completed(world, runs)
    assert len(unmarked) <= IN_FLIGHT
    assert await finish_and_leave(None, 2) == 0

    await world.judge()
    ran = world.ledger.runs()
    assert set(ran) == runs
    assert {id for id, times in ran.items() if times > 1} <= unmarked, "what the store knew as done ran again"
    assert max(ran.values()) <= 2
    assert {letter.id for letter in await world.dead_letters()} == dead


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param([kill for kill in KILLS if kill.site in TOLD], id="told"),
        pytest.param([kill for kill in KILLS if kill.site not in TOLD], id="others", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow  # waits for the lease of each worker that is killed
async def test_wherever_a_worker_is_killed_nothing_is_lost_and_only_what_was_not_marked_runs_again(
    new_world: NewWorld, kills: list[Fault]
) -> None:
    await each(kills, lambda fault: kill_once(new_world(), fault))
