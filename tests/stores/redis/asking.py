"""What the tests of the Redis store ask with."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from ackwise.middleware.storage.claimstore import Claim, ClaimKey, Complete, Outcome
from ackwise.stores.redis import RedisStore


def keys(count: int, day: int | None = None) -> list[ClaimKey]:
    """New keys."""
    return [ClaimKey(os.urandom(16), day, 1) for _ in range(count)]


def claims(some: Sequence[ClaimKey], token: int = 1) -> list[Claim]:
    """A claim for each."""
    return [Claim(key, token) for key in some]


def completes(some: Sequence[ClaimKey], token: int = 1) -> list[Complete]:
    """A complete for each."""
    return [Complete(key, token, Outcome.OK) for key in some]


@asynccontextmanager
async def opened(store: RedisStore) -> AsyncIterator[RedisStore]:
    """The store, open while the block runs."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait for something of a real process."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
