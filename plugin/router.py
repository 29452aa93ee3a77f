"""`Router`: handlers apart from an app, such as those of one module; `app.include(router)` adds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from types import UnionType
from typing import Any, Concatenate, TypeVar, overload

from ackwise.middleware.agent import CONSUME_TIMEOUT, Agent
from ackwise.middleware.disposition import ConsumeStatus
from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Message
from ackwise.middleware.ordering import Order, RetryInPlace
from ackwise.plugin.group.patterns import parse_pattern
from ackwise.plugin.handler import HandlerOf, check_agent, inspect_handler
from ackwise.plugin.lifespan import WithResources
from ackwise.plugin.signature import name_of

__all__ = ["Router"]

T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound=Callable[Concatenate[Any, ...], Coroutine[Any, Any, ConsumeStatus | None] | ConsumeStatus | None])


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
        self,
        *topics: str,
        decode: Callable[[Any], Coroutine[Any, Any, T]],
        model: None = None,
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        concurrency: int | None = None,
        consume_timeout: float | str = CONSUME_TIMEOUT,
        order: Order = None,
        order_by: Callable[[Message[Any]], object] | None = None,
        in_place: RetryInPlace | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> HandlerOf[T]: ...
    @overload
    def agent(
        self,
        *topics: str,
        decode: Callable[[Any], T],
        model: None = None,
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        concurrency: int | None = None,
        consume_timeout: float | str = CONSUME_TIMEOUT,
        order: Order = None,
        order_by: Callable[[Message[Any]], object] | None = None,
        in_place: RetryInPlace | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> HandlerOf[T]: ...
    @overload
    def agent(
        self,
        *topics: str,
        model: type[T],
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        concurrency: int | None = None,
        consume_timeout: float | str = CONSUME_TIMEOUT,
        order: Order = None,
        order_by: Callable[[Message[Any]], object] | None = None,
        in_place: RetryInPlace | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> HandlerOf[T]: ...
    @overload
    def agent(
        self,
        *topics: str,
        model: UnionType | None = None,
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        concurrency: int | None = None,
        consume_timeout: float | str = CONSUME_TIMEOUT,
        order: Order = None,
        order_by: Callable[[Message[Any]], object] | None = None,
        in_place: RetryInPlace | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> Callable[[HandlerT], HandlerT]: ...
    def agent(
        self,
        *topics: str,
        model: Any = None,
        decode: Callable[[Any], Any] | None = None,
        name: str | None = None,
        max_batch: int = 200,
        max_wait: float | str = 0.0,
        keep_ack_index_on_error: bool = False,
        concurrency: int | None = None,
        consume_timeout: float | str = CONSUME_TIMEOUT,
        order: Order = None,
        order_by: Callable[[Message[Any]], object] | None = None,
        in_place: RetryInPlace | None = None,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        pattern: str | re.Pattern[str] | None = None,
    ) -> Any:
        """Register a handler of `topics`; the handler itself is returned unchanged. A plain `def` runs in a thread.

        Its first annotation says what it gets: `Batch[T]` (up to `max_batch` messages of one partition, waiting up to
        `max_wait` for them), `Message[T]`, or the value `T` alone. `model` is `T` where the annotation does not say
        it. `decode` is a function of yours from the raw bytes, or from a `Message[bytes]`, to the value; it may be `async`, and
        raises `CodecUnavailable` to have its messages held. Further parameters are what lifespans yield.

        `name`, the function's by default, stands in copies, claims and events: changing it orphans them. With
        `keep_ack_index_on_error` the prefix up to `ack_index` survives an exception.

        `concurrency=n`: at most n calls of the handler at a time in this worker, side by side also within a partition, unless an order
        forbids it. Without it a partition has one call at a time. `consume_timeout` (seconds, or a text such as `"15m"`; 0 for none) is
        the time that a call may take until it is cancelled and its messages have failed; `message.extend(…)` asks for more.

        `order="key"`: messages with the same key (the record's, or what `order_by` returns of the message; `None` has no order) run
        one after the other. `order="partition"`: all of a partition do. With either a message that fails runs again in place, as
        `in_place=RetryInPlace(…)` says, and what must not overtake it waits.

        `pattern`, a regular expression, adds the topics whose whole name it matches, also those that are made later: each is read from its
        first record, and topics that Ackwise makes never match. What another agent names goes to that one.

        `max_messages` and `max_bytes` are what all its partitions together may have in hand in a worker, each at least one message.
        Raises `ConfigurationError`.
        """

        if topics and callable(topics[0]):
            raise ConfigurationError(f'@app.agent on {name_of(topics[0])!r} names no topic; write @app.agent("orders")')
        for given in topics:
            if isinstance(given, re.Pattern):
                raise ConfigurationError(f"@app.agent has the pattern {given.pattern!r} among its topics; give it as pattern=")

        def register(handler: HandlerT) -> HandlerT:
            seen = inspect_handler(handler, model=model, own=decode, in_threads=True, takes_resources=True)
            called = seen.name if name is None else name
            agent = Agent(
                name=called,
                topics=topics,
                kind=seen.kind,
                call=seen.call,
                decode=seen.decoding.decode,
                decodes=seen.decoding.takes,
                decodes_async=seen.decoding.is_async,
                decodes_own=decode is not None,
                max_batch=max_batch,
                max_wait=parse_duration(max_wait, what="max_wait"),
                keep_ack_index_on_error=keep_ack_index_on_error,
                concurrency=concurrency,
                consume_timeout=_timeout(consume_timeout, order),
                in_thread=seen.in_thread,
                order=order,
                order_by=order_by,
                in_place=in_place,
                max_messages=max_messages,
                max_bytes=max_bytes,
                pattern=None if pattern is None else parse_pattern(pattern, agent=called),
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


def _timeout(given: float | str, order: Order) -> float:
    """Seconds; the default is none for a partition in order, as in RocketMQ."""
    seconds = parse_duration(given, what="consume_timeout")
    return 0.0 if order == "partition" and seconds == CONSUME_TIMEOUT else seconds
