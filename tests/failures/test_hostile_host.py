"""A hostile client under the host on aiokafka and its relay: whatever it does, nothing is lost and the worker goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from tests.failures.hostile.hand import parted
from tests.failures.hostile.looping import loop
from tests.failures.hostile.trial import Join, Trial, host
from tests.failures.world import AT_ONCE, NewWorld, each

from ackwise.testing.hostile.client import install
from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

#: What may become of a request that is asked again until there is an answer that says something.
_ASKED: Final = ("raises", "raises-after", "late", "times-out", "twice", "unknown", "no-topic-one", "broken-disk-one")

#: Answers that say nothing about what was committed; nobody may start anywhere on them.
_SILENT: Final = ("loadingx8", "shortx8", "emptyx8")

#: Every call of the consumer, the producer and the relay, with what becomes of it: `loading@2` is the second call, `x3` three calls.
HARMS: Final[dict[str, Sequence[str]]] = {
    "worker.Fetch": (
        "raises@3", "raises-after@3", "late@3", "times-out@3", "cancelled@3", "cancelled-after@3", "twice@3", "empty@3", "short@3",
        "corrupt@3", "unknown@3", "not-leader-one@3", "no-topic-one@3", "out-of-range@3", "broken-disk-one@3", "not-allowed@3",
    ),
    "worker.drain": ("raises-after@2", "raises-after@3x2", "raises-oddly@2", "cancelled-after@4"),
    "worker.OffsetFetch": (*_ASKED, *_SILENT, "not-coordinator"),
    "worker.ListOffsets": (*_ASKED, "not-leader-one", "shortx2", "emptyx2", "cancelledx2"),
    "worker.OffsetCommit": (
        "raises@2", "raises-after@2", "late@2", "never@2", "twice@2", "empty@2", "unknown@2", "loading-one@2", "not-coordinator@2",
        "unknown-member@2", "old-generation@2", "rebalancing@2", "not-allowed@2", "group-not-allowed@2",
    ),
    "worker.commit": ("raises-after@3", "never@3", "cancelled@3", "cancelled-after@3"),
    "worker.Heartbeat": (
        "raises", "unknown-member", "old-generation", "rebalancing", "not-coordinator", "cancelled", "unknown", "loading",
        "group-not-allowed",
    ),
    "worker.JoinGroup": ("raises", "raises-after", "late", "unknown-member", "unknown"),
    "worker.SyncGroup": ("raises-after", "rebalancing", "unknown"),
    "worker.FindCoordinator": ("raises", "no-coordinator"),
    "worker.LeaveGroup": ("raises", "unknown-member"),
    "worker.close": ("cancelled-after", "raises-after"),
    "worker.leave": ("cancelled-after", "raises-after"),
    "worker.Produce": ("raises", "raises-after", "late", "twice", "unknown", "few-replicas", "not-leader-one", "no-topic-one", "cancelled"),
    "worker.send": ("raises-after@2", "cancelled@2", "cancelled-after@2"),
    "relay.Fetch": ("raises-after@3", "cancelled@3", "corrupt@3", "out-of-range@3", "short@3", "unknown@3"),
    "relay.drain": ("raises-after@2", "raises-after@3", "raises-oddly@2", "cancelled-after@2"),
    "relay.OffsetFetch": (*_ASKED, *_SILENT, "not-coordinator"),
    "relay.ListOffsets": (*_ASKED, "not-leader-one", "shortx2", "emptyx2", "cancelledx2"),
    "relay.OffsetCommit": (
        "raises", "raises-after", "late", "never", "twice", "empty", "unknown", "loading-one", "not-coordinator", "unknown-member",
        "old-generation", "rebalancing", "not-allowed", "group-not-allowed",
    ),
    "relay.commit": ("raises-after", "never", "cancelled", "cancelled-after"),
    "relay.close": ("cancelled-after", "raises-after"),
    "relay.leave": ("cancelled-after", "raises-after"),
    "relay.Heartbeat": (
        "raises", "unknown-member", "old-generation", "rebalancing", "not-coordinator", "cancelled", "unknown", "loading",
        "group-not-allowed",
    ),
    "relay.JoinGroup": ("raises", "raises-after", "late", "unknown-member", "unknown", "cancelled"),
    "relay.SyncGroup": ("raises-after", "rebalancing", "cancelled-after"),
    "relay.FindCoordinator": ("raises", "no-coordinator", "cancelled"),
    "relay.LeaveGroup": ("raises", "unknown-member"),
    "topics.Metadata": ("cancelled",),
    "topics.DescribeConfigs": ("unknown", "cancelled-after"),
}  # fmt: skip

#: A client that could not leave its group is never asked to close its fetcher.
APART: Final = {"relay.leave": "relay.close", "worker.leave": "worker.close"}

#: The consumer of a loop is closed by its owner, who gets what that raises.
OWNERS: Final = ("worker.close", "worker.leave")

#: The calls before there is anything to consume: they may end the worker, with an error that says why.
AT_START: Final[dict[str, Sequence[str]]] = {
    "topics.Metadata": ("raises", "empty", "short", "late"),
    "topics.DescribeConfigs": ("raises", "empty", "short", "unknown"),
    "worker.JoinGroup": ("cancelled", "cancelled-after"),
    "worker.SyncGroup": ("cancelled", "cancelled-after"),
    "worker.FindCoordinator": ("cancelled",),
}


OF_A_LOOP: Final = {call: whats for call, whats in HARMS.items() if call.startswith("worker.") and call not in OWNERS}


@pytest.fixture(autouse=True)
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


async def suffer(new_world: NewWorld, plans: Sequence[str], join: Join, *, may_end: bool = False) -> None:
    """Let a worker suffer each of `plans`."""
    at_once = 2 if may_end else AT_ONCE  # a start that fails gives its clients a second to leave
    await each(plans, lambda plan: Trial(new_world(), Plan.parse(plan), join, may_end=may_end).run(), at_once=at_once)


@parted(HARMS, 3, apart=APART)
@pytest.mark.slow  # runs workers until each fault of a plan has struck
async def test_whatever_the_client_does_nothing_is_lost_and_the_worker_goes_on(new_world: NewWorld, plans: Sequence[str]) -> None:
    await suffer(new_world, plans, host)


@parted(AT_START, 4)
async def test_a_start_that_fails_says_why_and_the_next_one_goes_on(new_world: NewWorld, plans: Sequence[str]) -> None:
    await suffer(new_world, plans, host, may_end=True)


@parted(OF_A_LOOP, 2)
@pytest.mark.slow  # runs loops until each fault of a plan has struck
async def test_whatever_the_client_does_a_loop_loses_nothing_and_goes_on(new_world: NewWorld, plans: Sequence[str]) -> None:
    await suffer(new_world, plans[:8], loop)
