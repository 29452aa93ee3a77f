"""How many bytes of its memory Redis needs for a message that is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.claiming import batches, classic
from redis.asyncio import Redis

from ackwise.stores.redis import RedisStore

_BATCH: Final = 500


async def bytes_per_key(url: str, keys: int) -> dict[str, float]:
    """By layout, with `keys` of them, and of a key that was written by hand; empties the database before each."""
    found: dict[str, float] = {}
    async with classic.redis(url, 1) as step:
        found["classic"] = await _grown(url, keys, step)
    for layout in ("plain", "compact"):
        await _emptied(url)
        async with batches.two_trips(lambda layout=layout: RedisStore(url, layout=layout, keys=keys), _BATCH) as step:  # type: ignore[misc]
            found[layout] = await _grown(url, keys, step)
    return found


async def _grown(url: str, keys: int, step: Callable[[], Awaitable[int]]) -> float:
    before, done = await _used(url), 0
    while done < keys:
        done += await step()
    return (await _used(url) - before) / done


async def _emptied(url: str) -> None:
    async with Redis.from_url(url) as client:
        await client.flushdb()


async def _used(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("memory"))["used_memory"])
