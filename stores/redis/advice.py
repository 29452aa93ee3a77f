"""Advice on the settings of a Redis for claims, from its INFO and CONFIG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ackwise.stores.redis.layout import Layout

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
