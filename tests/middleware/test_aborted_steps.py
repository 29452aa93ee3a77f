"""A transaction that the database ends at any step: the worker goes on, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.middleware.test_offsets import Offsets, Owned
from tests.middleware.test_transactional import Database, bury, write
from tests.tables import each

from ackwise.middleware.errors import TransactionAborted
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactionoffsets import for_sources
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Stage


async def fail(batch: Batch[Any]) -> None:
    raise ValueError("poison")


def undecodable(value: bytes | None) -> object:
    raise ValueError("no JSON")


def by_keys(spine: Any) -> Database:
    database = Database()
    _give(spine, Transactional(database, key=lambda message: message.raw))
    spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
    return database


def by_offsets(spine: Any) -> Database:
    database = Offsets()
    _give(spine, Transactional(database, mode="offsets"))
    spine.pipeline = Pipeline(spine.agent, spine.worker, for_sources(database, "ackwise/0/billing"))
    spine.partition = Owned()
    return database


def _give(spine: Any, policy: Transactional) -> None:
    kept = {name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name not in ("dedup", "leases")}
    spine.worker = type(spine.worker)(**kept, dedup=policy)
    spine.agent = Agent(spine.agent.name, spine.agent.topics, "batch", spine.agent.call, spine.agent.decode)


@each("messages", [1, 3])
@each("mode", [by_keys, by_offsets])
@each("handler", [write, fail, bury])
async def test_whatever_step_is_aborted_the_worker_goes_on_and_settles_everything(
    make_spine: Any, mode: Callable[[Any], Database], handler: Any, messages: int
) -> None:
    aborted = 0
    while True:
        spine = make_spine(handler)
        database = mode(spine)
        if not await settles(spine, database, spine.entries(messages), abort_at=aborted):
            break
        if handler is write:
            assert len(database.effects) + len(spine.sent()) == messages, f"step {aborted}"
        else:
            assert database.effects == [], f"step {aborted}"
            assert len({copy.value for copy in spine.publisher.sent}) == messages, f"step {aborted}"
        aborted += 1
    assert aborted >= 3


async def test_what_could_not_be_decoded_is_passed_though_a_step_of_it_was_aborted(make_spine: Any) -> None:
    aborted = 0
    while True:
        spine = make_spine(write, decode=undecodable)
        database = by_offsets(spine)
        if not await settles(spine, database, spine.entries(2), abort_at=aborted):
            break
        assert len(spine.sent()) == 2
        aborted += 1
    assert aborted >= 3


async def test_a_handler_is_not_blamed_for_a_transaction_that_was_aborted_before_it_ran(make_spine: Any) -> None:
    spine = make_spine(write)
    database = by_keys(spine)
    entry = spine.entry(100)
    database.fail = aborting(1)
    assert await spine.run([entry]) == [Stage.FETCHED]
    assert entry.not_before > spine.clock.now, "it comes up again after a back-off"
    assert spine.sink.codes(100) == []
    spine.clock.now = entry.not_before
    assert await spine.run([entry]) == [Stage.SETTLED]
    assert (database.effects, spine.sent()) == ([b"v100"], [])


def aborting(at: int) -> Callable[[str], bool]:
    """Abort the step of this number, and no other."""
    steps = iter(range(1000))

    def fails(step: str) -> bool:
        if next(steps) == at:
            raise TransactionAborted(f"the transaction is gone at {step}")
        return False

    return fails


async def settles(spine: Any, database: Database, entries: list[Any], *, abort_at: int) -> bool:
    """Run `entries` until they are settled; returns whether there was a step of that number."""
    steps = 0
    fails = aborting(abort_at)

    def counted(step: str) -> bool:
        nonlocal steps
        steps += 1
        return fails(step)

    database.fail = counted
    for _ in range(8):
        if all(stage is Stage.SETTLED for stage in await spine.run(entries)):
            return steps > abort_at
        spine.clock.now += 10
    raise AssertionError(f"nothing goes on after step {abort_at} was aborted")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "ackwise")
