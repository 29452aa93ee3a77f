"""The URL of a Redis store, and its options."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.redis.claims import RedisStore
from ackwise.stores.urls import may_hold_an_at_sign

_OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "timeout": (float, "seconds, such as timeout=2.5"),
    "namespace": (str, "a name"),
    "layout": (str, "plain or compact"),
    "retention": (float, "seconds, such as retention=86400"),
    "keys": (int, "a number, such as keys=5000000"),
    "buckets": (int, "a number, such as buckets=16"),
    "wait": (int, "a number of replicas, such as wait=1"),
    "wait_timeout": (float, "seconds, such as wait_timeout=0.5"),
    "ca": (str, "a path"),
    "cert": (str, "a path"),
    "key": (str, "a path"),
}
_TEXTS = ("namespace", "ca", "cert", "key")


def from_url(url: str) -> RedisStore:
    """Return the store that `redis://user:password@host:6379/0` names; see `RedisStore` for the other schemes and the options.

    Options follow as a query: `?timeout=2&layout=compact`. Raises `ConfigurationError`, which never repeats user or password.
    """
    address, _, query = url.partition("?")
    if "@" in query and not may_hold_an_at_sign(query, address, _OPTIONS, _TEXTS):
        raise ConfigurationError(
            "the URL of the Redis store has an @ after a question mark; "
            "write a question mark in a password as %3F, and an @ in an option as %40"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(_OPTIONS)}"
            raise ConfigurationError(f"the Redis store has no option {name}; {advice}")
        convert, wanted = _OPTIONS[name]
        try:
            options[name] = convert(value)
        except ValueError:
            raise ConfigurationError(f"{name} is {value!r} in the URL of the Redis store; give {wanted}") from None
    return RedisStore(address, **options)
