"""A message as Faust's agents see it, an event with the coordinates of its origin; and the inlet of a channel, where messages wait.

The stream acknowledges the event. Several actors may take from one inlet.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, cast

import faust
from faust.agents.models import ReqRepRequest
from faust.types import TP, AppT, EventT
from faust.types.tuples import Message as FaustMessage

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Delivery, Message
from ackwise.middleware.pipeline.streaming import InFlight, Where


class AckedMessage(FaustMessage):
    """What Faust calls the message of an event. Its acknowledgement is a decision on this message, and never an offset."""

    __slots__ = ("acknowledge",)

    acknowledge: Callable[[], None] | None

    def ack(self, consumer: Any, n: int = 1) -> bool:
        """The agent says that it is done. Returns whether that counts, which it does once."""
        if self.acked or self.acknowledge is None:
            return False
        self.acked = True
        acknowledge, self.acknowledge = self.acknowledge, None
        acknowledge()
        return True


class AckedEvent(faust.Event):
    """An event whose `async with` acknowledges it, except when an exception leaves the block: Faust's does so even then."""

    __slots__ = ()

    async def __aexit__(self, kind: Any = None, error: BaseException | None = None, traceback: Any = None) -> None:
        """Acknowledge, unless the block failed; then the agent that goes on raising has the word."""
        if error is None:
            self.ack()


class StreamMessage(Message[Any]):
    """A message with its event."""

    __slots__ = ("event",)

    event: EventT[Any]


def says_types(channel: faust.TopicT) -> bool:
    """Return whether the schema of `channel` says how values are decoded."""
    return channel.schema.value_type is not None or channel.schema.value_serializer is not None


def decoder(
    app: AppT, channel: faust.TopicT, decode_value: Callable[[bytes | None], object] | None = None
) -> Callable[[Delivery], Message[Any]]:
    """How the messages of `channel` are made: keys and values are decoded as its schema says, whatever that raises.

    With `decode_value` the schema is not asked, and keys stay raw. A copy comes with the coordinates of its origin, so that
    tables see the partition that they know.
    """

    def decode(delivery: Delivery) -> Message[Any]:
        origin = delivery.origin
        raw = AckedMessage(
            origin.topic,
            origin.partition,
            origin.offset,
            origin.timestamp_ms / 1000,
            0,
            cast(Any, list(delivery.headers)),
            delivery.key,
            delivery.value,
            None,
            tp=TP(origin.topic, origin.partition),
            generation_id=app.consumer_generation_id,
        )
        raw.acknowledge = None
        if decode_value is None:
            event = _completed(cast(Any, channel.decode(raw, propagate=True)))
        else:
            event = cast(Any, app).create_event(delivery.key, decode_value(delivery.value), raw.headers, raw)
        if type(event) is faust.Event:  # an app may have its own class
            cast(Any, event).__class__ = AckedEvent
        value = event.value.value if isinstance(event.value, ReqRepRequest) else event.value
        message = StreamMessage(delivery, value)
        message.event = event
        return message

    return decode


def _completed(decoding: Coroutine[Any, Any, EventT[Any]]) -> EventT[Any]:
    """Faust's decoders are coroutines that wait for nothing."""
    try:
        decoding.send(None)
    except StopIteration as answered:
        return cast(EventT[Any], answered.value)
    decoding.close()
    raise ConfigurationError("a schema waits for something while it decodes; decode at once, and fetch what you need in the agent")


#: Seconds that a loop which waits for nothing may have the event loop to itself. Stock Faust lets others run after each message.
_STRETCH: Final = 0.01


class Inlet:
    """`active`: the partitions that it serves, a set that Faust may change; `None` for all."""

    def __init__(self, active: set[TP] | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.active = active
        self._clock = clock
        self._breathe_at = 0.0
        self._waiting: deque[InFlight] = deque()
        self._again: deque[InFlight] = deque()  #: what failed in larger company: it is in no batch with others
        self._thrown: deque[BaseException] = deque()
        self._wakers: set[asyncio.Future[None]] = set()

    def put(self, members: Iterable[InFlight]) -> None:
        """Let `members` wait here, behind those that do; what runs again comes first."""
        for member in members:
            if member.again_until is None:
                self._waiting.append(member)
            else:
                self._again.append(member)
        self._wake()

    def throw(self, error: BaseException) -> None:
        """Raise `error` in one of those who take from here, before anything else is taken."""
        self._thrown.append(error)
        self._wake()

    async def get(self) -> InFlight:
        """Take the next one, waiting for it. Raises what was thrown."""
        while True:
            self._raise_thrown()
            if (now := self._clock()) >= self._breathe_at:
                now = await self._breathe()
            seconds: float | None = None
            while seconds is None and (queue := self._again or self._waiting):
                if queue[0].where is Where.WAITING and (due_in := queue[0].due_in()) > 0:
                    seconds = due_in
                elif (member := queue.popleft()).where is Where.WAITING and member.take(now):
                    return member
            await self._sleep(seconds)

    async def gather_flight(self) -> list[InFlight]:
        """Take the next one, waiting for it, and those that were handed over with it. Raises what was thrown.

        Of what runs again, as many as each of them allows.
        """
        first = await self.get()
        flight = [first]
        queue, most = (self._waiting, None) if first.again_until is None else (self._again, first.limit)
        while (
            queue and len(flight) != most and (queue[0].where is not Where.WAITING or (queue[0].is_with(first) and not queue[0].due_in()))
        ):
            member = queue.popleft()
            if member.where is Where.WAITING and member.take(first.run.started_at):
                flight.append(member)
        return flight

    async def flight(self) -> list[InFlight]:
        """Wait for the next one and return it with those that were handed over with it; until each is taken it may still be recalled.

        Of what runs again, as many as each of them allows. Raises what was thrown.
        """
        while True:
            self._raise_thrown()
            await self._breathe()
            self._waiting, self._again = _still(self._waiting), _still(self._again)
            queue = self._again or self._waiting
            seconds = queue[0].due_in() if queue else None
            if seconds is None or seconds > 0:
                await self._sleep(seconds)
                continue
            first = queue.popleft()
            flight, most = [first], None if first.again_until is None else first.limit
            while queue and len(flight) != most and queue[0].is_with(first):
                flight.append(queue.popleft())
            return flight

    async def gather(self, count: int, within: float | None) -> list[InFlight]:
        """Take up to `count`, waiting for the first, and from then on at most `within` seconds for the others.

        Until they are taken all of them may still be recalled. Each says how many may be in a batch with it. Raises what
        was thrown.
        """
        deadline: float | None = None
        await self._breathe()
        while True:
            self._raise_thrown()
            queue, batch, is_full = self._fitting(count)
            now = self._clock()
            if batch and within is not None:
                deadline = now + within if deadline is None else deadline
            elif not batch:
                deadline = None
            if is_full or (deadline is not None and now >= deadline):
                taken: list[InFlight] = []
                seconds = 0.0
                for member in batch:
                    if (seconds := member.due_in()) > 0:
                        break
                    queue.popleft()
                    if member.take(now):
                        taken.append(member)
                if taken:
                    return taken
                if seconds > 0:
                    await self._sleep(seconds)
                else:
                    deadline = None
                continue
            await self._sleep(None if deadline is None else deadline - now)

    def _fitting(self, count: int) -> tuple[deque[InFlight], list[InFlight], bool]:
        """Whence the next batch comes, the first that may be in it, and whether no further one fits in or is to be waited for."""
        self._waiting, self._again = _still(self._waiting), _still(self._again)
        queue = self._again or self._waiting
        batch: list[InFlight] = []
        limit = count
        for member in queue:
            limit = min(limit, member.limit)
            if len(batch) >= limit:
                return queue, batch, True
            batch.append(member)
        return queue, batch, len(batch) >= limit or (queue is self._again and bool(batch))

    def _raise_thrown(self) -> None:
        if self._thrown:
            raise self._thrown.popleft()

    def _wake(self) -> None:
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)

    async def _breathe(self) -> float:
        """Let others run; returns what time it is then."""
        await asyncio.sleep(0)
        now = self._clock()
        self._breathe_at = now + _STRETCH
        return now

    async def _sleep(self, seconds: float | None) -> None:
        """Wait until something was put or thrown, for at most `seconds`."""
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.add(waker)
        try:
            await asyncio.wait({waker}, timeout=seconds)
        finally:
            self._wakers.discard(waker)


def _still(queue: deque[InFlight]) -> deque[InFlight]:
    """Those of `queue` that were not recalled."""
    if all(member.where is Where.WAITING for member in queue):
        return queue
    return deque(member for member in queue if member.where is Where.WAITING)
