"""`CdcRelay`: sends the changes of a source, one `CdcSession` after the other. A session lasts from opening the log to an error or a stop.

    read → judge → send, while more is read → events durable → acknowledge at the end of a transaction

A position is acknowledged only after Kafka acknowledged every message before it. Any error ends the session, and the next one reads the
rest again under the same ids.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError, StoreUnavailable, Unavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import Acked, MessageSender, SendAnswer, SendFailed
from ackwise.middleware.storage.changes import Change, ChangeSource, Committed, SourceBusy, SourceStatus
from ackwise.middleware.storage.outbox import retry_delay
from ackwise.plugin.kafka.timeouts import ended
from ackwise.plugin.outbox.cdcroutes import Aside, ChangeMessage, OpenSender, Route

log = Log()

#: Changes that are read and sent at once. The next ones are read meanwhile, so twice as many are in memory.
_AT_ONCE: Final = 2000

#: Seconds from one heartbeat to the next, which is also how often the slot is looked at.
_BEAT: Final = 10.0

#: Seconds after which the table is looked into again for a row that the log told of; a stand-by that has to confirm may take longer.
_VISIBLE: Final = (0.05, 0.5, 5.0)

#: Seconds from one RELAY_POSITION to the next.
_TELL: Final = 1.0


class CdcCounts:
    """What a relay has done since it started."""

    def __init__(self) -> None:
        self.sent = 0
        self.transactions = 0
        self.parked = 0
        self.expired = 0
        self.position: str | None = None
        self.status: SourceStatus | None = None
        """As of the last heartbeat."""


class CdcSession:
    """Sends what `source`, which is open, says, for as long as `relay` goes. `name` is that of the source in events."""

    def __init__(
        self,
        source: ChangeSource,
        route: Route,
        sender: MessageSender,
        *,
        brokers_answer: Callable[[], Awaitable[bool]],
        stop: asyncio.Event,
        counts: CdcCounts,
        throttle: LogThrottle,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._route, self._sender, self._brokers_answer = source, route, sender, brokers_answer
        self._stop, self._counts, self._throttle, self._sink, self._clock = stop, counts, throttle, sink, clock
        self._look = asyncio.Event()
        self._told_at = float("-inf")
        self._held: str | None = ""  #: what the status says of the log; unknown at first

    async def relay(self) -> None:
        """Send until the stop. Raises whatever ends it."""
        await self._route.begin()
        if self._sink is not None:
            await self._sink.flush()  # where events can't be made durable, nothing is started
        self._look.set()
        reading: asyncio.Task[Sequence[Change | Committed]] | None = None
        try:
            while not self._stop.is_set():
                if self._look.is_set() and not await self._send_waiting():
                    return
                reading = reading or asyncio.create_task(self._source.read(_AT_ONCE), name="ackwise reads the log")
                if not await self._first(reading):
                    continue
                read, reading = reading.result(), asyncio.create_task(self._source.read(_AT_ONCE), name="ackwise reads the log")
                if not await self._deliver(read):
                    return
        finally:
            await _cancelled(reading)
            await self._route.end()

    async def keep(self) -> None:
        """Write heartbeats, renew what has to be renewed, and say what is wrong with the slot. Raises whatever ends the session."""
        while True:
            try:
                self._counts.status = await self._source.beat()
                self._tell_findings(self._counts.status)
            except StoreUnavailable as error:
                if self._throttle.is_due("beat"):
                    log.warning("heartbeat of change data capture failed", slot=self._source.name, error=said(error), retry_in=_BEAT)
            self._look_in(await self._route.keep())
            await asyncio.sleep(_BEAT)

    async def _first(self, reading: asyncio.Task[Sequence[Change | Committed]]) -> bool:
        """Wait for changes; whether they came before the stop and before the table is to be looked into."""
        others = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._look.wait())]
        try:
            await asyncio.wait({reading, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in others:
                other.cancel()
        return reading.done()

    async def _deliver(self, read: Sequence[Change | Committed]) -> bool:
        """Send what was read, then acknowledge the last transaction that ended in it; whether all was sent before the stop."""
        change_messages: list[ChangeMessage] = []
        ended: str | None = None
        refused: AckwiseError | None = None
        looks = False
        for each in read:
            if isinstance(each, Committed):
                ended = each.position
                self._counts.transactions += 1
                continue
            try:
                verdict = self._route.judge(each)
                if looks and isinstance(verdict, ChangeMessage):  # what waits in the table goes first, and may be this
                    if not await self._send_waiting():
                        return False
                    verdict, looks = self._route.judge(each), False
            except AckwiseError as error:  # what stands before it is sent first, so that it is not read again
                refused = error
                break
            if isinstance(verdict, ChangeMessage):
                change_messages.append(verdict)
            elif verdict is Aside.TABLE and not looks:
                if not await self._send(change_messages):
                    return False
                change_messages, looks = [], True
                self._look_again()
        if not await self._send(change_messages) or (looks and not await self._send_waiting()):
            return False
        if ended is not None:
            await self._acknowledge(ended)
        if refused is not None:
            raise refused
        return True

    async def _acknowledge(self, position: str) -> None:
        await self._hold(None)
        self._source.acknowledge(position)
        self._counts.position = position
        if self._sink is not None and self._clock() >= self._told_at + _TELL:
            self._told_at = self._clock()
            attrs = {"source": self._source.name, "position": position}
            self._sink.record(Event(EventCode.RELAY_POSITION, attrs=json.dumps(attrs)))

    async def _send_waiting(self) -> bool:
        """Send what waits in the table; whether all was sent before the stop. What comes in meanwhile is in the log."""
        self._look.clear()
        since_ms = (await self._source.status()).now_ms
        while change_messages := await self._route.waiting():
            if not await self._send(await self._begun(change_messages)):
                return False
            if all(change_message.row is not None and change_message.row.created_ms > since_ms for change_message in change_messages):
                break
        self._look_in(await self._route.due())
        return True

    def _look_in(self, seconds: float | None) -> None:
        """Look into the table then, unless that is so late that it is asked for again before."""
        if seconds is not None and seconds < _BEAT:
            asyncio.get_running_loop().call_later(max(0.0, seconds), self._look.set)

    async def _begun(self, waiting: Sequence[ChangeMessage]) -> Sequence[ChangeMessage]:
        """Return those that may be sent. The events of those that have expired are durable before that is written down."""
        may_go, expired = await self._route.begun(waiting)
        if expired:
            for change_message in expired:
                self._record(EventCode.OUTBOX_EXPIRED, change_message, None)
            if self._sink is not None:
                await self._sink.flush()
            await self._route.expire(expired)
            self._counts.expired += len(expired)
        return may_go

    def _look_again(self) -> None:
        """The log reports a commit a moment before a query sees it: look again soon, and later."""
        for delay in _VISIBLE:
            asyncio.get_running_loop().call_later(delay, self._look.set)

    async def _send(self, change_messages: Sequence[ChangeMessage]) -> bool:
        """Send until each is acknowledged, parked, or waits in the table; whether that was so before the stop."""
        tries = 0
        while change_messages := await self._route.unheld(change_messages):
            answers = await self._sender.send_many([change_message.message for change_message in change_messages], stop_keys=True)
            sent, failed, behind = _divided(change_messages, answers)
            await self._settle(sent)
            if not failed:
                return True
            if not tries:
                self._record_failures(failed)
            if not sent and all(answer.retriable for _, answer in failed) and not await self._brokers_answer():
                held: Sequence[ChangeMessage] = [change_message for change_message, _ in failed]  # an outage is no attempt
            else:
                held = await self._failed(failed)
            if held:
                tries += 1
                await self._hold(held[0], failed[0][1])
                if not await self._rest(tries, len(failed), failed[0][1]):
                    return False
            left = {id(change_message) for change_message in (*held, *behind)}
            change_messages = [change_message for change_message in change_messages if id(change_message) in left]
        return True

    async def _hold(self, change_message: ChangeMessage | None, failure: SendFailed | None = None) -> None:
        """Let the status say what the log waits for, or that it waits for nothing any more. It is written once for each reason."""
        why = None
        if change_message is not None and failure is not None:
            at = f", committed at {change_message.position}," if change_message.position else ""
            why = (
                f"the log is held by message {change_message.message.message_id} to {change_message.message.topic}{at} which Kafka does "
                f"not acknowledge ({failure.cause}): create the topic, or check the brokers; what is behind it waits"
            )
        if why != self._held:
            with suppress(StoreUnavailable):
                await self._source.hold(why)
                self._held = why

    async def _failed(self, failed: Sequence[tuple[ChangeMessage, SendFailed]]) -> Sequence[ChangeMessage]:
        """Write down what can wait in the table; return what can't."""
        failures = await self._route.failed(failed)
        causes = {id(change_message): answer.error for change_message, answer in failed}
        for change_message in failures.parked:
            self._counts.parked += 1
            self._record(EventCode.OUTBOX_PARKED, change_message, None, causes[id(change_message)] or None)
        if failures.again_in is not None:
            asyncio.get_running_loop().call_later(failures.again_in, self._look.set)
        return failures.held

    def _record_failures(self, failed: Sequence[tuple[ChangeMessage, SendFailed]]) -> None:
        """The first failure of rows: a row that hangs is known, even where its commit was not recorded."""
        for change_message, failure in failed:
            if change_message.row is not None and change_message.row.attempts == 0:
                self._record(EventCode.OUTBOX_STORED, change_message, None, failure.error or None)

    async def _settle(self, sent: Sequence[tuple[ChangeMessage, Acked]]) -> None:
        if not sent:
            return
        for change_message, acked in sent:
            self._record(EventCode.PRODUCED if change_message.row is None else EventCode.OUTBOX_SENT, change_message, acked)
        if self._sink is not None:
            await self._sink.flush()
        await self._route.sent(sent)
        self._counts.sent += len(sent)

    async def _rest(self, failures: int, count: int, failure: SendFailed) -> bool:
        """Wait until it is tried again; `False` if the stop came first, and at once if it has come."""
        delay = retry_delay(failures)
        if self._throttle.is_due("send"):
            log.warning(
                "Kafka did not acknowledge a change",
                slot=self._source.name,
                messages=count,
                cause=failure.cause,
                retry_in=round(delay, 3),
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stop.wait()
        return not self._stop.is_set()

    def _record(self, code: EventCode, change_message: ChangeMessage, acked: Acked | None, error: str | None = None) -> None:
        if self._sink is None:
            return
        facts: dict[str, object] = {
            "source": self._source.name,
            **({"position": change_message.position} if change_message.position else {}),
        }
        if change_message.row is not None:
            facts |= {"outbox": self._source.address, "row": change_message.row.id}
        self._sink.record(
            Event(
                code,
                change_message.message.topic,
                None if acked is None else acked.partition,
                None if acked is None or acked.offset < 0 else acked.offset,
                record_ts_ms=None if acked is None else acked.timestamp,
                error=error,
                dedup_key=change_message.message.message_id,
                attrs=json.dumps(facts),
            )
        )

    def _tell_findings(self, status: SourceStatus) -> None:
        for finding in status.findings:
            if self._throttle.is_due(finding):
                log.warning("change data capture needs attention", slot=self._source.name, finding=finding)


def _divided(
    change_messages: Sequence[ChangeMessage], answers: Sequence[SendAnswer]
) -> tuple[list[tuple[ChangeMessage, Acked]], list[tuple[ChangeMessage, SendFailed]], list[ChangeMessage]]:
    """Return what was sent, what failed, and what stands behind a failure of its key: it is sent after it, whatever its answer."""
    sent, failed, behind, stopped = (
        list[tuple[ChangeMessage, Acked]](),
        list[tuple[ChangeMessage, SendFailed]](),
        list[ChangeMessage](),
        set(),
    )
    for change_message, answer in zip(change_messages, answers, strict=True):
        message = change_message.message
        key = None if message.key is None else (message.topic, message.key)
        if key is not None and key in stopped:
            behind.append(change_message)
        elif isinstance(answer, Acked):
            sent.append((change_message, answer))
        else:
            failed.append((change_message, answer))
            stopped.add(key)
    return sent, failed, behind


async def _cancelled(reading: asyncio.Task[Sequence[Change | Committed]] | None) -> None:
    if reading is None:
        return
    reading.cancel()
    await asyncio.wait({reading})
    if not reading.cancelled():
        reading.exception()  # what was read is not acknowledged, and is read again


#: Seconds until a session that ended is started again, doubling up to the second; and until a slot that is in use is tried again.
_BEGIN_ANEW: Final = (0.5, 10.0)
_BUSY: Final = 1.0

#: Seconds after a stop for what is being sent to be acknowledged, and for each part to close.
_DRAIN, _CLOSE = 8.0, 3.0


class CdcRelay:
    """Relays what `source` says through `route`. `new_sender` makes the sender of a session."""

    def __init__(
        self,
        source: ChangeSource,
        route: Route,
        *,
        new_sender: Callable[[], OpenSender],
        brokers_answer: Callable[[], Awaitable[bool]],
        sink: EventSink | None = None,
    ) -> None:
        self._source, self._route, self._new_sender, self._brokers_answer, self._sink = source, route, new_sender, brokers_answer, sink
        self._throttle = LogThrottle()
        self.counts = CdcCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent is acknowledged, or read again by the next relay.

        What is unavailable is waited for. Raises what the operator has to fix: `ConfigurationError`, `ChangesLost`, `UnreadableChange` or
        `PublishRefused`. The position stays before what was not acknowledged, whatever ends it.
        """
        rest = _BEGIN_ANEW[0]
        while not stop.is_set():
            sent = self.counts.transactions
            try:
                await self._session(stop)
                return
            except SourceBusy as error:
                rest = _BUSY
                if self._throttle.is_due("busy"):
                    log.info("slot used by another relay", slot=self._source.name, error=said(error))
            except Unavailable as error:
                rest = _BEGIN_ANEW[0] if self.counts.transactions > sent else min(2 * rest, _BEGIN_ANEW[1])
                if self._throttle.is_due("away"):
                    log.warning(
                        "change data capture interrupted",
                        slot=self._source.name,
                        position=self.counts.position,
                        error=said(error),
                        retry_in=rest,
                    )
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await stop.wait()

    async def _session(self, stop: asyncio.Event) -> None:
        """Open everything and relay. Raises whatever ended it."""
        sender = self._new_sender()
        tasks: list[asyncio.Task[Any]] = []
        try:
            await sender.start()
            await self._route.open()
            await self._source.open()
            self._throttle.reset("away")
            log.info("change data capture opened the log", slot=self._source.name, database=self._source.address)
            session = CdcSession(
                self._source,
                self._route,
                sender,
                brokers_answer=self._brokers_answer,
                stop=stop,
                counts=self.counts,
                throttle=self._throttle,
                sink=self._sink,
            )
            tasks = [
                asyncio.create_task(session.relay(), name="ackwise change data capture"),
                asyncio.create_task(session.keep(), name="ackwise heartbeat of change data capture"),
            ]
            await self._until_over(tasks, stop)
        finally:
            await _end(tasks)
            await ended(sender.stop(), within=_CLOSE)
            await ended(self._source.close(), within=_CLOSE)

    async def _until_over(self, tasks: list[asyncio.Task[Any]], stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done and not tasks[0].done():
                await asyncio.wait(tasks[:1], timeout=_DRAIN)
        finally:
            stopping.cancel()
        for task in tasks:
            if task.done():
                task.result()


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel what is left, and wait for it; the error that is on its way says more than those of these."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
