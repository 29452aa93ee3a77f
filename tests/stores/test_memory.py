"""The memory store passes the suite that every store passes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores.cases import case

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.conformance import Features, StoreConformance
from ackwise.stores.memory import MemoryStore, from_url


class TestMemoryStore(StoreConformance):
    features = Features(owners=True)

    def make(self, place: Path, clock: Callable[[], float]) -> MemoryStore:
        return MemoryStore(clock=clock)


def test_the_url_makes_a_new_store() -> None:
    assert isinstance(from_url("memory://"), MemoryStore)


def test_a_url_that_says_more_is_refused() -> None:
    for url in ["memory://host", "memory:///path", "memory://?lease=3", "memory://[x", "sqlite:///x"]:
        with case(url), pytest.raises(ConfigurationError, match="memory://"):
            from_url(url)
