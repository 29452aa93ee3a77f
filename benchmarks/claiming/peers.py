"""Other libraries that run a function once per key, as their documentation uses them: a message at a time."""

# They live in their own environment.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.claiming.way import Step


@asynccontextmanager
async def powertools(url: str) -> AsyncIterator[Step]:
    """The decorator of AWS Lambda Powertools, with records in Redis; it is synchronous, so it has the process to itself."""
    os.environ.setdefault("AWS_LAMBDA_FUNCTION_NAME", "benchmark")
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
    from redis import Redis

    client = Redis.from_url(url, decode_responses=True)
    config = IdempotencyConfig(expires_after_seconds=86400)

    def handle(message: dict[str, str]) -> None:
        return None

    store = CachePersistenceLayer(client=client)
    once = idempotent_function(handle, data_keyword_argument="message", persistence_store=store, config=config)

    async def step() -> int:
        once(message={"id": os.urandom(16).hex()})
        return 1

    yield step
    client.close()


@asynccontextmanager
async def idemkit_redis(url: str) -> AsyncIterator[Step]:
    """idemkit's consumer on Redis."""
    from idemkit import RedisBackend

    async with RedisBackend.from_url(url) as backend:
        yield _consuming(backend)


@asynccontextmanager
async def idemkit_postgres(url: str) -> AsyncIterator[Step]:
    """idemkit's consumer on PostgreSQL."""
    from idemkit import PostgresBackend
    from idemkit.backends.postgres import init_pg

    await init_pg(url)
    async with PostgresBackend.from_url(url) as backend:
        yield _consuming(backend)


def _consuming(backend: Any) -> Step:
    from idemkit import ConsumerAction, IdempotentConsumer, QueueConfig

    config = QueueConfig(dedup_id=lambda message: message, visibility_timeout_seconds=30, scope=lambda message: "benchmark")
    consumer = IdempotentConsumer(backend=backend, config=config)

    async def handle(message: str) -> None:
        return None

    consumer.handle(handle)

    async def step() -> int:
        result = await consumer.dispatch(os.urandom(16).hex())
        assert result.action is ConsumerAction.ACK, result
        return 1

    return step
