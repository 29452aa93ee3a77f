"""A real Kafka that takes short sessions, and a scenario on it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.failures.calls import install
from tests.failures.world import World
from tests.servers import kafka_or_skip

from ackwise.plugin.local.broker import LocalKafka

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_with_short_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A worker that died is missed after a second here, not after the six that brokers insist on by default."""
    properties = {"group.min.session.timeout.ms": "200", "log.index.size.max.bytes": "65536"}
    with kafka_or_skip(tmp_path_factory.mktemp("kafka-failures"), properties) as broker:
        yield broker


@pytest.fixture
def new_world(kafka_with_short_sessions: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes scenarios: `new_world(**fields)` of `World`."""
    install(monkeypatch)
    worlds: list[World] = []

    def make(**fields: Any) -> World:
        worlds.append(World(kafka_with_short_sessions.bootstrap, tmp_path, f"g{next(_numbers)}", **fields))
        return worlds[-1]

    yield make
    for world in worlds:
        world.ledger.close()
