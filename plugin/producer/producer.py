"""Ledger: the events of a producer, written behind its sends, so that a reconciliation compares what was sent with what was consumed.

`Producer`: sends messages from anywhere, with an answer for each, and drops none in silence.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, PublishRefused, PublishUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import (
    MISSING,
    Acked,
    MessageSender,
    Outgoing,
    SendAnswer,
    SendFailed,
    outgoing_of,
    refuse_own_headers,
)
from ackwise.middleware.policies.delaytopic import refuse_too_late, send_later
from ackwise.middleware.policies.policies import Events
from ackwise.middleware.storage.outbox import OutboxStore, retry_delay
from ackwise.plugin.kafka.timeouts import ended
from ackwise.plugin.producer.encoding import GivenHeaders, due_of, outgoing
from ackwise.plugin.producer.oneway import OneWay
from ackwise.plugin.producer.sender import Sender
from ackwise.plugin.registry import open_outbox, open_sink
from ackwise.plugin.settings.hostsettings import DEFAULT_BROKERS, HostSettings
from ackwise.plugin.topictemplate import DEFAULT_TOPIC_NAMES, TopicTemplate

log = Log()


class Ledger:
    """Records what became of messages in `sink`. A send does not wait for that: an event that is lost in a crash is never claimed."""

    def __init__(self, sink: EventSink | None) -> None:
        self._sink = sink
        self._flushing: asyncio.Task[None] | None = None
        self._is_behind = False
        self._throttle = LogThrottle()

    async def open(self) -> None:
        """Open the sink. Raises `EventLogUnavailable` or `ConfigurationError`."""
        if self._sink is not None:
            await self._sink.open()

    async def close(self) -> None:
        """Make durable what was recorded, and close the sink."""
        if self._sink is None:
            return
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        await self._flush(self._sink)
        await self._sink.close()

    def record(self, messages: Sequence[Outgoing], answers: Sequence[object]) -> None:
        """Record the answers to `messages` that the caller gets now; one that was saved to the outbox is its relay's to record."""
        if self._sink is None:
            return
        for message, answer in zip(messages, answers, strict=True):
            if (event := _event(message, answer)) is not None:
                self._sink.record(event)
        self._is_behind = True
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._catch_up(self._sink), name="ackwise producer events")

    async def _catch_up(self, sink: EventSink) -> None:
        while self._is_behind:
            self._is_behind = False
            if not await self._flush(sink):
                return

    async def _flush(self, sink: EventSink) -> bool:
        try:
            await sink.flush()
        except EventLogUnavailable as error:
            if self._throttle.is_due():
                log.warning("events of a producer not durable yet", error=said(error))
            return False
        return True


def _event(message: Outgoing, answer: object) -> Event | None:
    match answer:
        case Acked(topic, partition, offset, timestamp, message_id):
            place = None if offset < 0 else offset
            return Event(EventCode.PRODUCED, topic, partition, place, record_ts_ms=timestamp, dedup_key=message_id)
        case SendFailed(error=error):
            return Event(EventCode.PRODUCE_FAILED, message.topic, dedup_key=message.message_id, error=error or "NotTried")
    return None


#: Seconds after which a send to a missing topic is not tried again; a topic that is made on demand takes less.
_MISSING_WITHIN: Final = 9.0

#: Ids and topics that a log line or an error spells out; the rest is a number.
_SPELLED: Final = 20

#: Seconds at the end for what was given up to be saved to the outbox.
_LAND: Final = 10.0

#: Codecs that aiokafka brings; the brokers and every consumer have to know the one that is chosen.
_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")


class Saved(NamedTuple):
    """No broker acknowledged the message in time; it is a row of the outbox now, and the outbox's relay sends it."""

    topic: str
    message_id: str


class Producer:
    """Send messages to Kafka, acknowledged by all in-sync replicas:

        async with Producer("localhost:9092") as producer:
            sent = await producer.send("orders", {"number": 42}, key="customer-7")

    Each message has an id in the header `message-id`. Within one client nothing is written twice; where a client can't go on, another
    one may write what had no answer again, under the same id: consumers that use `Dedup(key=message_id)` run it once.

    Errors that may pass are tried again: at once, then after 1 s × 1.6ⁿ (± 20 %, at most 120 s). There are at most `attempts` tries, the
    first included (`None`: any number), and no send waits longer than `timeout` seconds for its answer, all tries together. These are
    RocketMQ's bounds (`retryTimesWhenSendFailed` + 1 and `sendMsgTimeout`), and its back-off, which is that of gRPC's connections. With an
    `outbox` (a URL or an open store), what has no answer by then is saved there, and the answer says so.

    `group` names the producer in events and logs; what is sent with `delay=` or `at=` waits for the workers of the app of that name,
    which has `delayed_sends=True`; `topic_names` and `clock_skew` are that app's. `events` takes PRODUCED and PRODUCE_FAILED: a folder,
    `Events(…)` or a sink. `close_timeout`: seconds at the end for what is in flight. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        brokers: str = DEFAULT_BROKERS,
        *,
        group: str = "producer",
        events: str | os.PathLike[str] | Events | EventSink | None = None,
        outbox: str | OutboxStore | None = None,
        attempts: int | None = None,
        timeout: float | str = 120.0,
        close_timeout: float | str = 30.0,
        compression: str | None = None,
        linger: float | str = 0.0,
        topic_names: str = DEFAULT_TOPIC_NAMES,
        clock_skew: float | str = 0.5,
        client_id: str = "ackwise",
        client_options: Mapping[str, object] | None = None,
        sender: MessageSender | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`sender`, `clock`, `wall`, `sleep` and `rng` are for tests: `sender` is neither started nor stopped."""
        settings = HostSettings(brokers, group, client_id=client_id, client_options=client_options or {}, topic_names=topic_names)
        self._group = group
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise ConfigurationError(
                f"attempts of Producer is {attempts!r}; give a number from 1, or None for as many as its timeout allows"
            )
        self._attempts = attempts
        self._timeout = parse_duration(timeout, what="timeout of Producer")
        if not self._timeout:
            raise ConfigurationError("timeout of Producer is 0, in which nothing is sent; give the seconds that a send may take")
        self._close_timeout = parse_duration(close_timeout, what="close_timeout of Producer")
        if compression is not None and compression not in _CODECS:
            raise ConfigurationError(f"compression of Producer is {compression!r}; it is {', '.join(map(repr, _CODECS))}, or None")
        options = {"compression_type": compression, "linger_ms": round(parse_duration(linger, what="linger of Producer") * 1000)}
        self._own_sender = Sender(settings, options=options, wall=wall) if sender is None else None
        self._sender: MessageSender = self._own_sender or sender  # type: ignore[assignment]  # one of them is there
        self._one_way = OneWay(settings, options)
        self._own_outbox = open_outbox(outbox) if isinstance(outbox, str) else None
        self._outbox = outbox if self._own_outbox is None and not isinstance(outbox, str) else self._own_outbox
        self._ledger = Ledger(_sink_of(events, group))
        self._clock_skew = parse_duration(clock_skew, what="clock_skew of Producer")
        self._delay_topic = TopicTemplate(topic_names).name(group, "delay")
        self._clock, self._wall, self._sleep, self._rng = clock, wall, sleep, rng
        self._in_flight: dict[int, Outgoing] = {}  #: by identity: two may have one id
        self._landed = asyncio.Event()
        self._giving_up = asyncio.Event()
        self._left: list[Outgoing] = []  #: what was neither acknowledged nor saved when it was closed
        self._is_open = False
        self._opened = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<Producer {self._group!r}, {len(self._in_flight)} in flight>"

    async def __aenter__(self) -> Self:
        """Connect. Raises `PublishUnavailable` if no broker answers, `ConfigurationError`, and what the outbox and the events raise."""
        if self._is_open or self._giving_up.is_set():
            raise ConfigurationError("this Producer was entered before; make a new one")
        async with AsyncExitStack() as opening:
            opening.push_async_callback(self._ledger.close)
            await self._ledger.open()
            if self._own_outbox is not None:
                opening.push_async_callback(self._own_outbox.close)
                await self._own_outbox.open()
            opening.push_async_callback(self._save_the_rest)  # what is given up is saved before the outbox is closed
            if self._own_sender is not None:
                opening.push_async_callback(self._own_sender.stop)
                await self._own_sender.start()
            opening.push_async_callback(self._one_way.stop)
            self._opened = opening.pop_all()
        self._is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """`close`. Where the block raised, what was not acknowledged is logged and not raised."""
        try:
            await self.close()
        except PublishUnavailable:
            if error is None:
                raise

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: GivenHeaders = (),
        partition: int | None = None,
        message_id: str | None = None,
        delay: float | str | None = None,
        at: datetime.datetime | float | None = None,
    ) -> Acked | Saved:
        """Send a message and return where it was written, or `Saved` if it is in the outbox instead.

        `value` is bytes, str, `None`, or what JSON can hold, such as a pydantic model. Without a `partition` the key decides, as Kafka's
        own clients do. `delay` (seconds, or a text such as `"5m"`) or `at` (an aware datetime, or epoch seconds) sends it then, never
        early; where it was written is then its place among those that wait.

        Raises `PublishRefused` if it is refused for good, `PublishUnavailable` if it was not acknowledged in time: it may be there all the
        same, and is sent again under its id by whoever gives that as `message_id`. Raises `ConfigurationError` for what can't be sent.
        """
        message = outgoing(topic, value, key=key, headers=headers, partition=partition, message_id=message_id)
        if (due := due_of(delay, at, self._wall())) is not None:
            message = self._later(message, due)
        (answer,) = await self._send([message])
        if isinstance(answer, SendFailed):
            raise (PublishUnavailable if answer.retriable else PublishRefused)(f"message {message.message_id!r}: {answer.cause}")
        return answer

    async def send_batch(self, messages: Sequence[Outgoing]) -> list[Acked | Saved | SendFailed]:
        """Send all; one answer for each, in order, whatever becomes of the others. Of a partition they are written in this order.

        Raises `ConfigurationError` if the producer is not open, one of them is no `Outgoing`, or has headers that only Ackwise sets; and
        nothing else but cancellation.
        """
        messages = outgoing_of(messages)
        for message in messages:
            refuse_own_headers(message)
        return await self._send(messages)

    async def send_one_way(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: GivenHeaders = (),
        partition: int | None = None,
        message_id: str | None = None,
    ) -> None:
        """Hand a message to the client and return, as RocketMQ's `sendOneway` does: no broker acknowledges it (acks=0).

        For what may be lost, such as traces: none of the promises of `send` holds. It may be lost or out of order without a word, it is
        tried once, and is in no outbox and no event. It is counted, as written to a connection or as failed.

        Raises `PublishUnavailable` if it can't be handed over within `timeout` seconds, 10 at most, and `ConfigurationError` as `send`.
        """
        message = outgoing(topic, value, key=key, headers=headers, partition=partition, message_id=message_id)
        self._refuse_closed()
        await self._one_way.send(message, within=self._timeout)

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise ConfigurationError("this Producer is not open; send inside of `async with Producer(brokers) as producer:`")

    async def _send(self, messages: Sequence[Outgoing]) -> list[Acked | Saved | SendFailed]:
        self._refuse_closed()
        self._in_flight.update((id(message), message) for message in messages)
        try:
            answers: list[Acked | Saved | SendFailed] = [*await self._deliver(messages)]
            await self._save(messages, answers)
            self._ledger.record(messages, answers)
            if self._giving_up.is_set():
                self._left += [message for message, found in zip(messages, answers, strict=True) if isinstance(found, SendFailed)]
            return answers
        finally:
            for message in messages:
                self._in_flight.pop(id(message), None)
            self._landed.set()

    async def close(self) -> None:
        """Wait up to `close_timeout` seconds for what is in flight, and close. Sends after this are refused.

        What is not acknowledged by then is saved to the outbox, or fails where it is awaited. Raises `PublishUnavailable` that names what
        was neither.
        """
        self._is_open = False
        try:
            await self._wait_for_landing()
        finally:
            self._giving_up.set()
            await self._opened.aclose()
            if left := [*self._left, *self._in_flight.values()]:
                log.error(
                    "the producer is closed before messages were acknowledged",
                    group=self._group,
                    messages=len(left),
                    topics=", ".join(sorted({message.topic for message in left})[:_SPELLED]),
                    ids=_spelled(left),
                )
        if left:
            raise PublishUnavailable(f"{len(left)} messages were not acknowledged when the producer was closed: {_spelled(left)}")

    async def _wait_for_landing(self) -> None:
        waiting = asyncio.ensure_future(self._have_landed())
        giving_up = asyncio.ensure_future(self._sleep(self._close_timeout))
        try:
            await asyncio.wait({waiting, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            giving_up.cancel()

    async def _save_the_rest(self) -> None:
        await ended(self._have_landed(), within=_LAND)

    async def _have_landed(self) -> None:
        while self._in_flight:
            self._landed.clear()
            await self._landed.wait()

    def _later(self, message: Outgoing, due: int) -> Outgoing:
        now_ms = round(self._wall() * 1000)
        refuse_too_late(message.topic, due, now_ms)
        return send_later(message, due, now_ms=now_ms, group=self._group, topic=self._delay_topic, clock_skew=self._clock_skew)

    async def _deliver(self, messages: Sequence[Outgoing]) -> list[SendAnswer]:
        """Send until each is acknowledged or refused, or its tries or its time are over; the time is short where its topic is missing."""
        began, tries = self._clock(), 1
        answers = await self._try(messages, self._timeout)
        while self._attempts is None or tries < self._attempts:
            wait = retry_delay(tries - 1, rng=self._rng) if tries > 1 else 0.0
            after = self._clock() + wait - began
            missing = min(self._timeout, _MISSING_WITHIN)
            again = [place for place, found in enumerate(answers) if isinstance(found, SendFailed) and found.retriable]
            again = [place for place in again if after < (missing if _is_missing(answers[place]) else self._timeout)]
            if not again or not await self._rest(wait):
                break
            found = await self._try([messages[place] for place in again], self._timeout - (self._clock() - began))
            for place, each in zip(again, found, strict=True):
                answers[place] = each
            tries += 1
        return answers

    async def _try(self, messages: Sequence[Outgoing], within: float) -> list[SendAnswer]:
        if isinstance(self._sender, Sender):
            return await self._sender.send_many(messages, within=within)
        return await self._sender.send_many(messages)

    async def _rest(self, seconds: float) -> bool:
        """Whether there is a next try after that time (seconds): not if the producer gives up meanwhile."""
        if not seconds:
            return not self._giving_up.is_set()
        resting = asyncio.ensure_future(self._sleep(seconds))
        giving_up = asyncio.ensure_future(self._giving_up.wait())
        try:
            await asyncio.wait({resting, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            resting.cancel()
            giving_up.cancel()
        return not self._giving_up.is_set()

    async def _save(self, messages: Sequence[Outgoing], answers: list[Acked | Saved | SendFailed]) -> None:
        """Make what may be sent later rows of the outbox, if there is one."""
        places = [place for place, found in enumerate(answers) if isinstance(found, SendFailed) and found.retriable]
        if self._outbox is None or not places:
            return
        saving = [messages[place] for place in places]
        try:
            await self._outbox.save(saving)
        except (StoreUnavailable, ConfigurationError) as error:
            log.error("messages neither acknowledged nor saved", group=self._group, messages=len(saving), error=said(error))
            return
        log.warning("unacknowledged messages saved to the outbox", group=self._group, messages=len(saving))
        for place in places:
            answers[place] = Saved(messages[place].topic, messages[place].message_id)


def _is_missing(answer: SendAnswer) -> bool:
    return isinstance(answer, SendFailed) and answer.error == MISSING


def _sink_of(events: str | os.PathLike[str] | Events | EventSink | None, group: str) -> EventSink | None:
    if isinstance(events, str | os.PathLike):
        events = Events(os.fspath(events))
    if not isinstance(events, Events):
        return events
    if not isinstance(events.sink, str | os.PathLike):
        return events.sink
    return open_sink(os.fspath(events.sink), group=group, mode=events.mode, permissions=events.permissions, facts={"sources": []})


def _spelled(messages: Sequence[Outgoing]) -> str:
    ids = ", ".join(message.message_id for message in messages[:_SPELLED])
    return ids if len(messages) <= _SPELLED else f"{ids} and {len(messages) - _SPELLED} more"
