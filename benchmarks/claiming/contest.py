"""`Contest`: who is measured against whom on one database, and the rounds in which they are.

    python -m benchmarks.claiming.contest --database redis --url redis://127.0.0.1:6379/0 --rounds 5 --seconds 0.5

Runs in the environment that has the peers, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.claiming import batches, booking, classic, peers
from benchmarks.claiming.footprint import bytes_per_key
from benchmarks.claiming.way import BASE, Step, Turn, Way, take
from redis.asyncio import Redis

from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.stores.memory import MemoryStore
from ackwise.stores.mysql import MySQLInbox, MySQLStore
from ackwise.stores.postgres import PostgresInbox, PostgresStore
from ackwise.stores.redis import RedisStore
from ackwise.stores.sqlite import SQLiteStore

SIZES: Final = (1, 10, 100, 500)
#: By module, how the names of its ways start.
PEERS: Final = {"aws_lambda_powertools": "AWS Powertools", "idemkit": "idemkit"}


def _redis(url: str) -> list[Way]:
    compact = partial(RedisStore, url, layout="compact")
    return [
        *_remote(partial(classic.redis, url), partial(RedisStore, url)),
        *(Way(f"batch of {size}, one trip, compact", partial(batches.one_trip, compact, size)) for size in SIZES),
        Way("AWS Powertools", partial(peers.powertools, url)),
        Way("idemkit", partial(peers.idemkit_redis, url)),
        Way("idemkit, 20 tasks", partial(peers.idemkit_redis, url), 20),
    ]


def _postgres(url: str) -> list[Way]:
    return [
        *_remote(partial(classic.postgres, url), partial(PostgresStore, url)),
        Way("idemkit", partial(peers.idemkit_postgres, url)),
        Way("idemkit, 20 tasks", partial(peers.idemkit_postgres, url), 20),
    ]


def _mariadb(url: str) -> list[Way]:
    return _remote(partial(classic.mariadb, url), partial(MySQLStore, url))


def _sqlite(url: str) -> list[Way]:
    ways = _local(partial(classic.sqlite, url), partial(SQLiteStore, url.removeprefix("sqlite:///")))
    return [*ways, Way("classic, blocking the event loop", partial(classic.sqlite_blocking, url))]


def _memory(url: str) -> list[Way]:
    return _local(partial(classic.memory, url), MemoryStore)


def _postgres_once(url: str) -> list[Way]:
    inbox = partial(PostgresInbox, url)
    return [
        Way(BASE, partial(booking.postgres_per_message, url)),
        Way("update alone, nothing remembered", partial(booking.postgres_alone, url)),
        *(Way(f"inbox, batch of {size}", partial(booking.inbox, inbox, booking.book_postgres, size)) for size in SIZES),
        *(Way(f"offsets, batch of {size}", partial(booking.offsets, inbox, booking.book_postgres, size)) for size in SIZES),
    ]


def _mariadb_once(url: str) -> list[Way]:
    inbox = partial(MySQLInbox, url)
    return [
        Way(BASE, partial(booking.mariadb_per_message, url)),
        *(Way(f"inbox, batch of {size}", partial(booking.inbox, inbox, booking.book_mariadb, size)) for size in SIZES),
    ]


def _local(by_hand: Callable[[int], AbstractAsyncContextManager[Step]], store: Callable[[], ClaimStore]) -> list[Way]:
    return [
        Way(BASE, partial(by_hand, 1)),
        *(Way(f"batch of {size}, one trip", partial(batches.one_trip, store, size)) for size in SIZES),
        *(Way(f"batch of {size}, two trips", partial(batches.two_trips, store, size)) for size in SIZES),
    ]


def _remote(by_hand: Callable[[int], AbstractAsyncContextManager[Step]], store: Callable[[], ClaimStore]) -> list[Way]:
    return [*_local(by_hand, store), *(Way(f"classic, {tasks} tasks", partial(by_hand, tasks), tasks) for tasks in SIZES[1:])]


#: By database: what is measured there; the first one is what the others are compared with.
CONTESTS: Final = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "postgres-once": _postgres_once,
    "mariadb-once": _mariadb_once,
}


async def _play(ways: Sequence[Way], rounds: int, seconds: float, forget: Callable[[], Awaitable[None]]) -> dict[str, list[Turn]]:
    """Every way in every round; the order moves on by one each time, so that nobody always follows the same.

    The first way, which all others are compared with, has three turns in each round, and their mean counts.
    """
    base, *others = ways
    found: dict[str, list[Turn]] = {way.name: [] for way in ways}
    for number in range(rounds):
        first = number % max(1, len(others))
        line = deque((*others[first:], *others[:first]))
        bases: list[Turn] = []
        for stretch in (len(line) // 3, len(line) // 3, len(line)):
            await forget()
            bases.append(await take(base, seconds))
            for way in [line.popleft() for _ in range(min(stretch, len(line)))]:
                await forget()
                found[way.name].append(await take(way, seconds))
        found[base.name].append(Turn(*(statistics.mean(column) for column in zip(*bases, strict=True))))
    return found


def able(ways: Sequence[Way], peers: Mapping[str, str] = PEERS) -> tuple[list[Way], list[str]]:
    """Those whose library is here, and a sentence for each that is not."""
    missing = [name for module, name in peers.items() if find_spec(module) is None]
    left_out = [f"{name} is left out: {sys.executable} does not have it; `make bench` installs it" for name in missing]
    return [way for way in ways if not way.name.startswith(tuple(missing))], left_out


async def _contest(database: str, url: str, rounds: int, seconds: float, names: Sequence[str], keys: int) -> dict[str, Any]:
    async def forget() -> None:
        """Empty Redis, whose memory would fill up; the others have a disk for what they keep."""
        if database == "redis":
            async with Redis.from_url(url) as client:
                await client.flushdb()

    if database.endswith("-once"):
        await booking.prepare(url)
    base, *others = CONTESTS[database](url)
    ways, left_out = able([base, *(way for way in others if not names or way.name in names)])
    turns = await _play(ways, rounds, seconds, forget)
    await forget()
    return {"turns": turns, "left_out": left_out, "bytes": await bytes_per_key(url, keys) if keys else {}}


def main() -> None:
    """One contest, as the command line says."""
    parser = argparse.ArgumentParser(description="A contest of benchmarks.stores, which starts it.")
    parser.add_argument("--database", choices=CONTESTS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="that a turn lasts")
    parser.add_argument("--ways", default="", help="who takes part, with semicolons between; all unless given")
    parser.add_argument("--keys", type=int, default=0, help="whose bytes are counted, in Redis")
    options = parser.parse_args()
    names = [name.strip() for name in options.ways.split(";") if name.strip()]
    found = asyncio.run(_contest(options.database, options.url, options.rounds, options.seconds, names, options.keys))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
