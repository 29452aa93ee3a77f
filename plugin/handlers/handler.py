"""`Handler`: its first annotation decides the kind (batch, message or value) and the type of the payload.

Plain functions run in threads of a bounded pool.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import types
import typing
from collections import abc, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, overload

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.limits import check_threshold
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import ConsumeStatus
from ackwise.middleware.message.keys import check_key_function
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import RetryInPlace
from ackwise.middleware.runs.agent import MOST_THREADS, Agent
from ackwise.plugin.handlers.decoder import (
    UNTYPED,
    Decoder,
    Decoding,
    bare,
    decoder_of,
    first_parameter,
    is_async,
    name_of,
    own_decoding,
    resolved,
    spelled,
)
from ackwise.plugin.handlers.lifespan import WithResources
from ackwise.plugin.topictemplate import DEFAULT_TOPIC_NAMES, TopicTemplate


class Threaded:
    """Calls `function` in a thread. A thread can't be cancelled: a caller that cancels it waits until it has ended all the same."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self.__wrapped__ = function
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix=f"ackwise {name}")  # starts a thread when it needs one

    async def __call__(self, argument: Any) -> Any:
        in_thread = self._pool.submit(copy_context().run, self._call, argument)
        call = asyncio.wrap_future(in_thread)
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError:
                if in_thread.cancel():  # no thread has started with it
                    raise
        return call.result()

    def _call(self, argument: Any) -> Any:
        try:
            return self.__wrapped__(argument)
        except StopIteration as error:  # no future takes one, and its waiter would wait forever; a coroutine turns it into this too
            raise RuntimeError("the handler raised StopIteration") from error


T = TypeVar("T")
P = ParamSpec("P")
StatusT = TypeVar("StatusT", bound=ConsumeStatus | None)

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
    decoding: Decoding
    in_thread: bool = False
    resources: WithResources | None = None


def inspect_handler(
    function: Callable[..., Any],
    *,
    model: Any = None,
    decode: Decoder | None = None,
    own: Callable[[Any], Any] | None = None,
    in_threads: bool = False,
    takes_resources: bool = False,
) -> Handler:
    """What `function` wants; `model` is the type of the payload where the annotation does not say it.

    `Batch[T]` gets a batch, `Message[T]` one message with its key and headers, any other `T` the decoded value alone.
    `bytes` is the value as it is (also without an annotation), `str` is UTF-8, everything else is JSON that pydantic
    checks. A null value is decoded only where `T` admits `None`. With `decode` the topic says how values are decoded, and `T`
    is only what people and type checkers read, as with `own`, the user's decoder of this handler. A plain `def` runs in a thread, if
    `in_threads` allows it. With `takes_resources`, further parameters without a default are what lifespans yield, by their types.

    Raises `ConfigurationError`, also for a bare `list[T]`: it reads like a batch, and every single value would fail to be one.
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
        payload = next(iter(typing.get_args(annotation)), UNTYPED)
        if isinstance(payload, typing.TypeVar):
            payload = UNTYPED
        kind: Literal["batch", "message"] = "batch" if origin is Batch else "message"
        whole = Threaded(function, name) if in_thread else function
        return Handler(name, kind, whole, _decoding(name, decode, own, payload, model), in_thread, resources)

    if _is_list(annotation):
        raise ConfigurationError(
            f"handler {name!r} takes {spelled(annotation)}, which may mean two things: take Batch[{_element(annotation)}] for a whole "
            f"batch, or Message[{spelled(annotation)}] for single messages whose value is a list"
        )

    of_value = Threaded(function, name) if in_thread else function

    async def call(message: Message[Any]) -> object:
        return await of_value(message.value)

    return Handler(name, "message", call, _decoding(name, decode, own, annotation, model), in_thread, resources)


def _decoding(name: str, decode: Decoder | None, own: Callable[[Any], Any] | None, payload: Any, model: Any) -> Decoding:
    if own is not None:
        return own_decoding(name, own, payload, model)
    return Decoding(decode or decoder_of(name, payload, model))


def _resources_of(function: Callable[..., Any], name: str) -> WithResources | None:
    """`function` as one that gets its resources, if it has parameters for any."""
    found = list(inspect.signature(function).parameters.values())[1:]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = {each.name: _class_of(function, each, name) for each in found if each.default is each.empty and each.kind in by_name}
    return WithResources(function, name, wanted) if wanted else None


def _class_of(function: Callable[..., Any], parameter: inspect.Parameter, name: str) -> type:
    """The class by which the resource for `parameter` is found."""
    annotation = resolved(function, parameter, f"handler {name!r}")
    kind = typing.get_origin(annotation) or annotation
    try:
        if isinstance(kind, type) and kind not in (object, types.UnionType, UNTYPED):
            isinstance(None, kind)
            return kind
    except TypeError:  # a protocol that can't be checked
        pass
    found = "without an annotation" if annotation is UNTYPED else f"annotated with {spelled(annotation)}"
    raise ConfigurationError(
        f"handler {name!r} has the parameter {parameter.name!r} {found}; beside its message a handler gets what lifespans yield, by its "
        "class: annotate it with that, or give it a default"
    )


def names_of(topics: str | Sequence[str], *, reader: str) -> tuple[str, ...]:
    """The topics that `reader` is given. Raises `ConfigurationError` for a pattern, which it can't follow."""
    if isinstance(topics, re.Pattern):
        raise ConfigurationError(f"{reader} reads topics by their names, and got the pattern {topics.pattern!r}; use an App with pattern=")
    return (topics,) if isinstance(topics, str) else tuple(topics)


def check_agent(agent: Agent) -> None:
    """Refuse an agent that can't be called or reads nothing. Raises `ConfigurationError`."""
    if not isinstance(agent.name, str) or not agent.name:
        raise ConfigurationError(f"name of an agent is {agent.name!r}; give it a text, or leave it out")
    if not (agent.topics or agent.pattern) or not all(isinstance(topic, str) and topic for topic in agent.topics):
        raise ConfigurationError(f'agent {agent.name!r} has no topic; name one, such as "orders"')
    if isinstance(agent.max_batch, bool) or not isinstance(agent.max_batch, int) or agent.max_batch < 1:
        raise ConfigurationError(f"max_batch of agent {agent.name!r} is {agent.max_batch!r}; it must be a whole number, 1 or more")
    at_a_time = agent.concurrency
    if at_a_time is not None and (isinstance(at_a_time, bool) or not isinstance(at_a_time, int) or at_a_time < 1):
        raise ConfigurationError(f"concurrency of agent {agent.name!r} is {at_a_time!r}; it must be a whole number, 1 or more")
    if not isinstance(agent.expires, bool):
        raise ConfigurationError(
            f"expires of agent {agent.name!r} is {agent.expires!r}; write True, and the header `expires` of each message says when"
        )
    _check_order(agent)
    for what, threshold in (("max_messages", agent.max_messages), ("max_bytes", agent.max_bytes)):
        if threshold is not None:
            check_threshold(f"{what} of agent {agent.name!r}", threshold)
    for topic in agent.topics:
        if agent.topics.count(topic) > 1:
            raise ConfigurationError(f"agent {agent.name!r} names topic {topic!r} twice; name it once")


def _check_order(agent: Agent) -> None:
    name, order, in_place = agent.name, agent.order, agent.in_place
    if order not in ("key", "partition", None):
        raise ConfigurationError(f"order of agent {name!r} is {order!r}; it is 'key', 'partition', or None for no order")
    if order is None and in_place is not None:
        raise ConfigurationError(f"agent {name!r} has in_place and no order; give it order='key' or 'partition', or leave in_place out")
    if order is not None and not isinstance(in_place, RetryInPlace):
        raise ConfigurationError(
            f"agent {name!r} has order={order!r} and in_place={in_place!r}; say how often a message may run again while others wait "
            "behind it, such as in_place=RetryInPlace(3)"
        )
    if order == "partition" and agent.consume_timeout:
        raise ConfigurationError(
            f"agent {name!r} has order='partition' and consume_timeout={agent.consume_timeout:g}; nothing passes a handler that hangs "
            "there, so there is none: leave it out"
        )
    if agent.order_by is not None and order != "key":
        raise ConfigurationError(f"agent {name!r} has order_by and order={order!r}; it finds the key for order='key'")
    if agent.order_by is not None and agent.decodes_own:
        raise ConfigurationError(
            f"agent {name!r} has order_by and decode; while what decode needs is unavailable the keys would be unknown, and messages could "
            "overtake each other: order by the record's key, and leave order_by out"
        )
    if agent.order_by is not None and not callable(agent.order_by):
        raise ConfigurationError(f"order_by of agent {name!r} is {agent.order_by!r}; give a function from a message to its key")
    if agent.order_by is not None:
        check_key_function(agent.order_by, f"order_by of agent {name!r}")


#: Kinds of topics of a group of which it has one each.
_OWN: Final = ("retry", "cancel", "control")


def _alike(topic: str) -> str:
    """Kafka makes no two topics whose names differ only in `.` and `_`."""
    return topic.replace("_", ".")


def refuse_own_topics(agent: Agent, *, group: str, dead_letter: str | None, topic_names: str = DEFAULT_TOPIC_NAMES) -> None:
    """Refuse an agent that would read what its own group writes. `dead_letter` is the topic of `DeadLetter`, `topic_names` the setting.

    Raises `ConfigurationError`.
    """
    template = TopicTemplate(topic_names)
    collides = {_alike(dead_letter or template.name(group, "dlq")), *(_alike(template.name(group, kind)) for kind in _OWN)}
    for topic in agent.topics:
        of = template.of(topic)
        is_named_so = of is not None and of.group == group and not (of.kind == "dlq" and dead_letter is not None)
        if is_named_so or _alike(topic) in collides:
            raise ConfigurationError(
                f"agent {agent.name!r} reads {topic!r}, a topic that group {group!r} writes itself; read it with another group"
            )


def _is_list(annotation: Any) -> bool:
    """Whether a value of this type has any number of elements, all of one type."""
    kind = bare(annotation)
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    return any(origin is kind for kind in _LISTS) or (origin is tuple and arguments[1:] in ((), (...,)))


def _element(annotation: Any) -> str:
    return spelled(next(iter(typing.get_args(bare(annotation))), Any))
