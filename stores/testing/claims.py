"""`StoreConformance`: the test suite that every claim store passes, for the stores here and for yours.

A store of your own is tested by these lines (with pytest and hypothesis installed):

    from ackwise.stores.testing import Features, StoreConformance

    class TestEtcdStore(StoreConformance):
        features = Features(shared=True, persistent=True, injected_clock=False, lease=0.5, retention=1.5)

        def make(self, place, clock):
            return EtcdStore("http://localhost:2379")

Every test asks single keys, and asks the same in columns (`ackwise.middleware.columns`).
Put `pytest.register_assert_rewrite("ackwise.stores.testing")` into your `conftest.py` to see both sides of what fails.
Keys are random, so runs may share a server. The rules behind the tests are in `docs/store-protocol.md`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ackwise.middleware.store import ClaimStore
from ackwise.stores.testing.columns import Columns
from ackwise.stores.testing.exchanges import Exchanges, Histories
from ackwise.stores.testing.granting import Granting
from ackwise.stores.testing.owners import Owners
from ackwise.stores.testing.scene import Clock, Features, Scene

__all__ = ["Clock", "Features", "Scene", "StoreConformance"]


class StoreConformance(Granting, Exchanges, Columns, Owners, Histories, abc.ABC):
    """Derive a class whose name starts with `Test`, say what `make` makes and which `features` it has."""

    features = Features()
    scenes: ClassVar[type[Scene]] = Scene

    @abc.abstractmethod
    def make(self, place: Path, clock: Callable[[], float]) -> ClaimStore:
        """A store that is not open yet. `place` is a folder of this test alone; each call names the same state in it."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[Scene]:
        scene = self.scenes(self.make, self.features, tmp_path)
        yield scene
        scene.end()

    @pytest.fixture
    def columnar(self, tmp_path: Path) -> Iterator[Scene]:
        scene = self.scenes(self.make, self.features, tmp_path, shape="columns")
        yield scene
        scene.end()
