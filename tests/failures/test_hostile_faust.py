"""A hostile client under workers of Faust and their relay: whatever it does, nothing is lost and the worker goes on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import pytest
from tests.failures.hostile import fausting
from tests.failures.hostile.hand import parted
from tests.failures.hostile.trial import Trial
from tests.failures.test_hostile_host import APART, AT_START, HARMS
from tests.failures.world import NewWorld, World, each

from ackwise.testing.hostile.client import install
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: The ways in which the workers consume, in turn.
STYLES: Final = (fausting.by_handler, fausting.with_table, fausting.by_take)

#: Faust asks for more than the host does: where its own partitions go on, and where the logs of its tables end.
MORE: Final[dict[str, Sequence[str]]] = {
    "worker.OffsetFetch": ("broken-disk-one@2", "not-allowed-one@3x2", "shortx16"),
    "worker.ListOffsets": ("shortx8", "emptyx8"),
}

#: What ends a worker, with an error that says why: nobody knows what became of the changes of tables that were on their way.
ENDS: Final = {"worker.Produce:cancelled", "worker.Produce:unknown"}

#: The calls before there is anything to consume; with these it waits or ends, with an error that says why.
MORE_AT_START: Final[dict[str, Sequence[str]]] = {
    "worker.Metadata": ("raises", "cancelled", "late"),
    "worker.CreateTopics": ("raises", "raises-after", "cancelled", "not-controller", "unknown"),
    "worker.JoinGroup": ("group-not-allowed",),
}


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    fausting.install(monkeypatch)


def with_more(harms: dict[str, Sequence[str]], more: dict[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {call: (*harms.get(call, ()), *more.get(call, ())) for call in {**harms, **more}}


async def attempt(world: World, plan: Plan, style: fausting.Declare, *, may_end: bool) -> None:
    may_end = may_end or any(str(fault) in ENDS for fault in plan.faults)
    trial = Trial(world, plan, fausting.worker(style), may_end=may_end)
    await trial.run()
    if style is fausting.with_table and not trial.ended:
        counted, expected = await fausting.counted(world), fausting.executions(world.sent)
        assert counted == expected, f"the table counts {counted}, and {expected} were executed"


async def suffer(new_world: NewWorld, plans: Sequence[str], *, may_end: bool = False) -> None:
    """Let a worker suffer each of `plans`, in each style in turn."""
    styles = itertools.cycle(STYLES)
    await each(plans, lambda plan: attempt(new_world(), Plan.parse(plan), next(styles), may_end=may_end), at_once=4)


@parted(with_more(HARMS, MORE), 3, apart=APART)
@pytest.mark.slow  # runs workers until each fault of a plan has struck
async def test_whatever_the_client_does_nothing_is_lost_and_the_worker_goes_on(new_world: NewWorld, plans: Sequence[str]) -> None:
    await suffer(new_world, plans)


@parted(with_more(AT_START, MORE_AT_START), 3)
@pytest.mark.slow  # starts workers until each fault of a plan has struck
async def test_a_start_that_fails_says_why_and_the_next_one_goes_on(new_world: NewWorld, plans: Sequence[str]) -> None:
    await suffer(new_world, plans, may_end=True)
