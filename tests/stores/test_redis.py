"""The Redis store passes the suite that every store passes, on one server and on a cluster, plain and compact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.databases.server import Server

from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.redis import RedisStore, question
from ackwise.stores.testing import Features, StoreConformance

REAL_TIME = Features(shared=True, persistent=True, injected_clock=False, lease=0.3, retention=1.0)


def namespace_of(place: Path) -> str:
    """A namespace for each test alone."""
    return hashlib.blake2b(str(place).encode(), digest_size=8).hexdigest()


class TestRedisStore(StoreConformance):
    features = REAL_TIME

    @pytest.fixture(autouse=True)
    def on_the_server(self, redis: Server) -> None:
        self.port = redis.port

    def make(self, place: Path, clock: Callable[[], float]) -> RedisStore:
        return RedisStore(f"redis://127.0.0.1:{self.port}", namespace=namespace_of(place))


class TestRedisClusterStore(StoreConformance):
    features = REAL_TIME

    @pytest.fixture(autouse=True)
    def on_the_cluster(self, cluster: Sequence[Server]) -> None:
        self.port = cluster[0].port

    def make(self, place: Path, clock: Callable[[], float]) -> RedisStore:
        return RedisStore(f"redis+cluster://127.0.0.1:{self.port}", namespace=namespace_of(place))


class OnAnotherClock(RedisStore):
    """Asks a script that reads the time from a key, where this puts the time of `clock` before each exchange."""

    SCRIPT = question.SCRIPT.replace(
        "redis.call('TIME')", "{math.floor(redis.call('GET', 'clock') / 1000), redis.call('GET', 'clock') % 1000 * 1000}"
    )

    def __init__(self, port: int, clock: Callable[[], float], namespace: str, layout: str) -> None:
        super().__init__(f"redis://127.0.0.1:{port}", namespace=namespace, layout=layout, retention=7200.0)
        self.clock = clock

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if self._connection is not None:
            await self._connection.command("SET", "clock", str(round(self.clock() * 1000)))
        return await super().exchange(exchange)


class TestPlainRedisStoreOverHours(StoreConformance):
    features = Features(shared=True, persistent=True, retention=7200.0)
    layout = "plain"

    @pytest.fixture(autouse=True)
    def on_the_server(self, redis: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        assert question.SCRIPT != OnAnotherClock.SCRIPT
        monkeypatch.setattr(question, "SCRIPT", OnAnotherClock.SCRIPT)
        monkeypatch.setattr(question, "SCRIPT_NAME", hashlib.sha1(OnAnotherClock.SCRIPT.encode(), usedforsecurity=False).hexdigest())
        self.port = redis.port

    def make(self, place: Path, clock: Callable[[], float]) -> RedisStore:
        return OnAnotherClock(self.port, clock, namespace_of(place), self.layout)


class TestCompactRedisStoreOverHours(TestPlainRedisStoreOverHours):
    layout = "compact"
