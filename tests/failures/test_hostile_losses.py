"""What once lost messages or stopped workers, under a hostile client: it does so no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.failures.hostile import fausting
from tests.failures.hostile.looping import loop
from tests.failures.hostile.trial import Join, Trial, host
from tests.failures.world import NewWorld, each

from ackwise.testing.hostile.client import install
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: A fetch raises after its position has moved past what it had drained, or is cancelled by its client.
MOVED = ("worker.drain:raises-afterx2", "worker.drain:raises-oddly@2", "worker.drain:cancelled-after@2")

#: A relay gets no answer about what was committed: it may start nowhere, and move nothing again.
SILENT = ("relay.OffsetFetch:loadingx8", "relay.OffsetFetch:shortx8", "relay.OffsetFetch:emptyx8")

#: The client of a relay leaks cancellation as it closes: the relay comes back.
LEAKED = "relay.drain:raises-after relay.close:cancelled-after"

#: Reading the control topic raises.
CONTROL = "control.Fetch:raises-oddly"

#: A client could not join, or keep its place: it tries again.
UNHEARD = ("worker.JoinGroup:unknown", "worker.SyncGroup:unknown", "worker.Heartbeat:unknown")

#: A client is cancelled from inside as it joins: its worker ends, and the next one loses nothing.
LEFT = "worker.JoinGroup:cancelled-after"


@pytest.mark.parametrize(
    ("join", "plans"),
    [
        pytest.param(host, (*MOVED, *SILENT, LEAKED, CONTROL), id="host"),
        pytest.param(loop, MOVED, id="loop"),
        pytest.param(
            fausting.worker(fausting.by_take), (*MOVED[:2], "worker.drain:cancelled-after", *SILENT[:2], LEAKED, *UNHEARD, LEFT), id="faust"
        ),
    ],
)
async def test_what_once_lost_messages_or_stopped_workers_does_so_no_more(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch, join: Join, plans: Sequence[str]
) -> None:
    install(monkeypatch)
    fausting.install(monkeypatch)
    await each(plans, lambda plan: Trial(new_world(), Plan.parse(plan), join, may_end=plan == LEFT).run(), at_once=4)


async def test_a_table_is_not_recovered_before_the_broker_tells_the_end_of_each_changelog(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    fausting.install(monkeypatch)
    world = new_world()
    await Trial(world, Plan.parse("worker.ListOffsets:shortx6"), fausting.worker(fausting.with_table)).run()
    counted, executed = await fausting.counted(world), fausting.executions(world.sent)
    assert counted == executed, f"the table counts {counted}, and {executed} were executed"
