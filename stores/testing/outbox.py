"""`OutboxConformance`: the test suite that every `OutboxStore` passes, for those here and for yours.

    class TestMyOutbox(OutboxConformance):
        def make(self, place): ...
        async def prepare(self, place): ...
        def connect(self, place): ...
        def begin(self, connection): ...
        def savepoint(self, connection): ...
        async def write(self, connection, effect): ...
        async def effects(self, place): ...
        async def age(self, place, seconds): ...

It needs pytest and a real database.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from ackwise.middleware.outbox import OutboxStore
from ackwise.stores.testing.outboxfailing import OutboxFailing
from ackwise.stores.testing.outboxkeeping import OutboxKeeping
from ackwise.stores.testing.outboxowners import OutboxOwners
from ackwise.stores.testing.outboxpreparing import OutboxPreparing
from ackwise.stores.testing.outboxscene import OutboxFeatures, OutboxScene
from ackwise.stores.testing.outboxsending import OutboxSending
from ackwise.stores.testing.outboxwriting import OutboxWriting

__all__ = ["BusinessConformance", "OutboxConformance", "OutboxFeatures"]


class BusinessConformance(OutboxWriting, OutboxPreparing, abc.ABC):
    """The side of the business alone, for another way to write into an outbox that passes the whole suite."""

    features = OutboxFeatures()

    @abc.abstractmethod
    def make(self, place: Path) -> OutboxStore:
        """An outbox that is not open yet; each call with the same `place`, a folder of this test, names the same tables, which only
        this test uses. What was rolled back is not kept by its cleanup."""

    @abc.abstractmethod
    async def prepare(self, place: Path) -> None:
        """Make an empty table for effects, which are short texts and unique in it."""

    @abc.abstractmethod
    def connect(self, place: Path) -> AbstractAsyncContextManager[Any]:
        """A connection of the business, no transaction open."""

    @abc.abstractmethod
    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A transaction as the business itself begins one: it commits at the end, and rolls back if the block raises."""

    @abc.abstractmethod
    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A savepoint as the business itself makes one: it is released at the end, and rolled back if the block raises."""

    @abc.abstractmethod
    async def write(self, connection: Any, effect: str) -> None:
        """Write an effect through a connection of the business."""

    @abc.abstractmethod
    async def effects(self, place: Path) -> list[str]:
        """What is in the table, as another connection sees it."""

    @abc.abstractmethod
    async def age(self, place: Path, seconds: float) -> None:
        """Make all rows and barriers older by `seconds`."""

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        """As `make`, with `keep_sent`, `keep_parked` or `blank`. An outbox without these settings leaves it out, and `rows` too."""
        pytest.skip("this outbox has no settings for what stays of its rows")

    async def rows(self, place: Path) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]:
        """All rows by id: state, message id, key, value and packed headers, as another connection sees them."""
        raise NotImplementedError("a suite that has make_keeping needs rows as well: return what is in the table, by id")

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[OutboxScene]:
        scene = OutboxScene(self, tmp_path)
        yield scene
        scene.end()


class OutboxConformance(OutboxSending, OutboxFailing, OutboxOwners, OutboxKeeping, BusinessConformance):
    """Derive a class whose name starts with `Test`."""
