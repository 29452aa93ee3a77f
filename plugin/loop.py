"""`reliable`: the guarantees of Ackwise in the user's loop over the user's `AIOKafkaConsumer`."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload
from weakref import WeakSet

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import ConsumerStoppedError

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.usercode import is_a, stops
from ackwise.plugin.aiokafkahost import host_of
from ackwise.plugin.handlers.decoder import decoder_of
from ackwise.plugin.handlers.handler import check_agent, names_of, refuse_own_topics
from ackwise.plugin.handlers.observers import Observer
from ackwise.plugin.kafka.aiokafkainternals import ConsumerOptions, addresses_of, identity_of, options_of
from ackwise.plugin.kafka.clients import require_known
from ackwise.plugin.loopbatch import Handover, LoopBatch
from ackwise.plugin.policyslots import Policy, Slots
from ackwise.plugin.settings.config import Config, Given, read_config
from ackwise.plugin.settings.connecting import Address
from ackwise.plugin.settings.hostsettings import HostSettings, LoopSettings

if TYPE_CHECKING:
    from typing import Self, Unpack


log = Log()

T = TypeVar("T")

#: Keywords of `reliable`, other than the settings of the host.
_KEYWORDS: Final = ("model", "name", "max_batch", "max_wait", "max_age", "expires")

#: Consumers in use: a second reader would take records from the first.
_READ: Final = WeakSet[AIOKafkaConsumer]()


@overload
def reliable(
    consumer: AIOKafkaConsumer,
    topics: str | Sequence[str],
    *things: Policy | Observer,
    model: type[T],
    name: str = "loop",
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    max_age: float | str = 0.0,
    expires: bool = False,
    **settings: Unpack[LoopSettings],
) -> Reliable[T]: ...
@overload
def reliable(
    consumer: AIOKafkaConsumer,
    topics: str | Sequence[str],
    *things: Policy | Observer,
    name: str = "loop",
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    max_age: float | str = 0.0,
    expires: bool = False,
    **settings: Unpack[LoopSettings],
) -> Reliable[bytes]: ...
def reliable(
    consumer: AIOKafkaConsumer,
    topics: str | Sequence[str],
    *things: Policy | Observer,
    model: Any = bytes,
    name: str = "loop",
    max_batch: int = 200,
    max_wait: float | str = 0.0,
    max_age: float | str = 0.0,
    expires: bool = False,
    **settings: Unpack[LoopSettings],
) -> Reliable[Any]:
    """Read `topics` with `consumer`, and lose nothing:

        async with AIOKafkaConsumer(group_id="billing", enable_auto_commit=False, auto_offset_reset="none") as consumer:
            async with reliable(consumer, "orders", Dedup("sqlite:///claims.db"), model=Order) as batches:
                async for batch in batches:
                    async with batch:
                        await charge(batch)

    The caller starts and stops the consumer. It has a group, but no auto-commit, deserializers or subscription. From here on only
    Ackwise polls, seeks, pauses and commits. Brokers and credentials for the retry topics are taken from it. `things` are policies and
    observers as for `App.use`. `name` is part of copies, claims and events: changing it orphans them. `max_batch`, `max_wait`, `max_age`
    and `expires` are those of `App.agent`.

    The object can also be iterated without `async with`; then it drains when the iteration is closed. Raises `ConfigurationError` for
    a consumer or a setting that would break a promise.
    """
    config = read_config()
    slots = Slots(config)
    for thing in things:
        slots.use(thing)
    slots.check_middleware((), "your own loop has no handler to wrap; write it into the loop")
    slots.refuse_tracing("your own loop has none; start a span in the loop")
    if slots.broadcasting is not None:
        raise ConfigurationError(
            "reliable() can't broadcast: its consumer has a group, and failed messages are retried; use App, or give the consumer of each "
            "instance its own group and leave Broadcasting out"
        )
    slots.refuse_share("the consumer of reliable")
    handover = Handover()
    agent = Agent(
        name=name,
        topics=names_of(topics, reader="reliable()"),
        kind="batch",
        call=handover,
        decode=decoder_of(name, model),
        max_batch=max_batch,
        max_wait=parse_duration(max_wait, what="max_wait"),
        max_age=parse_duration(max_age, what="max_age"),
        expires=expires,
        consume_timeout=0.0,
        batch=LoopBatch,
        loops=handover.slots,
    )
    check_agent(agent)
    _refuse_modes(config.of_agent(name))
    (agent,) = config.agents([agent])
    slots.refuse_own_middleware(name, "your own loop has no handler to wrap; write it into the loop")
    agent = slots.governed(agent)
    host_settings = _settings(consumer, settings, config)
    refuse_own_topics(agent, group=host_settings.group, dead_letter=slots.dead_letter.topic, topic_names=host_settings.topic_names)
    return Reliable(consumer, host_settings, agent, slots, handover)


def _refuse_modes(given: Mapping[str, Given]) -> None:
    for entry in ("concurrency", "consume_timeout"):
        if entry in given:
            raise ConfigurationError(
                f"{entry} of the agent is set by {given[entry].source}, and your own loop takes its batches one after the other and "
                "can't be cancelled; leave it out"
            )


def _settings(consumer: Any, settings: LoopSettings, config: Config) -> HostSettings:
    """Return the settings of the host; those that the consumer has are taken from it."""
    options, identity = _usable(consumer), identity_of(consumer)
    known = [*_KEYWORDS, *LoopSettings.__annotations__]
    for name in settings.keys() - set(known):
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
        raise ConfigurationError(f"reliable() has no setting {name!r}; {advice}")
    rebalance_timeout = options.rebalance_timeout
    of_the_consumer = {
        "brokers": ",".join(str(Address(host, port)) for host, port in addresses_of(consumer)),
        "session_timeout": options.session_timeout,
        "client_id": identity.pop("client_id"),
        "client_options": identity,
        "consumer_options": {},
        "group_instance_id": options.group_instance_id,
    }
    keywords: dict[str, Any] = {"revoke_timeout": min(25.0, rebalance_timeout / 2), **settings}
    made = config.host_settings(options.group, fixed=of_the_consumer, **keywords)
    if made.revoke_timeout > rebalance_timeout / 2:
        raise ConfigurationError(
            f"revoke_timeout is {made.revoke_timeout:g} s, above half of the consumer's rebalance timeout of {rebalance_timeout:g} s: the "
            "broker would remove the member while it drains; lower it, or give the consumer a longer rebalance_timeout_ms"
        )
    return made


def _usable(consumer: Any) -> ConsumerOptions:
    """Return the options of `consumer`. Raises `ConfigurationError` for one that would break a promise."""
    if not isinstance(consumer, AIOKafkaConsumer):
        raise ConfigurationError(f"reliable() was given a {type(consumer).__name__}; give it an AIOKafkaConsumer")
    require_known()
    options = options_of(consumer)
    wrong = [
        (not options.group, "it has no group; give it a group_id, under which offsets and retry topics are kept"),
        (options.commits_by_itself, "it commits by itself, even messages that are not done; give it enable_auto_commit=False"),
        (
            options.has_deserializer,
            "it has a deserializer, and one that raises blocks its partition forever; leave it out and give reliable() a model",
        ),
        (
            options.auto_offset_reset != "none",
            f'its auto_offset_reset is {options.auto_offset_reset!r}, which skips messages silently; give it "none", and reliable() '
            'a start="earliest" or "latest"',
        ),
        (
            bool(consumer.subscription() or consumer.assignment()),
            "it has a subscription already; leave its topics to reliable(), which adds the retry topic",
        ),
        (options.is_closed, "it was stopped; give it one that runs"),
        (not options.is_started, "it was not started; write `async with consumer:` or `await consumer.start()` before"),
    ]
    for is_wrong, why in wrong:
        if is_wrong:
            raise ConfigurationError(f"reliable() can't use this consumer: {why}")
    return options


class Reliable(Generic[T]):
    """The result of `reliable`: batches to iterate over, from one or several tasks, while the context is open."""

    def __init__(self, consumer: AIOKafkaConsumer, settings: HostSettings, agent: Agent, slots: Slots, handover: Handover) -> None:
        self._consumer = consumer
        self._settings = settings
        self._agent = agent
        self._slots = slots
        self._handover = handover
        self._stop = asyncio.Event()
        self._hosting: asyncio.Task[None] | None = None
        self._stopped_by: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Start to consume. Raises `ConfigurationError` if it was started before, or if another `reliable` uses the consumer."""
        if self._hosting is not None:
            raise ConfigurationError("this reliable() was entered or iterated before; make a new one")
        if self._consumer in _READ:
            raise ConfigurationError("another reliable() uses this consumer; leave that one first, or give each its own consumer")
        _READ.add(self._consumer)
        self._hosting = asyncio.create_task(self._run(), name="ackwise loop")
        self._hosting.add_done_callback(lambda _: _READ.discard(self._consumer))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Drain, commit and leave the group. Raises the error that ended the consuming, unless the body raised."""
        assert self._hosting is not None
        self.stop()
        self._handover.abandon()
        try:
            await asyncio.wait({self._hosting})
        except asyncio.CancelledError:  # the drain is cut short: nothing more is committed
            self._hosting.cancel()
            await asyncio.gather(self._hosting, return_exceptions=True)
            raise
        if error is None:
            self._raise_what_ended_it(self._hosting)

    async def __aiter__(self) -> AsyncIterator[LoopBatch[T]]:
        """Yield batches until `stop` is called. Raises the error that ended the consuming."""
        async with AsyncExitStack() as opened:
            if self._hosting is None:
                await opened.enter_async_context(self)
            while (batch := await self._handover.take()) is not None:
                yield batch
                if batch.leave_undecided(unless_opened=True):
                    log.error(
                        "batch neither entered nor run",
                        messages=len(batch),
                        topic=batch[0].topic,
                        partition=batch[0].partition,
                        offset=batch[0].offset,
                    )
            assert self._hosting is not None
            await asyncio.wait({self._hosting})
            self._raise_what_ended_it(self._hosting)

    def stop(self) -> None:
        """Take no more batches; the iteration ends once the open ones are settled. A signal handler of the event loop may call it."""
        self._stop.set()
        self._handover.close()

    def _raise_what_ended_it(self, hosting: asyncio.Task[None]) -> None:
        if self._stopped_by is not None:
            raise self._stopped_by
        if not hosting.cancelled():
            hosting.result()

    async def _run(self) -> None:
        try:
            await host_of(self._slots, self._settings, [self._agent], self._consumer).run(self._stop)
        except ConsumerStoppedError as error:
            raise AckwiseError(
                "the consumer was stopped while reliable() was reading; leave `async with reliable(…)` first. Unsettled messages are not "
                "committed"
            ) from error
        except BaseException as error:
            if is_a(error, GeneratorExit) or not stops(error):
                raise
            if error is not self._handover.stopped_by:  # otherwise the body raised it and propagates it
                self._stopped_by = error
        finally:
            self._handover.close()
            self._handover.end()
