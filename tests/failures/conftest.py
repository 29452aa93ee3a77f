"""A scenario on a real Kafka for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.failures.calls import install
from tests.failures.world import World
from tests.servers import new_name
from tests.shared import SharedKafka


@pytest.fixture
def new_world(kafka: SharedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes scenarios: `new_world(**fields)` of `World`."""
    install(monkeypatch)
    worlds: list[World] = []

    def make(**fields: Any) -> World:
        worlds.append(World(kafka.bootstrap, tmp_path, new_name("g"), **{"levels": ("200ms", "400ms"), **fields}))
        return worlds[-1]

    yield make
    for world in worlds:
        world.ledger.close()
