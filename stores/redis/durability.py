"""Checks that a Redis keeps claims: advice from INFO and CONFIG, and `Memory`, its own key with the time since which Redis remembers.

A fail-over, a flush or a start from a snapshot loses finished claims without an error. `Memory` reports that its key is gone or older.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from ackwise.middleware.log import Log
from ackwise.stores.redis.script import Layout

_OLDEST = (6, 2)
_LISTPACK = 128


def advice(info: Mapping[str, Any], config: Mapping[str, str] | None, layout: Layout, replicas: int) -> list[str]:
    """Half sentences, each with what to do, from INFO and CONFIG GET (`None` where that is not allowed) of a primary."""
    found = [_version(info), _role(info), _eviction(info), _durability(info, config), _replicas(info, replicas), _pages(config, layout)]
    return [sentence for sentence in found if sentence is not None]


def _version(info: Mapping[str, Any]) -> str | None:
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return f"it is Redis {version}; {'.'.join(map(str, _OLDEST))} or newer is needed" if numbers < _OLDEST else None


def _role(info: Mapping[str, Any]) -> str | None:
    return "it is a replica, which takes no claims; name the primary" if info.get("role") == "slave" else None


def _eviction(info: Mapping[str, Any]) -> str | None:
    policy = info.get("maxmemory_policy")
    if policy == "noeviction":
        return None
    return f"maxmemory-policy is {policy}, so when memory is full it forgets what was done; set it to noeviction"


def _durability(info: Mapping[str, Any], config: Mapping[str, str] | None) -> str | None:
    if not info.get("aof_enabled"):
        return "it keeps no append-only file, so a restart forgets what was done since the last snapshot; set appendonly yes"
    if config is not None and config.get("appendfsync") == "no":
        return "appendfsync is no, so a crash of the host may forget half a minute; set it to everysec"
    return None


def _replicas(info: Mapping[str, Any], replicas: int) -> str | None:
    connected = int(info.get("connected_slaves", 0))
    if connected >= replicas:
        return None
    return f"wait={replicas}, and {connected} replicas are connected, so every exchange fails; connect them, or lower wait"


def _pages(config: Mapping[str, str] | None, layout: Layout) -> str | None:
    if not layout.compact:
        return None
    if config is None:
        return f"its settings may not be read; make sure that hash-max-listpack-entries is {_LISTPACK} or more"
    entries = int(config.get("hash-max-listpack-entries", config.get("hash-max-ziplist-entries", _LISTPACK)))
    if entries >= _LISTPACK:
        return None
    return f"hash-max-listpack-entries is {entries}, which makes compact records three times as large; set it to {_LISTPACK}"


log = Log()

#: Seconds between two looks.
_EVERY: Final = 10.0

#: Seconds that the clocks of workers may differ by; a memory that is older by more was put back.
_TOLERANCE: Final = 30.0


class Since(NamedTuple):
    """The value of the key, in seconds since 1970."""

    born: int
    """When it was first written."""
    seen: int
    """When a worker last found it there."""

    def __str__(self) -> str:
        return f"{self.born} {self.seen}"

    @classmethod
    def of(cls, found: bytes | None) -> Since | None:
        """Return the value read, if it is valid."""
        words = (found or b"").split()
        return cls(*map(int, words)) if len(words) == 2 and all(word.isdigit() for word in words) else None


def judge(found: Since | None, known: Since | None, now: float) -> tuple[Since, int | None]:
    """Return the value to write, and the time since which finished keys are forgotten, if any; `known` is this process's last value."""
    if found is None:
        return Since(int(now), int(now)), None if known is None else known.born
    written = found._replace(seen=max(found.seen, int(now)))
    if known is not None and found.born > known.born:
        return written, known.born
    if known is not None and found.seen < known.seen - _TOLERANCE:
        return written, found.seen
    return written, None


class Memory:
    """The memory of one namespace, as this process knows it."""

    def __init__(self, key: bytes, where: str, clock: Callable[[], float] = time.time) -> None:
        self._key, self._where, self._clock = key, where, clock
        self._known: Since | None = None
        self._looked_at: float | None = None

    def is_due(self) -> bool:
        """Return True if the next check is due."""
        return self._looked_at is None or abs(self._clock() - self._looked_at) >= _EVERY

    async def look(self, command: Callable[..., Awaitable[Any]]) -> bool:
        """Check the key and refresh it; log its loss. Return True if it was there."""
        now = self._looked_at = self._clock()
        before = self._known
        written, since = judge(Since.of(await command("GET", self._key)), before, now)
        await command("SET", self._key, str(written))
        self._known = written
        if since is None or before is None:
            return True
        log.warning(
            "Redis lost finished keys",
            server=self._where,
            since=_told(since),
            last_seen=_told(before.seen),
        )
        return False


def _told(instant: int) -> str:
    return datetime.datetime.fromtimestamp(instant, datetime.UTC).isoformat()
