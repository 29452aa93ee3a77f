"""`Router`: handlers apart from an app, such as those of one module; `app.include(router)` adds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from types import UnionType
from typing import Any, Concatenate, TypedDict, TypeVar, Unpack, overload

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.disposition import ConsumeStatus
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import Order, RetryInPlace
from ackwise.middleware.runs.agent import CONSUME_TIMEOUT, Agent
from ackwise.plugin.handlers.decoder import name_of
from ackwise.plugin.handlers.handler import HandlerOf, check_agent, inspect_handler
from ackwise.plugin.handlers.lifespan import WithResources
from ackwise.plugin.topics.topicpatterns import parse_pattern

T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound=Callable[Concatenate[Any, ...], Coroutine[Any, Any, ConsumeStatus | None] | ConsumeStatus | None])


class AgentOptions(TypedDict, total=False):
    """Options of an agent, each of which may be left out."""

    name: str | None
    """Stands in copies, claims and events: changing it orphans them. Default: the name of the function."""
    max_batch: int
    """Messages in a batch at most (200)."""
    max_wait: float | str
    """Time that a batch waits to fill (0)."""
    keep_ack_index_on_error: bool
    """The prefix up to `ack_index` survives an exception."""
    concurrency: int | None
    """Calls of the handler at a time in this worker, side by side also within a partition, unless an order forbids it. Without it a
    partition has one call at a time.
    """
    consume_timeout: float | str
    """Time that a call may take until it is cancelled and its messages have failed (15 minutes; 0 for none). `message.extend(…)` asks for
    more.
    """
    order: Order
    """`"key"`: messages with the same key run one after the other. `"partition"`: all of a partition do. With either a message that
    fails runs again in place, and what must not overtake it waits.
    """
    order_by: Callable[[Message[Any]], object] | None
    """Returns the key of a message for `order="key"`; `None` has no order. Default: the record's key."""
    in_place: RetryInPlace | None
    """How a message runs again under an order."""
    max_messages: int | None
    """Messages that all its partitions together may have in flight in a worker, each at least one."""
    max_bytes: int | None
    """The same in bytes."""
    pattern: str | re.Pattern[str] | None
    """A regular expression that adds the topics whose whole name it matches, also those that are made later: each is read from its first
    record. Topics that Ackwise makes never match, and what another agent names goes to that one.
    """


class Router:
    """Handlers that an app includes:

        router = Router()

        @router.agent("orders")
        async def bill(order: Order) -> None: ...

        app.include(router)

    Policies, middleware and lifespans are the app's. Several apps may include the same router, such as one for each test.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[Agent, WithResources | None]] = []
        self._is_included = False

    @overload
    def agent(
        self, *topics: str, decode: Callable[[Any], Coroutine[Any, Any, T]], model: None = None, **options: Unpack[AgentOptions]
    ) -> HandlerOf[T]: ...
    @overload
    def agent(self, *topics: str, decode: Callable[[Any], T], model: None = None, **options: Unpack[AgentOptions]) -> HandlerOf[T]: ...
    @overload
    def agent(self, *topics: str, model: type[T], **options: Unpack[AgentOptions]) -> HandlerOf[T]: ...
    @overload
    def agent(self, *topics: str, model: UnionType | None = None, **options: Unpack[AgentOptions]) -> Callable[[HandlerT], HandlerT]: ...
    def agent(self, *topics: str, model: Any = None, decode: Callable[[Any], Any] | None = None, **options: Unpack[AgentOptions]) -> Any:
        """Register a handler of `topics`; the handler itself is returned unchanged. A plain `def` runs in a thread.

        Its first annotation says what it gets: `Batch[T]` (up to `max_batch` messages of one partition, waiting up to
        `max_wait` for them), `Message[T]`, or the value `T` alone. `model` is `T` where the annotation does not say
        it. `decode` is your own function from the raw bytes, or from a `Message[bytes]`, to the value; it may be `async`, and
        raises `CodecUnavailable` to have its messages held. Further parameters are what lifespans yield.

        `options` are those of `AgentOptions`. Raises `ConfigurationError`.
        """
        if topics and callable(topics[0]):
            raise ConfigurationError(f'@app.agent on {name_of(topics[0])!r} names no topic; write @app.agent("orders")')
        for given in topics:
            if isinstance(given, re.Pattern):
                raise ConfigurationError(f"@app.agent has the pattern {given.pattern!r} among its topics; give it as pattern=")

        _refuse_unknown(options)

        def register(handler: HandlerT) -> HandlerT:
            seen = inspect_handler(handler, model=model, own=decode, in_threads=True, takes_resources=True)
            agent = Agent(
                topics=topics,
                kind=seen.kind,
                call=seen.call,
                decode=seen.decoding.decode,
                decodes=seen.decoding.takes,
                decodes_async=seen.decoding.is_async,
                decodes_own=decode is not None,
                in_thread=seen.in_thread,
                **_parsed(options, seen.name),
            )
            self._add(agent, seen.resources)
            return handler

        return register

    def _add(self, agent: Agent, resources: WithResources | None) -> None:
        if self._is_included:
            raise ConfigurationError(f"agent {agent.name!r} was added to a router that an app has included already; include it afterwards")
        check_agent(agent)
        self._handlers.append((agent, resources))

    def included(self) -> list[tuple[Agent, WithResources | None]]:
        """The handlers, for an app; from now on no other is added."""
        self._is_included = True
        return self._handlers


def _refuse_unknown(options: AgentOptions) -> None:
    for unknown in options.keys() - AgentOptions.__annotations__.keys():
        raise ConfigurationError(f"agent() has no option {unknown!r}; its options are {', '.join(AgentOptions.__annotations__)}")


def _parsed(options: AgentOptions, function: str) -> dict[str, Any]:
    """The options as an `Agent` has them, of the function of this name."""
    name, order, pattern = options.get("name"), options.get("order"), options.get("pattern")
    called = function if name is None else name
    timeout = parse_duration(options.get("consume_timeout", CONSUME_TIMEOUT), what="consume_timeout")
    return {
        **options,
        "name": called,
        "max_wait": parse_duration(options.get("max_wait", 0.0), what="max_wait"),
        "consume_timeout": 0.0 if order == "partition" and timeout == CONSUME_TIMEOUT else timeout,  # none by default, as in RocketMQ
        "pattern": None if pattern is None else parse_pattern(pattern, agent=called),
    }
