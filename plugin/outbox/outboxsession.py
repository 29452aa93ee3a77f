"""`OutboxSession`: one session of a relay, from owning shards to an error or a stop.

    own shards → read a window → send it → events durable → delete it
                 the next read and the last delete run meanwhile

Each read starts at the lowest id, so a row whose transaction commits late is not skipped. Nothing is sent after the lease has expired by
the clock of this process.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import AckwiseError, StoreUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import Acked, MessageSender, SendAnswer, SendFailed
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import Failed, OutboxRow, RelayStore, Sent, UnreadableRow, retry_delay
from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.plugin.kafka.timeouts import until
from ackwise.plugin.outbox.outboxwindow import AckMemory, Holding, Key, Ruling, Window, fair_share, rule
from ackwise.plugin.outbox.readsize import ReadSize
from ackwise.plugin.outbox.sendsize import SendSize

log = Log()

T = TypeVar("T")

#: Seconds until a relay with less than its share asks for more.
_HURRY: Final = 1.0

#: Seconds from the first look at an idle outbox to the next, doubling up to the policy's `poll`, without notifications of commits.
_FIRST_PAUSE: Final = 0.02

#: Seconds for rows to gather behind a window that was not large: many small windows cost business and relay the processor. A row that
#: comes to an idle relay does not wait for it.
_GATHER: Final = 0.005

#: Seconds at least between two looks for rows that wait behind none any more, and how many times as long as such a look took.
_FREE_EVERY: Final = 0.05
_FREE_PART: Final = 10

#: The longest wait, in seconds, for brokers that are unavailable.
_LONGEST_REST: Final = 10.0


class LeaseOver(AckwiseError):
    """The lease of the shards could not be renewed in time; nothing more is sent for them."""


@dataclass(slots=True)
class RelayContext:
    """What outlives a session: who the relay is, and what it knows."""

    name: str
    """Name of the outbox in events and in the log."""
    owner: str
    policy: Outbox
    brokers_answer: Callable[[], Awaitable[bool]]
    sink: EventSink | None
    counts: OutboxCounts
    memory: AckMemory
    read_size: ReadSize
    send_size: SendSize
    throttle: LogThrottle
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class OutboxSession:
    """Relays rows of `store` through `sender` for as long as `relay` goes."""

    def __init__(self, store: RelayStore, sender: MessageSender, around: RelayContext) -> None:
        self._store = store
        self._sender = sender
        self._around = around
        self._policy = around.policy
        self._lease = float(around.policy.lease)
        self._holding = Holding()
        self._owning = asyncio.Lock()
        self._deleted = asyncio.Event()
        #: A store that learns of commits in other processes is waited for, and not asked again and again.
        self._first_pause = float(self._policy.poll) if getattr(store, "notifies", False) else _FIRST_PAUSE
        self._pause = self._first_pause
        self._outages = 0
        self._may_wait = True  #: whether a row may be due before anything else happens: it failed, or is delayed; also elsewhere

    async def relay(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent has been deleted, or stays. Raises whatever ends it."""
        await self._store.claim_relay("table")
        if self._around.sink is not None:
            await self._around.sink.flush()  # where events can't be made durable, nothing is started
        while not stop.is_set():
            await self._own_share()
            if await self._sweep(stop):
                self._pause = self._first_pause
                await until(stop, asyncio.sleep(_GATHER), grace=0.0)
            else:
                await self._rest(stop)

    async def keep_lease(self) -> None:
        """Renew the lease while a sweep or a wait lasts. Raises `LeaseOver`, and what the database raises."""
        while True:
            await asyncio.sleep(self._lease / 12)
            # As many as it has: what is given back while its rows are being sent would be sent twice.
            if self._holding.is_late(self._around.clock(), self._lease / 12):
                await self._own(max(1, len(self._holding.tokens)))

    async def free_rows(self) -> None:
        """Let rows go on that wait behind none any more: after deletions, and every few seconds. What fails is tried again."""
        while True:
            began, more = self._around.clock(), False
            self._deleted.clear()
            try:
                more = await self._store.free(block_key=self._policy.on_error == "block")
            except StoreUnavailable as error:
                if self._around.throttle.is_due("free"):
                    log.warning("rows behind sent ones not found", outbox=self._around.name, error=said(error))
            await asyncio.sleep(max(_FREE_EVERY, _FREE_PART * (self._around.clock() - began)))
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._lease / 3):
                        await self._deleted.wait()

    async def _own_share(self) -> None:
        """Between sweeps: take what is missing of the fair share, and give back what is above it."""
        if self._is_due():
            await self._own(fair_share(await self._store.relays()))

    async def _own(self, share: int) -> None:
        async with self._owning:
            if not self._is_due():
                return
            asked_at = self._around.clock()
            tokens = await self._store.own(self._around.owner, lease=self._lease, share=share)
            is_short = len(tokens) < fair_share(1) and len(tokens) < share
            self._may_wait |= tokens != self._holding.tokens
            self._holding = Holding.renewed(tokens, asked_at=asked_at, lease=self._lease, is_short=is_short, hurry=_HURRY)
            self._around.counts.shards = len(tokens)

    def _is_due(self) -> bool:
        return self._around.clock() >= self._holding.renew_at

    async def _sweep(self, stop: asyncio.Event) -> bool:
        """Send what is there, until little is, shards are to be looked at, or no broker answers; return whether anything was sent.

        While a window is being sent, the one before it is deleted and the one behind it is read. A window is sent once the answers to the
        one before it are known, and without the keys that those stopped. What is under way is what the windows hold that exist: a row
        that was taken out of its window is read again, before the later rows of its key.
        """
        tasks: set[asyncio.Task[Any]] = set()
        ruling, settling, before = Ruling(), None, Window()
        window = (await self._read(())).still(self._holding.tokens, ())
        has_sent = False
        try:
            while window.rows:
                goes_on = window.is_large(self._policy.batch) and not self._is_due() and not stop.is_set()
                reading = _begin(self._read(ruling.stopped, before, window), tasks) if goes_on else None
                ruling = await self._send(window)
                has_sent |= bool(ruling.sent)
                if settling is not None:
                    await settling
                before, settling = window, _begin(self._settle(ruling, window), tasks)
                ahead = Window() if reading is None else await reading
                window = Window() if self._outages else ahead.still(self._holding.tokens, ruling.stopped)
            if settling is not None:
                await settling
        finally:
            await _end(tasks)
        return has_sent

    async def _read(self, stopped: Collection[Key], *windows: Window) -> Window:
        """Return the next rows that are in none of `windows`.

        What the broker has acknowledged before, and the database still has, is deleted and not sent again.
        """
        if not (tokens := self._holding.tokens):
            return Window()
        under_way = tuple(row.id for window in windows for row in window.rows)
        rows = await self._pending(tokens, stopped, under_way)
        if rows or not under_way:
            first = next((row for row in rows if not row.is_delayed), None)
            self._around.counts.lag = 0.0 if first is None else max(0.0, self._around.wall() - first.created_ms / 1000)
        if known := [row for row in rows if self._around.memory.has(row)]:
            rows = [row for row in rows if not self._around.memory.has(row)]
            await self._delete(known, tokens)
        return Window(rows, tokens)

    async def _pending(self, tokens: Mapping[int, int], stopped: Collection[Key], under_way: tuple[int, ...]) -> list[OutboxRow]:
        while True:
            try:
                return await self._around.read_size.read(
                    lambda most: self._store.pending(
                        tokens,
                        limit=self._policy.batch,
                        most=most,
                        under_way=under_way,
                        blocked=tuple(stopped),
                        block_key=self._policy.on_error == "block",
                    )
                )
            except UnreadableRow as error:
                await self._park_unreadable(error, tokens)

    async def _send(self, window: Window) -> Ruling:
        rows = await self._begun(window)
        self._require(window)
        if not rows:
            return Ruling()
        answers = await self._around.send_size.send(
            self._sender,
            [row.message for row in rows],
            may_go_on=lambda: self._is_ours(window),
            brokers_answer=self._around.brokers_answer,
        )
        ruling = self._rule(rows, answers)
        if ruling.failed and not self._is_ours(window):  # perhaps they were not tried for that
            self._around.memory.remember(row for row, _ in ruling.sent)
            self._require(window)
        if ruling.may_be_outage and not await self._around.brokers_answer():
            self._note_outage(ruling)
            return Ruling()  # nothing of it is written down: an outage is not an attempt
        self._end_outage()
        self._around.memory.remember(row for row, _ in ruling.sent)
        return ruling

    def _is_ours(self, window: Window) -> bool:
        """Return whether the lease runs, and no shard of these rows was taken over."""
        return not self._holding.is_over(self._around.clock()) and window.still(self._holding.tokens, ()) is window

    async def _begun(self, window: Window) -> Sequence[OutboxRow]:
        """Return the rows that may be sent now. Who may expire is begun first: what is given to the client never expires afterwards."""
        if not (timed := [Sent(row.id, row.shard) for row in window.rows if row.expires]):
            return window.rows
        begun = await self._store.begin(timed, window.tokens)
        if expired := [row for row in window.rows if row.id in begun.expired]:
            await self._expire(expired, window.tokens)
        return [row for row in window.rows if not row.expires or row.id in begun.may_go]

    async def _expire(self, rows: Sequence[OutboxRow], tokens: Mapping[int, int]) -> None:
        for row in rows:
            self._record(EventCode.OUTBOX_EXPIRED, row, None)
        if self._around.sink is not None:
            await self._around.sink.flush()  # an event that is lost would leave a row that looks lost
        expired = await self._store.expire([Sent(row.id, row.shard) for row in rows], tokens)
        self._around.counts.expired += expired
        if expired:
            log.warning("outbox rows expired unsent", outbox=self._around.name, rows=expired, row=rows[0].id, topic=rows[0].message.topic)

    def _require(self, window: Window) -> None:
        if not self._is_ours(window):
            raise LeaseOver(f"the lease of {len(window.tokens)} shards ran out before it was renewed, or some of them were taken over")

    def _rule(self, rows: Sequence[OutboxRow], answers: Sequence[SendAnswer]) -> Ruling:
        return rule(rows, answers, max_attempts=self._policy.max_attempts, parked_blocks=self._policy.on_error == "block")

    async def _settle(self, ruling: Ruling, window: Window) -> None:
        """Make the events durable, then delete what was acknowledged and write down what failed."""
        sent = [row for row, _ in ruling.sent]
        for row, acked in ruling.sent:
            self._record(EventCode.OUTBOX_SENT, row, acked)
        if sent:
            await self._delete(sent, window.tokens)
        if ruling.failed:
            await self._write_failures(ruling.failed, window.tokens)

    async def _delete(self, rows: Sequence[OutboxRow], tokens: Any) -> None:
        if self._around.sink is not None:
            await self._around.sink.flush()
        deleted = await self._store.sent([Sent(row.id, row.shard) for row in rows], tokens)
        self._around.memory.forget(rows)
        if self._store.waits_behind:
            self._deleted.set()
        counts = self._around.counts
        counts.sent += deleted
        if deleted < len(rows):
            counts.taken_over += len(rows) - deleted
            log.warning(
                "sent outbox rows belong to another relay",
                outbox=self._around.name,
                rows=len(rows) - deleted,
            )

    async def _write_failures(self, failed: Sequence[tuple[OutboxRow, SendFailed, Failed]], tokens: Any) -> None:
        written = await self._store.failed([failure for _, _, failure in failed], tokens)
        self._may_wait = True
        if written < len(failed):
            return  # a shard was taken over: its new owner sends these rows, and judges for itself
        for row, answer, failure in failed:
            if failure.again_in is None:
                self._park(row, answer, failure)
            else:
                self._around.counts.failed += 1
                self._log_failure(row, failure)

    def _park(self, row: OutboxRow, answer: SendFailed, failure: Failed) -> None:
        self._around.counts.parked += 1
        self._record(EventCode.OUTBOX_PARKED, row, None, attempts=row.attempts + 1, cause=answer.error or "unknown")
        log.error(
            "outbox row parked",
            outbox=self._around.name,
            row=row.id,
            topic=row.message.topic,
            message_id=row.message.message_id,
            attempts=row.attempts + 1,
            holds_key=self._policy.on_error == "block" and row.message.key is not None,
            cause=failure.cause,
        )

    async def _park_unreadable(self, unreadable: UnreadableRow, tokens: Any) -> None:
        """Another program wrote it so; the rows behind it must not wait for that forever. Raises it if it can't be parked."""
        if not await self._store.failed([Failed(unreadable.id, unreadable.shard, str(unreadable), None)], tokens):
            raise unreadable
        self._around.counts.parked += 1
        log.error(
            "outbox row unreadable and parked",
            outbox=self._around.name,
            row=unreadable.id,
            topic=unreadable.topic,
            cause=str(unreadable),
        )

    def _log_failure(self, row: OutboxRow, failure: Failed) -> None:
        if self._around.throttle.is_due(("failed", row.message.topic)):
            log.warning(
                "outbox row not acknowledged",
                outbox=self._around.name,
                row=row.id,
                topic=row.message.topic,
                attempts=row.attempts + 1,
                cause=failure.cause,
                retry_in=None if failure.again_in is None else round(failure.again_in, 3),
            )

    def _record(self, code: EventCode, row: OutboxRow, acked: Acked | None, **facts: object) -> None:
        if (sink := self._around.sink) is None:
            return
        message = row.message
        sink.record(
            Event(
                code,
                message.topic,
                None if acked is None else acked.partition,
                None if acked is None or acked.offset < 0 else acked.offset,
                record_ts_ms=None if acked is None else acked.timestamp,
                dedup_key=message.message_id,
                attrs=json.dumps({"row": row.id, "outbox": self._around.name, **facts}),
            )
        )

    def _note_outage(self, ruling: Ruling) -> None:
        self._outages += 1
        self._around.counts.brokers_away = True
        if self._around.throttle.is_due("outage"):
            log.warning(
                "no broker answers the outbox relay",
                outbox=self._around.name,
                rows=len(ruling.failed) + len(ruling.behind),
                error=ruling.failed[0][1].error or None,
            )

    def _end_outage(self) -> None:
        if self._outages:
            self._outages = 0
            self._around.counts.brokers_away = False
            self._around.throttle.reset("outage")
            log.info("brokers answered the outbox relay again", outbox=self._around.name)

    async def _rest(self, stop: asyncio.Event) -> None:
        """Wait for rows, for the next renewal, for brokers that are unavailable, or for the stop."""
        if self._outages:
            await until(stop, asyncio.sleep(min(_LONGEST_REST, retry_delay(self._outages))), grace=0.0)
            return
        until_own = max(0.0, self._holding.renew_at - self._around.clock())
        woken = await until(stop, self._store.wait_for_rows(min(self._pause, until_own, await self._until_due())), grace=0.0)
        self._may_wait |= woken == (True,)  # what has come may be delayed
        self._pause = min(2 * self._pause, float(self._policy.poll))

    async def _until_due(self) -> float:
        """Seconds until a row is due, again or by its own time: no notification wakes a relay for it."""
        if not self._may_wait:
            return float("inf")
        due = await self._store.next_due(self._holding.tokens)
        self._may_wait = due is not None
        return float("inf") if due is None else max(0.0, due)


def _begin(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Do `work` beside the rest; `tasks` has it until it has ended."""
    task = asyncio.create_task(work, name="ackwise outbox")
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel what is left after an error, and wait for it; the error that is on its way says more than those of these."""
    for task in (left := set(tasks)):
        task.cancel()
    if left:
        await asyncio.wait(left)
        for task in left:
            if not task.cancelled():
                task.exception()
