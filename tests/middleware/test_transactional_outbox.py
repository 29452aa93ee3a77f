"""What a handler under `Transactional` publishes: rows of the outbox in its transaction, for what it has done and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.middleware.test_transactional import Database, make

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.runs.run import Run, Stage

__all__ = ["make"]  # a fixture


class Rows:
    """The rows of one transaction, which become effects of it; counts how often they are written."""

    def __init__(self, outbox: Outbox, connection: list[object]) -> None:
        self._outbox = outbox
        self._connection = connection
        self._added: list[Outgoing] = []

    def add(self, message: Outgoing) -> str:
        if message.topic == self._outbox.too_long_for_a_row:
            raise ConfigurationError("no row can hold this")
        self._added.append(message)
        return message.message_id

    async def flush(self) -> None:
        if self._outbox.fails:
            raise StoreUnavailable("the database does not answer")
        self._outbox.flushes += 1
        self._connection.extend(self._added)


class Outbox:
    """In the database of the handler."""

    too_long_for_a_row = "refused"

    def __init__(self) -> None:
        self.flushes = self.wakes = 0
        self.fails = False

    def writer(self, connection: list[object]) -> Rows:
        return Rows(self, connection)

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def publishing(make: Any, outbox: Outbox) -> Callable[..., tuple[Any, list[Run]]]:
    """A spine whose handler publishes one message for each that it is given, and is then told to `behave`."""

    def made(count: int, behave: Callable[[Batch[Any]], None] = lambda batch: None, *, topic: str = "paid", **options: Any) -> Any:
        entries: list[Run] = []

        async def handle(batch: Batch[Any]) -> None:
            batch.connection.extend(message.raw for message in batch)
            for run in entries:
                if run.first in {message.offset for message in batch}:
                    run.publishes.append(Outgoing(topic, b"x", message_id=f"for-{run.first}"))
            behave(batch)

        spine = make(handle, **options)
        spine.worker = type(spine.worker)(
            **{name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name != "outbox"}, outbox=outbox
        )
        spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=spine.pipeline.steps._store))
        entries += spine.entries(count)
        return spine, entries

    return made


def rows(database: Database) -> list[str]:
    return [effect.message_id for effect in database.effects if isinstance(effect, Outgoing)]


async def test_what_is_published_is_committed_with_the_effects_by_one_statement(
    publishing: Any, database: Database, outbox: Outbox
) -> None:
    spine, entries = publishing(3)
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert (database.begun, outbox.flushes, outbox.wakes) == (1, 1, 1)
    assert rows(database) == ["for-100", "for-101", "for-102"]
    stored = [event for event in spine.sink.durable if event.code is EventCode.OUTBOX_STORED]
    assert [(event.topic, event.dedup_key) for event in stored] == [("paid", "for-100"), ("paid", "for-101"), ("paid", "for-102")]


async def test_a_rollback_leaves_no_row_and_the_halves_have_theirs(publishing: Any, database: Database) -> None:
    def fail_at_101(batch: Batch[Any]) -> None:
        if any(message.offset == 101 for message in batch):
            raise ValueError("poison")

    spine, entries = publishing(4, fail_at_101)
    assert await spine.run(entries) == [Stage.SETTLED] * 4
    assert sorted(rows(database)) == ["for-100", "for-102", "for-103"]


async def test_what_comes_later_or_is_dead_sends_nothing(publishing: Any, database: Database) -> None:
    def rule(batch: Batch[Any]) -> None:
        batch.later(batch[0])
        batch.dead(batch[1], "no")

    spine, entries = publishing(3, rule)
    assert await spine.run(entries) == [Stage.SETTLED] * 3
    assert rows(database) == ["for-102"]


async def test_rows_that_can_not_be_written_leave_the_messages_undone(publishing: Any, database: Database, outbox: Outbox) -> None:
    spine, entries = publishing(2)
    outbox.fails = True
    assert await spine.run(entries) == [Stage.FETCHED] * 2
    assert (database.effects, outbox.wakes, spine.watermark.commit) == ([], 0, 100)
    outbox.fails = False
    spine.clock.now += 10
    assert await spine.run(entries) == [Stage.SETTLED] * 2
    assert rows(database) == ["for-100", "for-101"]


async def test_a_commit_in_doubt_wakes_nobody_and_writes_no_row_twice(publishing: Any, database: Database, outbox: Outbox) -> None:
    spine, entries = publishing(1)
    database.commit_in_doubt = True
    assert await spine.run(entries) == [Stage.FETCHED]
    spine.clock.now += 10
    assert await spine.run(entries) == [Stage.SETTLED]
    assert (rows(database), outbox.wakes) == (["for-100"], 0)


async def test_a_message_that_no_row_can_hold_is_the_handlers_failure(publishing: Any, database: Database) -> None:
    spine, entries = publishing(1, topic=Outbox.too_long_for_a_row)
    assert await spine.run(entries) == [Stage.SETTLED]
    assert (database.effects, spine.sent()) == ([], [("billing.delay.10s", b"v100")])
    assert EventCode.SUCCEEDED not in spine.sink.codes(100)


async def test_without_an_outbox_a_message_is_never_dropped_in_silence(publishing: Any, database: Database) -> None:
    spine, entries = publishing(1)
    spine.worker = type(spine.worker)(
        **{name: getattr(spine.worker, name) for name in spine.worker.__slots__ if name != "outbox"}, outbox=None
    )
    spine.pipeline = Pipeline(spine.agent, spine.worker, partial(Transactions, store=database))
    assert await spine.run(entries) == [Stage.SETTLED]
    assert (database.effects, spine.sent()) == ([], [("billing.delay.10s", b"v100")])
