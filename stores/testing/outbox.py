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

from collections.abc import Iterator
from pathlib import Path

import pytest

from ackwise.stores.testing.outboxfailing import OutboxFailing
from ackwise.stores.testing.outboxpreparing import OutboxPreparing
from ackwise.stores.testing.outboxscene import Business, OutboxFeatures, OutboxScene
from ackwise.stores.testing.outboxsending import OutboxSending
from ackwise.stores.testing.outboxwriting import OutboxWriting

__all__ = ["BusinessConformance", "OutboxConformance", "OutboxFeatures"]


class BusinessConformance(OutboxWriting, OutboxPreparing, Business):
    """The side of the business alone, for another way to write into an outbox that passes the whole suite."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[OutboxScene]:
        scene = OutboxScene(self, tmp_path)
        yield scene
        scene.end()


class OutboxConformance(OutboxSending, OutboxFailing, BusinessConformance):
    """Derive a class whose name starts with `Test`."""
