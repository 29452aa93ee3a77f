"""`Router`: handlers outside of an app, such as those of one module; `app.include(router)` adds them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Coroutine, Sequence
from types import UnionType
from typing import Any, Concatenate, Final, NamedTuple, TypedDict, TypeVar, Unpack, overload

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.disposition import ConsumeStatus
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.retry import Order, RetryInPlace
from ackwise.middleware.runs.agent import CONSUME_TIMEOUT, Agent
from ackwise.middleware.usercode import shown
from ackwise.plugin.handlers.decoder import name_of
from ackwise.plugin.handlers.handler import HandlerOf, check_agent, inspect_handler
from ackwise.plugin.handlers.lifespan import WithResources
from ackwise.plugin.policyslots import AgentSlots, UsableByAgent
from ackwise.plugin.topics.topicpatterns import parse_pattern

T = TypeVar("T")
HandlerT = TypeVar("HandlerT", bound=Callable[Concatenate[Any, ...], Coroutine[Any, Any, ConsumeStatus | None] | ConsumeStatus | None])


class AgentOptions(TypedDict, total=False):
    """Options of an agent, all optional."""

    name: str | None
    """Part of copies, claims and events: changing it orphans them. Default: the name of the function."""
    max_batch: int
    """Maximum number of messages in a batch (200)."""
    max_wait: float | str
    """Time that a batch waits for more messages (0)."""
    keep_ack_index_on_error: bool
    """Messages up to `ack_index` are done even if the handler raises."""
    concurrency: int | None
    """Concurrent calls of the handler in this worker, even within a partition, unless an order forbids it. Default: one call per
    partition.
    """
    consume_timeout: float | str
    """Time limit of a call; then it is cancelled and its messages have failed (15 minutes; 0 for none). `message.extend(…)` extends it."""
    order: Order
    """`"key"`: messages with the same key run one after the other. `"partition"`: all messages of a partition do. With either a failed
    message is retried in place, and those that must not overtake it wait.
    """
    order_by: Callable[[Message[Any]], object] | None
    """Returns the key of a message for `order="key"`; `None` has no order. Default: the record's key."""
    in_place: RetryInPlace | None
    """Retries of a message under an order."""
    max_messages: int | None
    """Maximum number of messages in flight over all its partitions in a worker; each partition may have one."""
    max_bytes: int | None
    """Maximum number of bytes in flight over all its partitions in a worker."""
    max_age: float | str
    """Age at which a message becomes a dead letter with the reason `expired` instead of running, counted from the record that its producer
    wrote (0 for any age).
    """
    expires: bool
    """Messages become dead letters with the reason `expired` once the time in their header `expires` is past: epoch milliseconds in decimal
    digits. A message whose header can't be read runs.
    """
    pattern: str | re.Pattern[str] | None
    """A regular expression that adds all topics whose whole name it matches, including later ones; each is read from its first record.
    Topics of Ackwise never match, and a topic that another agent names goes to that agent.
    """
    use: Sequence[UsableByAgent]
    """What this agent uses by itself: `ConsumeLater`, `RateLimit`, `Breaker` and `Dedup(key=…)`, each in place of the app's, and
    middleware, inside of the app's. All else is for `app.use`.
    """


class Declared(NamedTuple):
    """An agent as it was declared, with the resources that its handler takes, and what it uses by itself, if anything."""

    agent: Agent
    resources: WithResources | None
    used: AgentSlots


class Router:
    """Handlers for one or several apps:

        router = Router()

        @router.agent("orders")
        async def bill(order: Order) -> None: ...

        app.include(router)

    Lifespans and what `app.use` takes belong to the app. Several apps may include the same router, such as one for each test.
    """

    def __init__(self) -> None:
        self._declared: list[Declared] = []
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
        """Register a handler of `topics`, and return it unchanged. A plain `def` runs in a thread.

        The annotation of its first parameter decides its argument: `Batch[T]` (up to `max_batch` messages of one partition, waiting up to
        `max_wait` for them), `Message[T]`, or the value `T` alone. `model` is `T` if there is no annotation. `decode` is your function
        from the raw bytes, or from a `Message[bytes]`, to the value; it may be `async`, and raises `CodecUnavailable` to hold its
        messages. Further parameters get the objects that lifespans yield.

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
            self._add(Declared(agent, seen.resources, _used(agent.name, options.get("use", ()))))
            return handler

        return register

    def _add(self, declared: Declared) -> None:
        if self._is_included:
            raise ConfigurationError(
                f"agent {declared.agent.name!r} was added to a router that an app has included already; include it afterwards"
            )
        check_agent(declared.agent)
        self._declared.append(declared)

    def included(self) -> list[Declared]:
        """Return the handlers for an app. From now on no other can be added."""
        self._is_included = True
        return self._declared


def _used(agent: str, things: object) -> AgentSlots:
    if not isinstance(things, list | tuple):
        raise ConfigurationError(f"use of agent {agent!r} is {shown(things, repr)}; give a list, such as use=[ConsumeLater(5)]")
    slots = AgentSlots(agent)
    for thing in things:
        slots.use(thing)
    return slots


def _refuse_unknown(options: AgentOptions) -> None:
    known = [*AgentOptions.__annotations__, "model", "decode"]
    for unknown in sorted(options.keys() - AgentOptions.__annotations__.keys()):
        near = difflib.get_close_matches(unknown.lower(), [*_ELSEWHERE, *known], n=1)
        remedy = _ELSEWHERE.get(near[0], f"did you mean {near[0]}=") if near else f"its options are {', '.join(known)}"
        raise ConfigurationError(f"agent() has no option {unknown!r}; {remedy}")


_LATER: Final = "a policy limits retries: use=[ConsumeLater(5)], and with an order in_place=RetryInPlace(5)"
_DELAYS: Final = 'a policy has the delays of retries: use=[ConsumeLater(levels="1s 10s 1m")]'
_DEDUP: Final = 'a policy deduplicates: app.use(Dedup("sqlite:///claims.db", key=…))'
_GROUP: Final = 'the group is the app\'s: App("billing")'
_TOPIC: Final = 'topics come first, without a name: @app.agent("orders", "refunds")'
_DEAD: Final = 'a policy names the topic of dead letters: app.use(DeadLetter(topic="graveyard"))'
_RATE: Final = 'a policy limits the rate: use=[RateLimit("100/s")]'
_EXCEPTIONS: Final = "a policy tells exceptions apart: use=[ConsumeLater(no_retry=…, retry_by_error=…)]"

#: What other libraries call it, or what belongs to the app, and where it is.
_ELSEWHERE: Final[dict[str, str]] = {
    **dict.fromkeys(("group", "group_id", "consumer_group"), _GROUP),
    **dict.fromkeys(("topic", "topics", "queue", "channel"), _TOPIC),
    **dict.fromkeys(("retry", "retries", "max_retries", "max_attempts", "max_reconsume_times"), _LATER),
    **dict.fromkeys(("backoff", "retry_delay", "delay", "delays", "levels"), _DELAYS),
    **dict.fromkeys(("dedup", "deduplicate", "idempotent", "idempotency_key"), _DEDUP),
    **dict.fromkeys(("dlq", "dead_letter", "dead_letter_topic", "dead_letter_queue"), _DEAD),
    **dict.fromkeys(("rate", "rate_limit", "throttle"), _RATE),
    **dict.fromkeys(("retry_on", "exceptions", "autoretry_for"), _EXCEPTIONS),
    **dict.fromkeys(("batch", "batch_size", "max_batch_size", "max_poll_records", "prefetch"), "write max_batch=200"),
    **dict.fromkeys(("linger", "batch_timeout", "max_wait_time"), 'write max_wait="500ms"'),
    **dict.fromkeys(("timeout", "time_limit", "deadline"), 'write consume_timeout="15m"'),
    **dict.fromkeys(("workers", "threads", "parallelism", "max_concurrency", "max_workers"), "write concurrency=8"),
    **dict.fromkeys(("ordered", "ordering", "orderly"), 'write order="key" or order="partition"'),
    **dict.fromkeys(("key", "order_key", "partition_by"), 'write order="key", order_by=…, or app.use(Dedup(…, key=…)) to deduplicate'),
    **dict.fromkeys(("regex", "topic_pattern", "topics_regex"), r'write pattern=r"orders\..+"'),
    **dict.fromkeys(("deserializer", "value_deserializer", "decoder", "serializer", "value_type", "schema"), "write decode=… or model=…"),
    **dict.fromkeys(("handler_name", "id", "consumer_name"), 'write name="bill"'),
    **dict.fromkeys(("auto_commit", "enable_auto_commit", "ack", "ack_policy"), "offsets are committed once messages are settled"),
    **dict.fromkeys(("auto_offset_reset", "start", "offset_reset"), 'the start is the app\'s: App("billing", start="latest")'),
    **dict.fromkeys(("brokers", "bootstrap_servers"), 'brokers are the app\'s: App("billing", brokers="kafka:9092")'),
}


def _parsed(options: AgentOptions, function: str) -> dict[str, Any]:
    """Return the options as fields of an `Agent`, for the function of this name."""
    name, order, pattern = options.get("name"), options.get("order"), options.get("pattern")
    called = function if name is None else name
    timeout = parse_duration(options.get("consume_timeout", CONSUME_TIMEOUT), what="consume_timeout")
    return {
        **{option: value for option, value in options.items() if option != "use"},
        "name": called,
        "max_wait": parse_duration(options.get("max_wait", 0.0), what="max_wait"),
        "consume_timeout": 0.0 if order == "partition" and timeout == CONSUME_TIMEOUT else timeout,  # none by default, as in RocketMQ
        "max_age": parse_duration(options.get("max_age", 0.0), what="max_age"),
        "pattern": None if pattern is None else parse_pattern(pattern, agent=called),
    }
