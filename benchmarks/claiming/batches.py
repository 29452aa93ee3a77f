"""Ackwise's ways to claim and complete: batches in one trip or in two."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from benchmarks.claiming.way import Step

from ackwise.middleware.storage.claimstore import Acquired, Claim, ClaimKey, ClaimStore, Complete, Exchange, ExchangeResult, Outcome


@asynccontextmanager
async def one_trip(make: Callable[[], ClaimStore], size: int) -> AsyncIterator[Step]:
    """Complete a batch and claim the next one in the same exchange, as a worker does that is never idle."""
    store = make()
    await store.open()
    completes: Sequence[Complete] = ()

    async def step() -> int:
        nonlocal completes
        claims = _claims(size)
        completes = _completes(claims, await store.exchange(Exchange(claims, completes)))
        return len(completes)

    yield step
    await store.close()


@asynccontextmanager
async def two_trips(make: Callable[[], ClaimStore], size: int) -> AsyncIterator[Step]:
    """Claim a batch, then complete it."""
    store = make()
    await store.open()

    async def step() -> int:
        claims = _claims(size)
        completes = _completes(claims, await store.exchange(Exchange(claims)))
        await store.exchange(Exchange(completes=completes))
        return len(completes)

    yield step
    await store.close()


def _claims(size: int) -> list[Claim]:
    today = int(time.time() // 86400)
    return [Claim(ClaimKey(os.urandom(16), today, 1), random.getrandbits(62) + 1) for _ in range(size)]


def _completes(claims: Sequence[Claim], result: ExchangeResult) -> list[Complete]:
    """For those that were granted; all are, as nobody asks for a key twice, and who handles less than all is caught."""
    granted = zip(claims, result.claims, strict=True)
    completes = [Complete(key, token, Outcome.OK) for (key, token), answer in granted if isinstance(answer, Acquired)]
    assert len(completes) == len(claims), f"{len(claims) - len(completes)} of {len(claims)} new keys were refused"
    return completes
