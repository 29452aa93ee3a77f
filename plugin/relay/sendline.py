"""Send line: one assigned partition of a topic of messages that are sent later, each to a topic of its own when it is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ackwise.middleware.disposition import Reason
from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.log import Log
from ackwise.middleware.message import Delivery
from ackwise.middleware.missing import MissingTopics
from ackwise.middleware.outgoing import MESSAGE_ID, Acked, MessageSender, Outgoing, new_message_id
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.sendlater import to_send
from ackwise.middleware.wire import Copy, ForeignCopy, OtherWire, shrink
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.relay.line import DelayLine, WaitingRecord
from ackwise.plugin.relay.single import Single

__all__ = ["SendLine", "SendingPublisher"]

log = Log()

#: Seconds that a topic may be missing until what is due for it goes to the dead letters; what is behind it in the line waits so long.
_PATIENCE: Final = 60.0

#: The reason of a dead letter that was to be sent, and which its topic refuses for good.
REFUSED: Final = "send-refused"


class SendLine(DelayLine):
    """A delay line whose records go to the topics that they name. Its names are those of `TopicNames.of_sends`."""

    def _next_copy(self, held: WaitingRecord) -> Copy | float:
        record = held.record
        if not isinstance(copy := super()._next_copy(held), Copy) or copy.topic != self._names.retry:
            return copy
        try:
            to_send(record.key, record.value, record.headers, self._names.group)
        except (ForeignCopy, OtherWire) as error:
            self._log_letter(record, Reason.FOREIGN_COPY, error)
            return self._letter(record, Reason.FOREIGN_COPY, error)
        return copy

    def _smaller(self, parcel: Single, refusal: PublishRefused) -> Copy:
        if parcel.copy.topic == self._names.dead_letter:
            return shrink(parcel.copy) or parcel.copy
        self._log_letter(parcel.record, REFUSED, refusal)
        return self._letter(parcel.record, REFUSED, refusal)

    def _log_letter(self, record: Delivery, reason: str, error: Exception) -> None:
        log.error(
            "a message can't be sent when it is due, and goes to the dead letters",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            error=str(error),
            dead_letters=self._names.dead_letter,
        )


class SendingPublisher:
    """Publishes what a send line moves: due messages with their ids to their topics, dead letters as every relay does."""

    def __init__(
        self, sender: MessageSender, letters: Publisher, names: TopicNames, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sender = sender
        self._letters = letters
        self._names = names
        self._missing = MissingTopics(_PATIENCE, clock)

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        """Send all; one answer for each, in order. Raises nothing but cancellation."""
        letters = [place for place, copy in enumerate(copies) if copy.topic == self._names.dead_letter]
        sends = [place for place, copy in enumerate(copies) if copy.topic != self._names.dead_letter]
        answers: list[PublishUnavailable | PublishRefused | None] = [None] * len(copies)
        for place, answer in zip(letters, await self._letters.publish([copies[place] for place in letters]), strict=True):
            answers[place] = answer
        messages = [self._message(copies[place]) for place in sends]
        for place, message, told in zip(sends, messages, await self._sender.send_many(messages), strict=True):
            found = self._missing.judge(message.topic, told)
            if not isinstance(found, Acked):
                answers[place] = (PublishUnavailable if found.retriable else PublishRefused)(found.cause)
        return answers

    def _message(self, copy: Copy) -> Outgoing:
        if copy.topic == self._names.retry:
            return to_send(copy.key, copy.value, copy.headers, self._names.group)
        found = next((value for name, value in reversed(copy.headers) if name == MESSAGE_ID), None) or b""
        try:
            return Outgoing(copy.topic, copy.value, copy.key, copy.headers, None, found.decode("utf-8", "surrogateescape"))
        except ConfigurationError:  # somebody else's record, which is found to be that when it is due
            return Outgoing(copy.topic, copy.value, copy.key, copy.headers, None, new_message_id())
