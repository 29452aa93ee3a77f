"""Lifespan: what is open while a worker runs, such as a pool of connections; handlers get it by type.

    entered, in order → every handler's resources are found → the worker runs and drains → left, the last one first

All of it happens in one task, since what is entered in a task often has to be left in it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.usercode import class_name, where_raised

log = Log()

Lifespan = Callable[[], AbstractAsyncContextManager[object]] | Callable[[], AsyncIterator[object]]
"""An `async def` that yields once, or a function that returns an async context manager."""

#: The resources of each handler in the worker that this task belongs to.
_FOUND: Final[ContextVar[Mapping[WithResources, Mapping[str, object]]]] = ContextVar("ackwise resources")


class StoppedWhileStarting(AckwiseError):
    """It was asked to stop before anything had started."""


class WithResources:
    """Calls the handler `function` with its message and with what lifespans yield; `wanted` has the type of each such parameter."""

    def __init__(self, function: Callable[..., Any], name: str, wanted: Mapping[str, type]) -> None:
        self.__wrapped__ = function
        self.name = name
        self.wanted = wanted

    def __call__(self, argument: Any) -> Any:
        return self.__wrapped__(argument, **_FOUND.get()[self])

    def among(self, yielded: Sequence[object]) -> dict[str, object]:
        """The resource for each parameter. Raises `ConfigurationError` where there is none, or more than one that fits as well."""
        return {parameter: self._one(parameter, kind, yielded) for parameter, kind in self.wanted.items()}

    def _one(self, parameter: str, kind: type, yielded: Sequence[object]) -> object:
        fitting = [resource for resource in yielded if isinstance(resource, kind)]
        exact = [resource for resource in fitting if type(resource) is kind]
        chosen = exact if len(exact) == 1 else fitting
        if len(chosen) == 1:
            return chosen[0]
        wants = f"handler {self.name!r} takes {parameter}: {kind.__qualname__}"
        if chosen:
            raise ConfigurationError(f"{wants}, and lifespans yield {len(chosen)} of them; give each its own class, or yield one")
        known = ", ".join(sorted({type(resource).__qualname__ for resource in yielded})) or "nothing"
        raise ConfigurationError(f"{wants}, and no lifespan yields one (they yield {known}); yield it from a function under @app.lifespan")


class Lifespans:
    """The lifespans of an app, and the handlers that take what these yield."""

    def __init__(self) -> None:
        self._lifespans: list[tuple[str, Callable[[], AbstractAsyncContextManager[object]]]] = []
        self.handlers: list[WithResources] = []

    def add(self, function: Lifespan) -> None:
        """Take a lifespan. Raises `ConfigurationError` for what is none."""
        name = getattr(function, "__name__", type(function).__name__)
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(f"@app.lifespan takes a function, and was given {function!r}; write `async def` with one `yield`")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(f"lifespan {name!r} is no async generator; write `async def {name}():` with one `yield`")
        try:
            inspect.signature(function).bind()
        except TypeError:
            raise ConfigurationError(f"lifespan {name!r} has parameters, and is called with none; give them defaults") from None
        made: Any = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        self._lifespans.append((name, made))

    def check(self) -> None:
        """Refuse handlers that take resources where nothing yields any. Raises `ConfigurationError`."""
        if not self._lifespans:
            for handler in self.handlers:
                handler.among(())

    @asynccontextmanager
    async def opened(self, group: str, stop: asyncio.Event, *, time_to_leave: Callable[[], float]) -> AsyncIterator[None]:
        """With every lifespan entered, and each handler's resources found. A `stop` cancels one that is still being entered.

        They are left without the error that ends the worker, so that none can hide it; `time_to_leave` returns the seconds that are left
        for that. Raises `ConfigurationError` for a resource that can't be found, `StoppedWhileStarting`, and `AckwiseError` if one fails.
        """
        entered, yielded = list[AbstractAsyncContextManager[object]](), list[object]()
        try:
            for name, lifespan in self._lifespans:
                yielded += _each(await _enter(entered, name, lifespan, stop))
            before = _FOUND.get({})
            _FOUND.set({handler: handler.among(yielded) for handler in self.handlers})
            try:
                yield
            finally:
                _FOUND.set(before)  # by value, since Faust leaves in another context than it entered
        finally:
            for opened in reversed(entered):
                await _leave(opened, group, time_to_leave())


async def _enter(
    entered: list[AbstractAsyncContextManager[object]],
    name: str,
    lifespan: Callable[[], AbstractAsyncContextManager[object]],
    stop: asyncio.Event,
) -> object:
    try:
        async with _called_off_by(stop):
            opened = lifespan()
            yielded = await opened.__aenter__()
            entered.append(opened)
            return yielded
    except Exception as error:
        if stop.is_set():
            raise StoppedWhileStarting from error
        log.debug("lifespan failed", lifespan=name, raised=error)
        raise AckwiseError(
            f"lifespan {name!r} failed ({class_name(error)} at {where_raised(error)}), so the worker does not start; "
            "the log at level debug has its text"
        ) from error


async def _leave(opened: AbstractAsyncContextManager[object], group: str, within: float) -> None:
    """Leave one. A failure or a time-out is logged, and the next is left all the same; what the worker has done is settled by now."""
    try:
        async with asyncio.timeout(within):
            await opened.__aexit__(None, None, None)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # the user's own code, and the worker ends anyway
        log.error("a lifespan was not left in order", group=group, error=class_name(error), at=where_raised(error))
        log.debug("lifespan failed on exit", raised=error)


@asynccontextmanager
async def _called_off_by(stop: asyncio.Event) -> AsyncIterator[None]:
    """The block is cancelled once `stop` is set; it raises `TimeoutError` then."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        stopping = asyncio.ensure_future(stop.wait())

        def call_off(_: object) -> None:
            with suppress(RuntimeError):  # the block has ended in the same moment
                limit.reschedule(loop.time())

        stopping.add_done_callback(call_off)
        try:
            yield
        finally:
            stopping.remove_done_callback(call_off)
            stopping.cancel()


def _each(yielded: object) -> Sequence[object]:
    """The resources: a plain tuple is several, and `None` is none."""
    return [each for each in (yielded if type(yielded) is tuple else (yielded,)) if each is not None]
