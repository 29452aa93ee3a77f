"""A message as Faust's agents see it: an event, acknowledged by its stream, with the coordinates of its origin."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import faust
from faust.agents.models import ReqRepRequest
from faust.types import TP, AppT, EventT
from faust.types.tuples import Message as FaustMessage

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Delivery, Message

__all__ = ["AckedEvent", "AckedMessage", "StreamMessage", "decoder", "says_types"]


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
    """Whether the schema of `channel` says how values are decoded."""
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
        if type(event) is faust.Event:  # an app may have a class of its own
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
