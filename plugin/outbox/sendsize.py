"""`SendSize`: how much of an outbox is sent at once. Over a slow link many bytes have no answer in time, however often they are repeated.

A send that timed out says nothing of any one of its rows. They are sent again at once in smaller portions, down to a single row: what
fails alone has failed by itself. Where a second row of the topic fails alone too, its partition is at fault and not the size: its other
rows are left for later, and for a while such time-outs are not looked into again, since each look takes as long as a time-out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ackwise.middleware.log import Log
from ackwise.middleware.message.outgoing import MessageSender, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.storage.outbox import MOST_BYTES

log = Log()

#: Errors of the client that say no more than that there was no answer in time; and that there is no client at all.
_TIMED_OUT: Final = ("KafkaTimeoutError", "RequestTimedOutError")
_NO_CLIENT: Final = "PublishUnavailable"

#: Portions in a row that succeed until twice as much is sent at once.
_GROWS_AFTER: Final = 32

#: Rows of a topic that fail alone, in a row, until it is not the size that is at fault; and seconds for which that is believed.
_ALONE: Final = 2
_STUCK_FOR: Final = 300.0

#: Bytes that a message takes beside key and value, about: small ones count as well.
_OVERHEAD: Final = 100

_NOT_TRIED: Final = SendFailed("no answer to what was sent with it or before it", retriable=True)


class SendSize:
    """Bytes of rows to send at once: half as many after a send that timed out, down to a single row, and more after those that did not.

    `outbox` is its name in the log; `clock` is in seconds.
    """

    def __init__(self, outbox: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._clock = clock
        self._most, self._succeeded = MOST_BYTES, 0
        self._stuck: dict[str, float] = {}  #: topics, and until when

    async def send(
        self,
        sender: MessageSender,
        messages: Sequence[Outgoing],
        *,
        may_go_on: Callable[[], bool],
        brokers_answer: Callable[[], Awaitable[bool]],
    ) -> list[SendAnswer]:
        """Return an answer for each of `messages`, of the kinds and in the order that `send_many` with `stop_keys` promises.

        A time-out is the answer for a row that was sent alone. Others that have no answer were not tried, as far as this one knows.
        """
        sending = _Sending(sender, messages)
        rest = [*range(len(messages))]
        while (rest := sending.without_stopped(rest)) and may_go_on():
            portion = sending.first(rest, self._most)
            rest = rest[len(portion) :]
            late = await sending.send(portion)
            if not late:
                self._succeed()
                if sending.has_no_client:
                    break
            elif sending.acked or await brokers_answer():
                await self._narrow(sending, late, sending.size(portion), may_go_on)
            else:  # an outage, or a link that is full of what timed out: the next send shows which
                self._most, self._succeeded = max(1, sending.size(portion) // 2), 0
                break
        return sending.answers

    async def _narrow(self, sending: _Sending, late: list[int], most: int, may_go_on: Callable[[], bool]) -> None:
        """Send what timed out again, with at most half of the `most` bytes at once, of which one send timed out."""
        alone, now = Counter[str](), self._clock()
        late = sending.leave_stuck(late, {topic for topic, until in self._stuck.items() if now < until})
        most, has_succeeded = most // 2, False
        size = most if sending.acked else 1
        while (late := sending.without_stopped(late)) and may_go_on():
            portion = sending.first(late, size)
            still, late = await sending.send(portion), late[len(portion) :]
            topic = sending.topic(portion[0])
            if not still:
                has_succeeded = True
                alone.clear()
                size = min(most, 2 * max(size, sending.size(portion)))
            elif len(portion) > 1:
                late, most = still + late, sending.size(portion) // 2
                size = most if sending.acked else 1
            elif (alone := alone + Counter([topic])).total() > _ALONE:  # it is not the size, whatever the topic
                self._stuck.update(dict.fromkeys({topic, *map(sending.topic, late)}, self._clock() + _STUCK_FOR))
                break
            elif alone[topic] >= _ALONE:
                self._stuck[topic] = self._clock() + _STUCK_FOR
                late = [each for each in late if sending.topic(each) != topic]
        if has_succeeded:
            self._shrink(most)

    def _succeed(self) -> None:
        self._succeeded += 1
        if self._succeeded >= _GROWS_AFTER and self._most < MOST_BYTES:
            self._most, self._succeeded = min(MOST_BYTES, 2 * self._most), 0

    def _shrink(self, size: int) -> None:
        if size < self._most:
            log.warning("outbox send size reduced", outbox=self._outbox, bytes=size)
        self._most, self._succeeded = min(self._most, size), 0


class _Sending:
    """The messages of one call by their numbers, and what is known of each."""

    def __init__(self, sender: MessageSender, messages: Sequence[Outgoing]) -> None:
        self._sender = sender
        self._messages = messages
        self._stopped: set[tuple[str, bytes]] = set()  #: topic and key of what failed, or was refused
        self._sizes = [_OVERHEAD + len(each.value or b"") + len(each.key or b"") for each in messages]
        self.answers: list[SendAnswer] = [_NOT_TRIED] * len(messages)
        self.acked = 0  #: messages of the last portion
        self.has_no_client = False  #: as the last portion says

    async def send(self, numbers: Sequence[int]) -> list[int]:
        """Send these, and return those that are to be sent with fewer bytes: none if there was an answer to each, in whatever sense."""
        found = await self._sender.send_many([self._messages[each] for each in numbers], stop_keys=True)
        failed = [answer.error for answer in found if isinstance(answer, SendFailed)]
        self.acked = len(found) - len(failed)
        self.has_no_client = not self.acked and all(error == _NO_CLIENT for error in failed)
        is_late = any(error in _TIMED_OUT for error in failed)
        late = []
        for number, answer in zip(numbers, found, strict=True):
            if is_late and isinstance(answer, SendFailed) and answer.retriable and answer.error in ("", *_TIMED_OUT):
                late.append(number)
                self.answers[number] = answer if len(numbers) == 1 else _NOT_TRIED
            else:
                self.answers[number] = answer
        for number in numbers:
            if isinstance(self.answers[number], SendFailed) and self.answers[number] is not _NOT_TRIED:
                self._stop(number)
        return late

    def without_stopped(self, numbers: Sequence[int]) -> list[int]:
        """Those of `numbers` that are behind no failed message of their key; the others are not tried."""
        return [each for each in numbers if self._key(each) not in self._stopped] if self._stopped else [*numbers]

    def leave_stuck(self, numbers: Sequence[int], topics: set[str]) -> list[int]:
        """Those of `numbers` whose topic is in none of `topics`. Of each of these the first one stands for all: it has failed."""
        seen: set[str] = set()
        for each in numbers:
            if (topic := self.topic(each)) in topics - seen:
                seen.add(topic)
                self.answers[each] = SendFailed(f"topic {topic!r} did not acknowledge the message", retriable=True, error=_TIMED_OUT[0])
                self._stop(each)
        return [each for each in numbers if self.topic(each) not in topics]

    def first(self, numbers: Sequence[int], most: int) -> list[int]:
        """As many of `numbers`, from the first, as have up to `most` bytes; one at least."""
        taken, size = [*numbers[:1]], self._sizes[numbers[0]]
        for each in numbers[1:]:
            if (size := size + self._sizes[each]) > most:
                break
            taken.append(each)
        return taken

    def size(self, numbers: Sequence[int]) -> int:
        return sum(self._sizes[each] for each in numbers)

    def topic(self, number: int) -> str:
        return self._messages[number].topic

    def _stop(self, number: int) -> None:
        if (key := self._key(number)) is not None:
            self._stopped.add(key)

    def _key(self, number: int) -> tuple[str, bytes] | None:
        message = self._messages[number]
        return None if message.key is None else (message.topic, message.key)
