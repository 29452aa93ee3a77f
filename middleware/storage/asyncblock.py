"""`asynchronous_block`: an asynchronous context manager that says so where it is entered by a plain `with`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from ackwise.middleware.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")


class AsynchronousBlock(AbstractAsyncContextManager[T]):
    """The block of `function`. A plain `with` raises `ConfigurationError`."""

    def __init__(self, block: AbstractAsyncContextManager[T], function: str) -> None:
        self._block, self._function = block, function

    async def __aenter__(self) -> T:
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # type checkers refuse it by themselves

        def __enter__(self) -> NoReturn:
            raise ConfigurationError(f"{self._function} was entered by a plain `with`; write `async with`, inside of an `async def`")

        def __exit__(self, *raised: object) -> None:
            """Never called; Python looks for it before it calls `__enter__`."""


def asynchronous_block(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AsynchronousBlock[T]]:
    """As `contextlib.asynccontextmanager`, and a plain `with` raises an error that says what to write."""
    made = asynccontextmanager(function)

    @wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> AsynchronousBlock[T]:
        return AsynchronousBlock(made(*args, **kwargs), f"{function.__name__}(…)")

    return block
