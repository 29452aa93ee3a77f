"""User middleware around a handler. Silence decides nothing: a middleware can't turn a failure into success by returning nothing."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Union

from ackwise.middleware.errors import ConfigurationError, InvalidHandlerResult
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.settlement import check_cut_off
from ackwise.plugin.handlers.decoder import first_parameter, is_async, name_of

CallNext = Callable[[Any], Awaitable[object]]
"""What a middleware goes on with: takes the message or the batch, and returns what the handler said."""

Middleware = Callable[[Message[Any], CallNext], Coroutine[Any, Any, object]] | Callable[[Batch[Any], CallNext], Coroutine[Any, Any, object]]
"""Around the handlers of messages, around those of batches, or, if it takes either, around all."""

_BOTH: Final = frozenset[Literal["batch", "message"]](("batch", "message"))


@dataclass(frozen=True, slots=True)
class Around:
    """A middleware and what it wraps."""

    name: str
    kinds: frozenset[Literal["batch", "message"]]
    function: Callable[[Any, CallNext], Awaitable[object]]


def inspect_middleware(function: Callable[..., Any]) -> Around:
    """What `function` wraps: its first parameter is annotated or named `batch`, `message`, or `work` for either.

    Raises `ConfigurationError`.
    """
    name = name_of(function)
    if not is_async(function):
        raise ConfigurationError(f"middleware {name!r} is not an `async def`; write `async def {name}(message, call_next)`")
    first = first_parameter(function, what=f"middleware {name!r}", arity=2)
    if kinds := _kinds(first):
        return Around(name, kinds, function)
    raise ConfigurationError(
        f"middleware {name!r} does not say what it wraps; annotate its first parameter with Message, Batch or Batch | Message, or name it "
        "message, batch or work"
    )


def _kinds(first: inspect.Parameter) -> frozenset[Literal["batch", "message"]]:
    if first.annotation is inspect.Parameter.empty:
        return _BOTH if first.name == "work" else _BOTH & {first.name}
    is_union = typing.get_origin(first.annotation) in (Union, types.UnionType)
    members = typing.get_args(first.annotation) if is_union else (first.annotation,)
    origins = {typing.get_origin(member) or member for member in members}
    found = {"batch" if origin is Batch else "message" for origin in origins if origin in (Batch, Message)}
    return _BOTH & found if len(found) == len(origins) else frozenset()


def wrap(call: CallNext, arounds: Sequence[Around]) -> CallNext:
    """`call` with `arounds` around it; the first is the outermost."""
    return functools.reduce(lambda inner, around: functools.partial(_run, around, inner), reversed(arounds), call)


async def _run(around: Around, inner: CallNext, work: Any) -> object:
    """What the middleware returns; where that is `None`, what the handler said the last time that it was called."""
    said: list[tuple[object, BaseException | None]] = []

    async def call_next(work: Any) -> object:
        check_cut_off()
        try:
            result = await inner(work)
        except BaseException as error:
            said[:] = [(None, error)]
            raise
        said[:] = [(result, None)]
        return result

    returned = await around.function(work, call_next)
    if returned is not None:
        return returned
    if not said:
        raise InvalidHandlerResult(
            f"middleware {around.name!r} neither called call_next nor returned a status; return CONSUME_SUCCESS to leave out the handler"
        )
    result, error = said[0]
    if error is not None:
        raise error
    return result
