"""The step from a command into asyncio, which is loaded once a command runs: a help needs no event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["wait_for"]

T = TypeVar("T")


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `coroutine` returns, run in an event loop of its own."""
    import asyncio

    return asyncio.run(coroutine)
