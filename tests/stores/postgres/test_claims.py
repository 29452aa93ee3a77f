"""The PostgreSQL store passes the suite that every store passes, and bears what only a server can do to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.databases.postgres import USER
from tests.databases.server import Endpoint
from tests.shared import SharedServer

from ackwise.middleware.storage.claimstore import (
    Claim,
    ClaimKey,
    Exchange,
    ExchangeResult,
)
from ackwise.stores.conformance import Clock, Features, Scene, StoreConformance
from ackwise.stores.postgres import PostgresStore

TODAY = int(time.time() // 86400)


def url_of(server: Endpoint, database: str = "postgres", user: str = USER) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(asked: Sequence[ClaimKey], token: int = 1) -> list[Claim]:
    return [Claim(key, token) for key in asked]


class TestPostgresStore(StoreConformance):
    features = Features(shared=True, persistent=True, injected_clock=False, owners=True, lease=0.8, retention=2.4)

    @pytest.fixture(autouse=True)
    def _on(self, postgres: SharedServer) -> None:
        self.server = postgres

    def make(self, place: Path, clock: Callable[[], float]) -> PostgresStore:
        return PostgresStore(url_of(self.server))


class AgedPostgresStore(PostgresStore):
    """For PostgreSQL's clock to go on, all records are made older by what the test's clock went on."""

    def __init__(self, url: str, prefix: str, clock: Callable[[], float], seen: list[float]) -> None:
        super().__init__(url, prefix=prefix)
        self._clock, self._seen, self._prefix = clock, seen, prefix

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        if (passed := self._clock() - self._seen[-1]) and self._connections.pool:
            self._seen.append(self._clock())
            for table in ("claims", "daily_claims"):
                older = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in ("leased_until", "kept_until"))
                await self._connections.pool.execute(f"UPDATE {self._prefix}{table} SET {older}", passed)
        return await super().exchange(exchange)


class DatedScene(Scene):
    """Every key has a day, unless the test says otherwise."""

    def key(self, attempt: int = 1, day: int | None = TODAY) -> ClaimKey:
        return super().key(attempt, day)


@pytest.mark.nightly
class TestPostgresStoreOfKeysWithADay(StoreConformance):
    features = Features(shared=True, persistent=True, owners=True, tolerance=10.0)
    scenes = DatedScene

    @pytest.fixture(autouse=True)
    def on_the_server(self, postgres: SharedServer) -> None:
        self.url, self.prefix, self.seen = url_of(postgres), f"t{os.urandom(4).hex()}_", [Clock()()]

    def make(self, place: Path, clock: Callable[[], float]) -> PostgresStore:
        return AgedPostgresStore(self.url, self.prefix, clock, self.seen)
