"""`SimpleConsumer`: messages are received on request, hidden from other receivers for a time, and acknowledged by their receipts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from ackwise.middleware.claims.receipts import Answer, Invisibility
from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import AckwiseError, ConfigurationError, InvalidReceipt, InvalidRuling
from ackwise.middleware.message.disposition import Delayed
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.pipeline import Phases, Pipeline
from ackwise.middleware.policies.policies import Dedup
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.storage.claimstore import ClaimStore
from ackwise.middleware.usercode import is_a, stops
from ackwise.plugin.aiokafkahost import AiokafkaHost, watching_of
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.handlers.decoder import decoder_of
from ackwise.plugin.handlers.handler import check_agent, names_of, refuse_own_topics
from ackwise.plugin.handlers.observers import Observer
from ackwise.plugin.policyslots import Policy, Slots
from ackwise.plugin.receivers import DemandQueue, Receivers
from ackwise.plugin.settings.config import read_config
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS, AppSettings, HostSettings, refuse_unknown

if TYPE_CHECKING:
    from typing import Self, Unpack


T_co = TypeVar("T_co", covariant=True)


class Received(Message[T_co]):
    """A received message. No other receiver gets it until `receipt` expires.

    Read-only. The receipt is valid once, in the consumer that gave it, for any of its receivers.
    """

    __slots__ = ("receipt",)

    receipt: str

    def __init__(self, message: Message[T_co], receipt: str) -> None:
        super().__init__(message.delivery, message.value)
        self.fencing_token = message.fencing_token
        self.receipt = receipt

    def __repr__(self) -> str:
        return f"<Received {self.delivery.origin} attempt={self.delivery.attempt}>"


T = TypeVar("T")

#: Seconds that a receiver waits beyond its time for messages whose claims are under way.
_GRACE: Final = 1.0


class SimpleConsumer(Generic[T]):
    """Receive messages of `topics`, and acknowledge each by its receipt:

        async with SimpleConsumer("billing", "orders", store="redis://localhost", model=Order) as consumer:
            for received in await consumer.receive(16, invisible="1m"):
                await charge(received.value)
                await consumer.ack(received)

    A received message is invisible to all other receivers, in any process of the group, until it is acknowledged or its receipt
    expires. Then it is delivered again with one more `reconsume_times`, up to the limit of `ConsumeLater`, and becomes a dead letter
    after that. Several tasks may receive and acknowledge concurrently.

    `store`: URL of the claim store or the store itself, for `Dedup(store)`; without it `things` have a `Dedup`. `things` are policies
    and observers as for `App.use`. `name` is part of copies, claims and events: changing it orphans them. `min_invisible` and
    `max_invisible` (seconds, or texts such as `"10s"`) limit the `invisible` of a call. `max_age` and `expires` are those of `App.agent`.
    `settings` are those of `App`. `clock`: monotonic seconds, which expire receipts.

    Raises `ConfigurationError` for options that would break a promise.
    """

    @overload
    def __init__(
        self,
        group: str,
        topics: str | Sequence[str],
        *things: Policy | Observer,
        model: type[T],
        store: str | ClaimStore | None = None,
        brokers: str = DEFAULT_BROKERS,
        name: str = "receiver",
        min_invisible: float | str = 10.0,
        max_invisible: float | str = "12h",
        max_age: float | str = 0.0,
        expires: bool = False,
        clock: Callable[[], float] = time.monotonic,
        **settings: Unpack[AppSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: SimpleConsumer[bytes],
        group: str,
        topics: str | Sequence[str],
        *things: Policy | Observer,
        store: str | ClaimStore | None = None,
        brokers: str = DEFAULT_BROKERS,
        name: str = "receiver",
        min_invisible: float | str = 10.0,
        max_invisible: float | str = "12h",
        max_age: float | str = 0.0,
        expires: bool = False,
        clock: Callable[[], float] = time.monotonic,
        **settings: Unpack[AppSettings],
    ) -> None: ...
    def __init__(
        self,
        group: str,
        topics: str | Sequence[str],
        *things: Policy | Observer,
        model: Any = bytes,
        store: str | ClaimStore | None = None,
        brokers: str = DEFAULT_BROKERS,
        name: str = "receiver",
        min_invisible: float | str = 10.0,
        max_invisible: float | str = "12h",
        max_age: float | str = 0.0,
        expires: bool = False,
        clock: Callable[[], float] = time.monotonic,
        **settings: Unpack[AppSettings],
    ) -> None:
        config = read_config()
        self._slots = slots = Slots(config)
        for thing in things if store is None else (*things, Dedup(store)):
            slots.use(thing)
        slots.check_middleware((), "a SimpleConsumer has no handler to wrap; leave it out")
        slots.refuse_tracing("a SimpleConsumer has none; leave it out")
        if slots.dedup is None:
            raise ConfigurationError("a SimpleConsumer hides received messages by claims; give it a store=, such as 'redis://localhost'")
        _ = slots.transactional  # refused together with Dedup
        self._invisibility = Invisibility(
            parse_duration(min_invisible, what="min_invisible"), parse_duration(max_invisible, what="max_invisible")
        )
        agent = Agent(
            name,
            names_of(topics, reader="a SimpleConsumer"),
            "message",
            _never,
            decoder_of(name, model),
            max_age=parse_duration(max_age, what="max_age"),
            expires=expires,
        )
        check_agent(agent)
        (agent,) = config.agents([agent])
        slots.refuse_own_middleware(name, "a SimpleConsumer has no handler to wrap; leave it out")
        self._agent = slots.governed(agent)
        refuse_unknown("SimpleConsumer", settings)
        self._settings: HostSettings = config.host_settings(group, brokers=brokers, **settings)
        refuse_own_topics(self._agent, group=group, dead_letter=slots.dead_letter.topic, topic_names=self._settings.topic_names)
        self._clock = clock
        self._demand = DemandQueue()
        self._stop = asyncio.Event()
        self._receivers: Receivers | None = None
        self._hosting: asyncio.Task[None] | None = None
        self._stopped_by: BaseException | None = None

    async def __aenter__(self) -> Self:
        """Start to consume. Raises `ConfigurationError` if it was entered before."""
        if self._hosting is not None:
            raise ConfigurationError("this SimpleConsumer was entered before; make a new one")
        host = self._host()
        self._hosting = asyncio.create_task(self._run(host), name="ackwise simple consumer")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Return unacknowledged messages, commit, and leave the group. Raises the error that ended the consuming, unless the body raised.

        Receipts become invalid, and no attempt is charged for returned messages.
        """
        assert self._hosting is not None
        unwanted = self._demand.close()
        try:
            if self._receivers is not None and not self._hosting.done():
                await self._receivers.close(unwanted)
            self._stop.set()
            await asyncio.wait({self._hosting})
        except asyncio.CancelledError:  # the end is cut short: nothing more is committed
            self._hosting.cancel()
            await asyncio.gather(self._hosting, return_exceptions=True)
            raise
        if error is None:
            self._raise_what_ended_it()

    async def receive(self, number: int = 1, *, invisible: float | str, wait: float | str = 5.0) -> list[Received[T]]:
        """Return up to `number` messages, hidden from other receivers for `invisible` seconds; an empty list if none comes within `wait`.

        It returns as soon as there is one, with the others that are available. A cancelled call returns its messages without counting an
        attempt. Raises `ConfigurationError` for arguments out of bounds, and the error that ended the consuming.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"receive was asked for {number!r} messages; ask for a whole number, 1 or more")
        seconds, patience = self._invisibility.seconds(invisible), parse_duration(wait, what="wait")
        hosting = self._running()
        if self._receivers is not None:
            self._receivers.expire()
        order = self._demand.ask(number)
        try:
            await asyncio.wait({order.filled, hosting}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if order.promised and not order.filled.done():
                await asyncio.wait({order.filled, hosting}, timeout=_GRACE, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for held in self._demand.leave(order):
                self._opened().give_back(held)
            raise
        taken = self._demand.leave(order)
        self._running()
        handed = [self._opened().hand_out(held, seconds) for held in taken]
        return [Received[Any](message, receipt) for message, receipt in filter(None, handed)]

    async def ack(self, received: Received[Any]) -> Answer:
        """Acknowledge a message. Only the answer `ACKED` is final; see `Answer`. Raises the error that ended the consuming."""
        (answer,) = await self.ack_all([received])
        return answer

    async def ack_all(self, received: Iterable[Received[Any]]) -> list[Answer]:
        """Acknowledge several messages in one exchange with the store. An invalid receipt does not affect the others."""
        self._running()
        receipts = [each.receipt for each in received]
        return [Answer.INVALID_RECEIPT] * len(receipts) if self._receivers is None else await self._receivers.ack(receipts)

    async def change_invisible(self, received: Received[T], seconds: float | str) -> Received[T]:
        """Return the message with a new receipt, invisible for `seconds` from now on; the old receipt becomes invalid.

        Raises `InvalidReceipt`, and `ConfigurationError` for a time out of bounds.
        """
        self._running()
        invisible = self._invisibility.seconds(seconds)
        if self._receivers is None or (receipt := self._receivers.change(received.receipt, invisible)) is None:
            raise InvalidReceipt(_invalid(received))
        return Received(received, receipt)

    async def later(self, received: Received[Any], *, delay: float | str | None = None, delay_level: int | None = None) -> None:
        """Deliver this message again: after `delay` (seconds, or a text), at `delay_level`, or by the policy `ConsumeLater`.

        It waits in the delay topic, and its partition goes on. Below level 0, and at the retry limit, it becomes a dead letter. Raises
        `InvalidReceipt`, and `InvalidRuling` if both are given.
        """
        self._running()
        if delay is not None and delay_level is not None:
            raise InvalidRuling("later() was given both delay and delay_level; give one of them")
        disposition = Delayed(delay_level or 0, None if delay is None else parse_duration(delay, what="delay of later()"))
        if self._receivers is None or not await self._receivers.send_back(received.receipt, disposition):
            raise InvalidReceipt(_invalid(received))

    def _host(self) -> AiokafkaHost:
        slots = self._slots
        slots.check([self._agent])
        slots.log_overrides(self._settings.group)
        parts = Parts.of(slots, self._settings.group, [self._agent])
        if (watching := watching_of(slots, self._settings, [self._agent])) is not None:
            parts = replace(parts, store=watching.timed(parts.store), sink=watching.counted(parts.sink))
        return AiokafkaHost(self._settings, [self._agent], parts, pipeline=self._make_pipeline, watching=watching)

    def _make_pipeline(self, agent: Agent, member: Member) -> Pipeline:
        def make(phases: Phases) -> Receivers:
            self._receivers = Receivers(phases, member, self._demand, clock=self._clock)
            return self._receivers

        return Pipeline(replace(agent, concurrency=None), member.worker, make)

    async def _run(self, host: AiokafkaHost) -> None:
        try:
            await host.run(self._stop)
        except BaseException as error:
            if is_a(error, GeneratorExit) or not stops(error):
                raise
            self._stopped_by = error  # a task that raises SystemExit would stop the event loop

    def _running(self) -> asyncio.Task[None]:
        if self._hosting is None:
            raise ConfigurationError("this SimpleConsumer is not open; use it inside of `async with`")
        if self._hosting.done():
            self._raise_what_ended_it()
            raise AckwiseError("this SimpleConsumer was closed; what was not acknowledged is delivered again")
        return self._hosting

    def _raise_what_ended_it(self) -> None:
        assert self._hosting is not None
        if self._stopped_by is not None:
            raise self._stopped_by
        if not self._hosting.cancelled():
            self._hosting.result()

    def _opened(self) -> Receivers:
        """Return the receivers. Raises if the consumer is not open."""
        assert self._receivers is not None
        return self._receivers


def _invalid(received: Received[Any]) -> str:
    origin = received.delivery.origin
    return (
        f"the receipt of {origin} in attempt {received.attempt} is not valid any more: it has expired, was used or replaced; "
        "leave the message alone, it is delivered again"
    )


async def _never(_: object) -> None:
    raise AckwiseError("a SimpleConsumer has no handler")
