"""`Sender`: messages to Kafka through an idempotent producer, with an answer for each.

A batch that failed leaves a hole in the numbers by which the broker recognises repetitions, and the client can't fix it: another client
takes its place. What was not acknowledged before that may be written twice, under one message id. Within one client nothing is.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.structs import RecordMetadata

from ackwise.middleware.errors import PublishUnavailable
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import MISSING, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.message.refusals import Place, RecordRefusals, Silence
from ackwise.middleware.policies.delaytopic import MOST_HOPS
from ackwise.plugin.kafka.kafkaerrors import InvalidRecordError, Refusal, is_certain, refusal_of
from ackwise.plugin.kafka.timeouts import answer, ended
from ackwise.plugin.producer.idempotentproducer import IdempotentClient, OnItsWay, Partitions, SenderSettings, connected, due_of

log = Log()

#: Seconds until a message that was not acknowledged is reported; it may be acknowledged later, and asked for again it is not sent twice.
_TIMEOUT: Final = 10.0

#: Rungs that a message which waits for its time tries within the timeout.
_RUNGS: Final = 2

#: Seconds to learn the partitions of a topic.
_LEARN: Final = 5.0

#: Seconds for which a topic that a broker did not know is answered without asking again.
_MISSING_FOR: Final = 2.0

#: The part of the timeout that what is under way has in a client that was silent and whose place another one takes.
_OF_SILENT: Final = 0.1

#: Messages without an answer that are remembered; beyond that the oldest may be written twice.
_MOST_UNANSWERED: Final = 10_000

#: Messages in a row that fail by themselves until their partition is left alone: each costs a client, and the partition may be at fault.
_MOST_IN_A_ROW: Final = 10

#: To be sent again at once, alone in its batch and through a client that is in order. No caller sees it.
_AGAIN: Final = SendFailed("the batch was refused", retriable=True)

#: What to do about an error of the brokers.
_ADVICE: Final[Mapping[type[BaseException], str]] = {
    UnknownTopicOrPartitionError: "create the topic, or correct its name",
    MessageSizeTooLargeError: "send less, or raise max.message.bytes of the topic",
    RecordListTooLargeError: "send less, or raise max.message.bytes of the topic",
    TopicAuthorizationFailedError: "give this user the right to write to it",
    InvalidRecordError: "send what the topic takes: a compacted one takes nothing without a key",
    ClusterAuthorizationFailedError: "give this user the right IdempotentWrite on the cluster",
}

_BEHIND: Final = SendFailed("an earlier message of its partition was not acknowledged", retriable=True)
_STOPPED: Final = SendFailed("the producer is stopped", retriable=True)


class Sender:
    """Sends through one idempotent producer with acks=all, and takes another one when that can't go on.

    The answer `Acked` is the broker's. Whatever else happens, a cancellation from inside of the client too, is `SendFailed`.
    """

    def __init__(
        self,
        settings: SenderSettings,
        *,
        options: Mapping[str, object] | None = None,
        timeout: float = _TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`options` are for the producer alone, such as `compression_type`. `timeout`: seconds until a message is reported as failed.

        `clock`: seconds, by which a message that fails by itself is refused after a while, and a missing topic is looked for again.
        `wall`: epoch seconds, by which one that is sent later is due.
        """
        self._settings = settings
        self._refusals = RecordRefusals(clock)
        self._silence = Silence()
        self._missing: dict[str, tuple[float, SendFailed]] = {}  #: until when a topic is answered so
        self._clock, self._wall = clock, wall
        self._options = dict(options or {})
        self._timeout = timeout
        self._client: IdempotentClient | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[int]] = set()
        self._unanswered: dict[str, tuple[OnItsWay, int]] = {}
        self._running = 0
        self._is_stopping = False
        self._has_run = asyncio.Event()
        self._throttle = LogThrottle()

    async def start(self) -> None:
        """Connect. Raises `PublishUnavailable` if no broker answers, `ConfigurationError` for options that can't be used."""
        self._is_stopping = False
        self._client = await connected(self._settings, self._options, timeout=self._timeout)

    async def stop(self) -> None:
        """Take no more, wait in bounded time for what is being sent, which has its answers, and close. Raises nothing of the client's.

        Where this is cancelled, it closes without waiting.
        """
        self._is_stopping = True
        within = 0.0
        try:
            while self._running:
                self._has_run.clear()
                if not await ended(self._has_run.wait(), within=2 * self._timeout):
                    break
            within = self._timeout
        finally:
            await self._close(within)

    async def _close(self, within: float) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait({self._renewal})
        client, self._client = self._client, None
        if client is not None and (batches := await client.close(within=within)):
            log.warning("producer closed with messages in flight", batches=batches)
        if self._retiring:
            await asyncio.wait(self._retiring)

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False, within: float | None = None) -> list[SendAnswer]:
        """Send all; one answer for each, in order. Raises nothing but cancellation. The first one connects, if `start` did not.

        Of a partition the messages are written in the order of the list. Behind one that failed and may be sent again, none is sent;
        with `stop_keys` none with its key behind one that was refused for good. What was not tried has no `error` in its answer. A
        message that was sent before and had no answer yet is not sent again by the same client: its answer is that of the first one.
        `within`: seconds after which what has no answer yet is reported as failed; without, only each of its steps has a limit.
        """
        if self._is_stopping:
            return [_STOPPED] * len(messages)
        self._running += 1
        stopped = _StoppedKeys(messages) if stop_keys else None
        deadline = math.inf if within is None else asyncio.get_running_loop().time() + within
        try:
            answers = await self._attempt(messages, deadline, stopped, is_last=False)
            for is_left, is_last in ((_is_elsewhere, False), (_is_again, True)):
                if left := [place for place, found in enumerate(answers) if is_left(found)]:
                    second = await self._attempt([messages[place] for place in left], deadline, stopped, is_last=is_last)
                    for place, found in zip(left, second, strict=True):
                        answers[place] = found
            return answers
        finally:
            self._running -= 1
            self._has_run.set()

    async def _attempt(
        self, messages: Sequence[Outgoing], deadline: float, stopped: _StoppedKeys | None, *, is_last: bool
    ) -> list[SendAnswer]:
        """Send the messages of each partition, side by side with those of others; in the last attempt each alone in its batch."""
        answers: list[SendAnswer] = [_BEHIND] * len(messages)
        topics: dict[str, list[int]] = {}
        for number, message in enumerate(messages):
            topics.setdefault(message.topic, []).append(number)
        sending = [
            self._send_topic(topic, numbers, messages, answers, deadline, stopped, is_last=is_last) for topic, numbers in topics.items()
        ]
        await asyncio.gather(*sending)
        return answers

    async def _send_topic(
        self,
        topic: str,
        numbers: Sequence[int],
        messages: Sequence[Outgoing],
        answers: list[SendAnswer],
        deadline: float,
        stopped: _StoppedKeys | None,
        *,
        is_last: bool,
    ) -> None:
        """Answer the messages with these `numbers`, which are those of `topic`: no other topic waits for what is learnt of it."""
        partitions = await self._partitions(topic, max(messages[number].partition or 0 for number in numbers), deadline)
        if isinstance(partitions, SendFailed):
            for number in numbers:
                answers[number] = partitions
            return
        lines = self._lines(topic, partitions, numbers, messages, answers, stopped)
        sending = [
            self._send_to(place, [messages[each] for each in chosen], deadline, stopped, is_last=is_last) for place, chosen in lines.items()
        ]
        for chosen, found in zip(lines.values(), await asyncio.gather(*sending), strict=True):
            for number, each in zip(chosen, found, strict=True):
                answers[number] = each

    async def _send_to(
        self, place: Place, messages: Sequence[Outgoing], deadline: float, stopped: _StoppedKeys | None, *, is_last: bool
    ) -> list[SendAnswer]:
        """Send messages of one partition. What waits for its time is to go to another rung if this one does not acknowledge it soon."""
        waits = due_of(messages[0]) is not None
        deadline = min(deadline, asyncio.get_running_loop().time() + (self._timeout / _RUNGS if waits else self._timeout))
        try:
            answers = await self._send_line(place[1], messages, deadline, stopped, is_last=is_last)
        finally:
            self._silence.end_try(place)  # what is reported below counts
        if waits:
            self._silence.tell(place, is_silent=any(map(_is_silence, answers)))
        return [_elsewhere(each) for each in answers] if place in self._silence else answers

    def _lines(
        self,
        topic: str,
        partitions: Partitions,
        numbers: Sequence[int],
        messages: Sequence[Outgoing],
        answers: list[SendAnswer],
        stopped: _StoppedKeys | None,
    ) -> dict[Place, list[int]]:
        """The `numbers` by partition; what has no partition is answered."""
        lines: dict[Place, list[int]] = {}
        now = self._wall()
        for number in numbers:
            message = messages[number]
            if (hops := partitions.hops(message, now)) > MOST_HOPS:
                cause = (
                    f"topic {topic!r} has {len(partitions)} partitions, so a message would be written {hops} times, "
                    f"and {MOST_HOPS} are the most; add partitions up to 27"
                )
                answers[number] = SendFailed(cause, retriable=False, error="TooManyHops")
            elif (partition := partitions.of(message, now, partial(self._may_try, topic))) is None:
                cause = f"topic {topic!r} has {len(partitions)} partitions, and no partition {message.partition}"
                answers[number] = SendFailed(cause, retriable=False, error="UnknownPartition")
                if stopped is not None:
                    stopped.stop(message)
            else:
                lines.setdefault((topic, partition), []).append(number)
        return lines

    def _may_try(self, topic: str, partition: int) -> bool:
        return self._silence.may_try((topic, partition))

    async def _partitions(self, topic: str, highest: int, deadline: float) -> Partitions | SendFailed:
        """The partitions of `topic`, asked for again if it seems to have no partition `highest`."""
        now = self._clock()
        if (missing := self._missing.get(topic)) is not None and now < missing[0]:
            return missing[1]
        try:
            client = await self._current(min(self._timeout, _left(deadline)))
            known, available = await answer(client.partitions(topic), within=min(_LEARN, _left(deadline)))
            if highest not in known:
                await answer(client.learn(), within=min(_LEARN, _left(deadline)))
                known, available = await answer(client.partitions(topic), within=min(_LEARN, _left(deadline)))
        except Exception as error:  # noqa: BLE001  # whatever it was, nothing was sent
            failure = _failure(error, topic)
            if isinstance(error, UnknownTopicOrPartitionError):
                self._missing = {each: known for each, known in self._missing.items() if now < known[0]}
                self._missing[topic] = now + _MISSING_FOR, failure
            return failure
        return Partitions(known, available)

    async def _send_line(
        self, partition: int, messages: Sequence[Outgoing], deadline: float, stopped: _StoppedKeys | None, *, is_last: bool
    ) -> list[SendAnswer]:
        """Send messages of one partition, batch after batch.

        Behind one that may be there or not, nothing is sent; behind one that fails by itself, nothing with its key.
        """
        answers: list[SendAnswer] = []
        failing: set[bytes | None] = set()  #: keys
        in_a_row = 0  #: messages that failed by themselves
        while rest := messages[len(answers) :]:
            if failing:
                rest = _before(rest, failing)
            if not rest or (stopped is not None and not (rest := stopped.before(rest))):
                answers.append(_BEHIND)
                continue
            found = await self._send_batch(partition, rest, deadline, is_last)
            if stopped is not None:
                for message in [message for message, answer in zip(rest, found, strict=False) if _is_refusal(answer)]:
                    stopped.stop(message)
            answers += found
            last = answers[-1]
            in_a_row = in_a_row + 1 if isinstance(last, _FailedByItself) else 0
            if isinstance(last, _FailedByItself) and in_a_row < _MOST_IN_A_ROW:
                failing.update({messages[len(answers) - 1].key} - {None})
            elif isinstance(last, SendFailed) and last.retriable:
                answers += [last if last is _AGAIN else _BEHIND] * (len(messages) - len(answers))
        return answers

    async def _send_batch(self, partition: int, messages: Sequence[Outgoing], deadline: float, is_last: bool) -> list[SendAnswer]:
        """Send as many of `messages`, from the first, as go into one batch, and return their answers."""
        topic = messages[0].topic
        try:
            client = await self._current(_left(deadline))
            if (known := self._known(messages[0], partition)) is not None:
                sent, places = known
            else:
                new = self._new_ones(messages, partition)
                sent = await answer(client.submit(partition, new, alone=is_last), within=_left(deadline))
                places = range(len(sent.messages))
        except Exception as error:  # noqa: BLE001  # whatever it was, the first one is not acknowledged, and the others wait behind it
            return [_failure(error, topic, is_last=is_last, alone=is_last or len(messages) == 1)]
        await asyncio.wait({sent.future}, timeout=_left(deadline))
        if not sent.future.done():
            self._remember(sent)
            if known is not None and _left(sent.given_at + self._timeout) == 0.0:
                client.spoil()  # it may never come back to it
                client.is_silent = True
                if len(messages) == 1 and not is_last:  # so far it had the company of what was sent with it
                    return [_AGAIN]
            return [_failure(KafkaTimeoutError(), topic)] * len(places)
        if self._unanswered:
            self._forget(sent, places)
        try:
            acked: list[SendAnswer] = [sent.acked(place) for place in places]
        except Exception as error:  # noqa: BLE001  # whatever it was, it is not an acknowledgement, and the client is spoiled
            if sent.is_alone and refusal_of(error) is Refusal.OF_RECORD_IN_TIME:
                return [self._judge(sent.messages[0], partition, error)]
            return [_failure(error, topic, is_last=is_last, alone=sent.is_alone)] * len(places)
        for place in places if self._refusals else ():
            self._refusals.take((topic, sent.messages[place].message_id), (topic, partition))
        return acked

    def _judge(self, message: Outgoing, partition: int, error: BaseException) -> SendFailed:
        """The answer for a message that failed by itself: refused after a while, and until then to be sent again."""
        topic = message.topic
        if self._refusals.is_refused((topic, message.message_id), (topic, partition), certain=is_certain(error)):
            return _refused(error, topic)
        return _FailedByItself(*_failure(error, topic))

    def _known(self, message: Outgoing, partition: int) -> tuple[OnItsWay, range] | None:
        """The batch in which `message` is on its way to `partition` already, and its place."""
        sent, place = self._unanswered.get(message.message_id, (None, 0))
        if sent is None or sent.partition != partition or sent.messages[place] != message:
            return None
        return sent, range(place, place + 1)

    def _new_ones(self, messages: Sequence[Outgoing], partition: int) -> Sequence[Outgoing]:
        """The messages before the first one that is on its way already."""
        if not self._unanswered:
            return messages
        known = (place for place, message in enumerate(messages) if self._known(message, partition) is not None)
        return messages[: next(known, len(messages))]

    def _remember(self, sent: OnItsWay) -> None:
        """Keep the answer of a batch for the caller that sends its messages again."""
        names = [message.message_id for message in sent.messages]
        self._unanswered.update((name, (sent, place)) for place, name in enumerate(names))
        while len(self._unanswered) > _MOST_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]

        def forget_failed(future: asyncio.Future[RecordMetadata]) -> None:
            if future.cancelled() or future.exception() is not None:
                self._forget(sent)

        sent.future.add_done_callback(forget_failed)

    def _forget(self, sent: OnItsWay, places: Iterable[int] | None = None) -> None:
        for place in range(len(sent.messages)) if places is None else places:
            if self._unanswered.get(name := sent.messages[place].message_id, (None,))[0] is sent:
                del self._unanswered[name]

    async def _current(self, within: float) -> IdempotentClient:
        """The client if it can be used, otherwise the next one. Raises `PublishUnavailable` if there is none after `within` seconds."""
        client = self._client
        if client is None and self._is_stopping:
            raise PublishUnavailable("the producer is stopped")
        if client is None or not client.is_usable:
            if self._renewal is None or self._renewal.done():
                if client is not None and self._throttle.is_due():
                    log.warning("producer replaced after an error", client=self._settings.client_id)
                self._renewal = asyncio.create_task(self._renew(client), name="ackwise producer")
            await asyncio.wait({self._renewal}, timeout=max(0.0, within))
            client = self._client
        if client is None or not client.is_usable:
            raise PublishUnavailable(f"no producer can be started now, the brokers {self._settings.brokers!r} do not answer one")
        return client

    async def _renew(self, spoiled: IdempotentClient | None) -> None:
        try:
            self._client = await connected(self._settings, self._options, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001  # whatever it was, it may pass
            log.debug("producer could not start", error=said(error))
            return
        self._unanswered.clear()
        if spoiled is None:
            return
        within = self._timeout * (_OF_SILENT if spoiled.is_silent else 1)
        retiring = asyncio.create_task(spoiled.close(within=within), name="ackwise producer, retiring")
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)


class _FailedByItself(SendFailed):
    """The message, alone in its batch, is what failed: its partition takes others, and it is sent again."""

    __slots__ = ()


class _Elsewhere(SendFailed):
    """The rung that it was for does not acknowledge: another one may."""

    __slots__ = ()


class _StoppedKeys:
    """The topics and keys of which a message was refused for good in one call. What stands before it in the call is not stopped."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self._places = {id(message): place for place, message in enumerate(messages)}
        self._keys: dict[tuple[str, bytes], int] = {}

    def stop(self, message: Outgoing) -> None:
        if message.key is not None:
            key, place = (message.topic, message.key), self._places[id(message)]
            self._keys[key] = min(place, self._keys.get(key, place))

    def before(self, messages: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Those of `messages` before the first one that stands behind such a message of its key."""
        if not self._keys:
            return messages
        return messages[: next((place for place, each in enumerate(messages) if self._is_stopped(each)), len(messages))]

    def _is_stopped(self, message: Outgoing) -> bool:
        refused = None if message.key is None else self._keys.get((message.topic, message.key))
        return refused is not None and self._places[id(message)] > refused


def _before(messages: Sequence[Outgoing], failing: Collection[bytes | None]) -> Sequence[Outgoing]:
    """Those of `messages` before the first one with a key that is `failing`."""
    return messages[: next((place for place, each in enumerate(messages) if each.key in failing), len(messages))]


def _is_again(answer: SendAnswer) -> bool:
    return answer is _AGAIN


def _is_elsewhere(answer: SendAnswer) -> bool:
    return isinstance(answer, _Elsewhere)


def _elsewhere(answer: SendAnswer) -> SendAnswer:
    """`answer`, of a rung that does not acknowledge: what may be sent again may be sent to another one."""
    if isinstance(answer, SendFailed) and answer.retriable and answer is not _AGAIN:
        return _Elsewhere(*answer)
    return answer


def _is_silence(answer: SendAnswer) -> bool:
    """Whether a partition has not acknowledged what it was given, though its topic is there and a client as well."""
    if not isinstance(answer, SendFailed) or isinstance(answer, _FailedByItself):
        return False
    return answer.retriable and answer.error not in ("", MISSING, PublishUnavailable.__name__)


def _is_refusal(answer: SendAnswer) -> bool:
    return isinstance(answer, SendFailed) and not answer.retriable


def _left(deadline: float) -> float:
    return max(0.0, deadline - asyncio.get_running_loop().time())


def _failure(error: BaseException, topic: str, *, is_last: bool = True, alone: bool = False) -> SendFailed:
    """The answer for a message whose sending raised `error`."""
    refusal, name = refusal_of(error), type(error).__name__
    if isinstance(error, PublishUnavailable):
        return SendFailed(str(error), retriable=True, error=name)
    if refusal is Refusal.OF_TARGET or (refusal is Refusal.OF_RECORD and alone):
        return _refused(error, topic)
    if refusal is not Refusal.PASSING and not is_last:
        return _AGAIN
    return SendFailed(f"topic {topic!r} did not acknowledge the message ({name}){_advice(error)}", retriable=True, error=name)


def _refused(error: BaseException, topic: str) -> SendFailed:
    name = type(error).__name__
    return SendFailed(f"topic {topic!r} refuses the message for good ({name}){_advice(error)}", retriable=False, error=name)


def _advice(error: BaseException) -> str:
    """What to do about `error`, where that is known; starts with a semicolon."""
    return next((f"; {advice}" for kind, advice in _ADVICE.items() if isinstance(error, kind)), "")
