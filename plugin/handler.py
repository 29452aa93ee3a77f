"""Signature of a handler: its first annotation says the kind (batch, message or value) and the type of the payload."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
import typing
from collections import abc, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, Union, overload

import pydantic

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import ConsumeStatus
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.limits import check_threshold
from ackwise.middleware.message import Message
from ackwise.middleware.ordering import COMMIT_MODES, ORDERS, RetryInPlace
from ackwise.plugin.lifespan import WithResources
from ackwise.plugin.threads import Threaded

__all__ = [
    "Decoder",
    "Handler",
    "HandlerOf",
    "check_agent",
    "decoder_of",
    "first_parameter",
    "inspect_handler",
    "is_async",
    "name_of",
    "refuse_own_topics",
]

T = TypeVar("T")
P = ParamSpec("P")
StatusT = TypeVar("StatusT", bound=ConsumeStatus | None)

Decoder = Callable[[bytes | None], object]
"""Payload to value; raises anything for what can't be decoded."""

_UNTYPED: Final = inspect.Parameter.empty

#: Types that a batch has in other libraries.
_LISTS: Final = (list, deque, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)


class HandlerOf(Protocol[T]):
    """What `@app.agent(model=T)` returns: takes a handler of such payloads, and gives it back. Nothing but types."""

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Batch[T], P], Coroutine[Any, Any, StatusT]], /
    ) -> Callable[Concatenate[Batch[T], P], Coroutine[Any, Any, StatusT]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[Message[T], P], Coroutine[Any, Any, StatusT]], /
    ) -> Callable[Concatenate[Message[T], P], Coroutine[Any, Any, StatusT]]: ...
    @overload
    def __call__(
        self, handler: Callable[Concatenate[T, P], Coroutine[Any, Any, StatusT]], /
    ) -> Callable[Concatenate[T, P], Coroutine[Any, Any, StatusT]]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Batch[T], P], StatusT], /) -> Callable[Concatenate[Batch[T], P], StatusT]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[Message[T], P], StatusT], /) -> Callable[Concatenate[Message[T], P], StatusT]: ...
    @overload
    def __call__(self, handler: Callable[Concatenate[T, P], StatusT], /) -> Callable[Concatenate[T, P], StatusT]: ...


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler as the pipeline calls it: with a `Batch`, or with one `Message`."""

    name: str
    kind: Literal["batch", "message"]
    call: Callable[[Any], Awaitable[object]]
    decode: Decoder
    in_thread: bool = False
    resources: WithResources | None = None


def inspect_handler(
    function: Callable[..., Any],
    *,
    model: Any = None,
    decode: Decoder | None = None,
    in_threads: bool = False,
    takes_resources: bool = False,
) -> Handler:
    """What `function` wants; `model` is the type of the payload where the annotation does not say it.

    `Batch[T]` gets a batch, `Message[T]` one message with its key and headers, any other `T` the decoded value alone.
    `bytes` is the value as it is (also without an annotation), `str` is UTF-8, everything else is JSON that pydantic
    checks. A null value is decoded only where `T` admits `None`. With `decode` the topic says how values are decoded, and `T`
    is only what people and type checkers read. A plain `def` runs in a thread, if `in_threads` allows it. With `takes_resources`, further
    parameters without a default are what lifespans yield, by their types. Raises `ConfigurationError`,
    also for a bare `list[T]`: it reads like a batch, and every single value would fail to be one.
    """
    name = name_of(function)
    in_thread = not is_async(function)
    if in_thread and not in_threads:
        raise ConfigurationError(f"handler {name!r} is not an `async def`; write it as one, and move blocking work into asyncio.to_thread")
    if in_thread and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise ConfigurationError(f"handler {name!r} is a generator; a handler takes what it is given, and yields nothing")
    resources = _resources_of(function, name) if takes_resources else None
    wanted = () if resources is None else tuple(resources.wanted)
    annotation = first_parameter(function, what=f"handler {name!r}", given=wanted).annotation
    function = resources or function
    origin = typing.get_origin(annotation) or annotation
    if origin is Batch or origin is Message:
        payload = next(iter(typing.get_args(annotation)), _UNTYPED)
        if isinstance(payload, typing.TypeVar):
            payload = _UNTYPED
        kind: Literal["batch", "message"] = "batch" if origin is Batch else "message"
        whole = Threaded(function, name) if in_thread else function
        return Handler(name, kind, whole, decode or decoder_of(name, payload, model), in_thread, resources)

    if _is_list(annotation):
        raise ConfigurationError(
            f"handler {name!r} takes {_spelled(annotation)}, which may mean two things: take Batch[{_element(annotation)}] for a whole "
            f"batch, or Message[{_spelled(annotation)}] for single messages whose value is a list"
        )

    of_value = Threaded(function, name) if in_thread else function

    async def call(message: Message[Any]) -> object:
        return await of_value(message.value)

    return Handler(name, "message", call, decode or decoder_of(name, annotation, model), in_thread, resources)


def _resources_of(function: Callable[..., Any], name: str) -> WithResources | None:
    """`function` as one that gets its resources, if it has parameters for any."""
    found = list(inspect.signature(function).parameters.values())[1:]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {each.name: _class_of(function, each, name) for each in found if each.default is each.empty and each.kind in by_name}
    return WithResources(function, name, wanted) if wanted else None


def _class_of(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> type:
    """The class by which the resource for `parameter` is found."""
    annotation = _resolved(function, parameter, f"handler {name!r}")
    kind = typing.get_origin(annotation) or annotation
    try:
        if isinstance(kind, type) and kind not in (object, types.UnionType, _UNTYPED):
            isinstance(None, kind)
            return kind
    except TypeError:  # a protocol that can't be checked
        pass
    spelled = "without an annotation" if annotation is _UNTYPED else f"annotated with {_spelled(annotation)}"
    raise ConfigurationError(
        f"handler {name!r} has the parameter {parameter.name!r} {spelled}; beside its message a handler gets what lifespans yield, by its "
        "class: annotate it with that, or give it a default"
    )


def check_agent(agent: Agent) -> None:
    """Refuse an agent that can't be called or reads nothing. Raises `ConfigurationError`."""
    if not isinstance(agent.name, str) or not agent.name:
        raise ConfigurationError(f"name of an agent is {agent.name!r}; give it a text, or leave it out")
    if not agent.topics or not all(isinstance(topic, str) and topic for topic in agent.topics):
        raise ConfigurationError(f'agent {agent.name!r} has no topic; name one, such as "orders"')
    if isinstance(agent.max_batch, bool) or not isinstance(agent.max_batch, int) or agent.max_batch < 1:
        raise ConfigurationError(f"max_batch of agent {agent.name!r} is {agent.max_batch!r}; it must be a whole number, 1 or more")
    at_a_time = agent.concurrency
    if at_a_time is not None and (isinstance(at_a_time, bool) or not isinstance(at_a_time, int) or at_a_time < 1):
        raise ConfigurationError(f"concurrency of agent {agent.name!r} is {at_a_time!r}; it must be a whole number, 1 or more")
    _check_order(agent)
    for what, threshold in (("max_messages", agent.max_messages), ("max_bytes", agent.max_bytes)):
        if threshold is not None:
            check_threshold(f"{what} of agent {agent.name!r}", threshold)
    for topic in agent.topics:
        if agent.topics.count(topic) > 1:
            raise ConfigurationError(f"agent {agent.name!r} names topic {topic!r} twice; name it once")


def _check_order(agent: Agent) -> None:
    name, order, in_place = agent.name, agent.order, agent.in_place
    if order not in ORDERS:
        raise ConfigurationError(f"order of agent {name!r} is {order!r}; it is one of {', '.join(map(repr, ORDERS))}")
    if order == "none" and in_place is not None:
        raise ConfigurationError(f"agent {name!r} has in_place and no order; give it order='key' or 'partition', or leave in_place out")
    if order != "none" and not isinstance(in_place, RetryInPlace):
        raise ConfigurationError(
            f"agent {name!r} has order={order!r} and in_place={in_place!r}; say how often a message may run again while others wait "
            "behind it, such as in_place=RetryInPlace(3)"
        )
    if order == "partition" and agent.consume_timeout:
        raise ConfigurationError(
            f"agent {name!r} has order='partition' and consume_timeout={agent.consume_timeout:g}; nothing passes a handler that hangs "
            "there, so there is none: leave it out"
        )
    if agent.commit not in COMMIT_MODES:
        raise ConfigurationError(f"commit of agent {name!r} is {agent.commit!r}; it is one of {', '.join(map(repr, COMMIT_MODES))}")
    if agent.commit == "manual" and order != "partition":
        raise ConfigurationError(f"agent {name!r} has commit='manual' and order={order!r}; it holds for order='partition', leave it out")
    if agent.order_by is not None and order != "key":
        raise ConfigurationError(f"agent {name!r} has order_by and order={order!r}; it finds the key for order='key'")
    if agent.order_by is not None and not callable(agent.order_by):
        raise ConfigurationError(f"order_by of agent {name!r} is {agent.order_by!r}; give a function from a message to its key")


def refuse_own_topics(agent: Agent, *, group: str, dead_letter: str | None) -> None:
    """Refuse an agent that would read what its own group writes. `dead_letter` is the topic of `DeadLetter`.

    Raises `ConfigurationError`.
    """
    for topic in agent.topics:
        own = (f"{group}.retry", f"{group}.cancel", f"{group}.control", dead_letter or f"{group}.dlq")
        if topic in own or topic.startswith(f"{group}.delay."):
            raise ConfigurationError(
                f"agent {agent.name!r} reads {topic!r}, a topic that group {group!r} writes itself; read it with another group"
            )


def name_of(function: object) -> str:
    """The name that messages call `function` by."""
    function = _plain(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _plain(function: Any) -> Any:
    """The function inside of decorators, methods and partials, or the object whose class is callable."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def is_async(function: object) -> bool:
    """Whether calling `function` gives a coroutine, as far as its definition says."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def first_parameter(function: Callable[..., Any], *, what: str, arity: int = 1, given: Collection[str] = ()) -> inspect.Parameter:
    """The first parameter of `function`, its annotation resolved, after checking that `arity` positional arguments fit.

    The parameters `given` are given by name.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * arity, **dict.fromkeys(given))
    except TypeError:
        wanted = "one argument" if arity == 1 else f"{arity} arguments"
        raise ConfigurationError(
            f"{what} has the parameters {signature}; it is called with {wanted}, so the others need defaults"
        ) from None
    first = next(iter(signature.parameters.values()))
    return first.replace(annotation=_resolved(function, first, what))


def _resolved(function: Callable[..., Any], parameter: inspect.Parameter, what: str) -> Any:
    """The annotation of `parameter` alone: what the others and the result are annotated with need not exist at run time."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    function = _plain(function)
    namespace = getattr(function, "__globals__", None) or vars(sys.modules[type(function).__module__])
    only = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(only, globalns=namespace, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{what} annotates {parameter.name!r} with {parameter.annotation!r}, which can't be resolved ({error}); "
            "import its names outside of TYPE_CHECKING and define them in the module, not in a function"
        ) from None


def decoder_of(name: str, annotation: Any, model: Any = None) -> Decoder:
    """How handler `name` gets its values: by `annotation`, or by `model` where that says nothing. Raises `ConfigurationError`."""
    payload = annotation if model is None else model
    if model is not None and annotation not in (_UNTYPED, Any, model):
        raise ConfigurationError(f"handler {name!r} takes {_spelled(annotation)} and was given model={_spelled(model)}; give one of them")
    if payload is _UNTYPED:
        payload = bytes
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(payload)
    except (
        pydantic.errors.PydanticSchemaGenerationError,
        pydantic.errors.PydanticUndefinedAnnotation,
        pydantic.PydanticUserError,
    ) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigurationError(
            f"handler {name!r} takes {_spelled(payload)}, which pydantic can't decode ({reason}); take a model or bytes"
        ) from None
    match _bare(payload):
        case builtins.bytes:
            return adapter.validator.validate_python  # without the wrapper that takes as long again
        case builtins.str:
            return lambda raw: adapter.validate_python(None if raw is None else raw.decode())
        case _:
            return lambda raw: adapter.validate_python(None) if raw is None else adapter.validate_json(raw)


def _bare(payload: Any) -> Any:
    """`T` of `Annotated[T, …]` and of `T | None`."""
    origin, arguments = typing.get_origin(payload), typing.get_args(payload)
    if origin is Annotated:
        return _bare(arguments[0])
    rest = [kind for kind in arguments if kind is not types.NoneType]
    return _bare(rest[0]) if origin in (Union, types.UnionType) and len(rest) == 1 else payload


def _is_list(annotation: Any) -> bool:
    """Whether a value of this type has any number of elements, all of one type."""
    bare = _bare(annotation)
    origin, arguments = typing.get_origin(bare) or bare, typing.get_args(bare)
    return any(origin is kind for kind in _LISTS) or (origin is tuple and arguments[1:] in ((), (...,)))


def _element(annotation: Any) -> str:
    return _spelled(next(iter(typing.get_args(_bare(annotation))), Any))


def _spelled(kind: Any) -> str:
    if typing.get_args(kind):
        return str(kind)
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
