"""`at_once`: a coroutine that rarely waits for anything, without the timer or the task that it needs where it does."""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def at_once(coroutine: Coroutine[Any, Any, T], otherwise: Callable[[Coroutine[Any, Any, T]], Awaitable[T]]) -> T:
    """Return what `coroutine` returns. If it has to wait, the rest of it is given to `otherwise`, which returns that."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    return await otherwise(_rest(coroutine, waits_for))


async def _rest(begun: Coroutine[Any, Any, T], waits_for: object) -> T:
    return await _going_on(begun, waits_for)


@types.coroutine
def _going_on(begun: Coroutine[Any, Any, T], waits_for: object) -> Generator[object, object, T]:
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001  # it is meant for what has begun
            step = functools.partial(begun.throw, error)
        else:
            step = functools.partial(begun.send, value)
        try:
            waits_for = step()
        except StopIteration as end:
            return cast("T", end.value)
