"""Stay: one time of a relay at its outbox, from owning shards to an error or a stop.

    own shards → read a window → send it → events durable → delete it
                 read the next one beside that, delete the last one beside that

A sweep reads windows upwards from the lowest id, and begins anew after a moment: a row whose transaction commits late has a low id, and is
found by the next sweep. Nothing is sent after the lease has run out by the clock of this process.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log
from ackwise.middleware.outbox import Failed, OutboxRow, RelayStore, Sent, retry_delay
from ackwise.middleware.outgoing import Acked, MessageSender, SendAnswer, SendFailed
from ackwise.middleware.policies import Outbox
from ackwise.plugin.client.bounded import until
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.outbox.holding import Holding, fair_share
from ackwise.plugin.outbox.memory import AckMemory
from ackwise.plugin.outbox.window import Key, Ruling, Window, key_of, next_limit, rule

__all__ = ["LeaseOver", "OutboxStay", "Surroundings"]

log = Log()

#: Seconds until a relay with less than its share asks for more.
_HURRY: Final = 1.0

#: Seconds after which a sweep ends, so that the next one finds what committed late, and windows that it may have.
_LONGEST_SWEEP: Final = 1.0

#: Keys that a sweep leaves out of what it reads; with more it ends, and the database leaves them out by itself.
_MOST_STOPPED: Final = 500

#: Seconds from the first look at an idle outbox to the next, doubling up to the policy's `poll`.
_FIRST_PAUSE: Final = 0.02

#: The longest wait, in seconds, for brokers that are away.
_LONGEST_REST: Final = 10.0


class LeaseOver(AckwiseError):
    """The lease of the shards could not be renewed in time; nothing more is sent for them."""


@dataclass(slots=True)
class Surroundings:
    """What outlives a stay: who the relay is, and what it knows."""

    name: str
    """Name of the outbox in events and in the log."""
    owner: str
    policy: Outbox
    brokers_answer: Callable[[], Awaitable[bool]]
    sink: EventSink | None
    counts: OutboxCounts
    memory: AckMemory
    throttle: LogThrottle
    clock: Callable[[], float] = time.monotonic


class _Sweep:
    """How far a sweep is."""

    def __init__(self, now: float) -> None:
        self.begun = now
        self.after = 0
        self.stopped: set[Key] = set()
        self.sent = 0
        self.is_cut = False  #: it ends before its last row

    def may_go_on(self, now: float) -> bool:
        return not self.is_cut and now < self.begun + _LONGEST_SWEEP and len(self.stopped) <= _MOST_STOPPED


class OutboxStay:
    """Relays rows of `store` through `sender` for as long as `relay` goes."""

    def __init__(self, store: RelayStore, sender: MessageSender, around: Surroundings) -> None:
        self._store = store
        self._sender = sender
        self._around = around
        self._policy = around.policy
        self._lease = float(around.policy.lease)
        self._holding = Holding()
        self._owning = asyncio.Lock()
        self._limit = around.policy.batch
        self._pause = _FIRST_PAUSE
        self._outages = 0

    async def relay(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent has been deleted, or stays. Raises whatever ends it."""
        await self._store.claim_relay("table")
        if self._around.sink is not None:
            await self._around.sink.flush()  # where events can't be made durable, nothing is begun
        while not stop.is_set():
            await self._own_share()
            if await self._sweep(stop):
                self._pause = _FIRST_PAUSE
            else:
                await self._rest(stop)

    async def keep_lease(self) -> None:
        """Renew the lease while a sweep or a wait lasts. Raises `LeaseOver`, and what the database raises."""
        while True:
            await asyncio.sleep(max(0.0, min(self._lease / 3, self._holding.renew_at - self._around.clock() + self._lease / 12)))
            if not self._is_due():
                continue
            # As many as it has: what is given back while its rows are being sent would be sent twice.
            await self._own(max(1, len(self._holding.tokens)))

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
            self._holding = Holding.renewed(tokens, asked_at=asked_at, lease=self._lease, is_short=is_short, hurry=_HURRY)
            self._around.counts.shards = len(tokens)

    def _is_due(self) -> bool:
        return self._around.clock() >= self._holding.renew_at

    async def _sweep(self, stop: asyncio.Event) -> bool:
        """Send what is there, from the lowest id upwards; return whether there was anything to do.

        While a window is being sent, the one before it is deleted and the one behind it is read. A window is never sent before the
        answers to the one before it are known.
        """
        sweep = _Sweep(self._around.clock())
        settling = reading = None
        window = await self._read(sweep)
        has_begun = bool(window.rows)
        try:
            while window.rows:
                goes_on = window.is_full and sweep.may_go_on(self._around.clock()) and not stop.is_set()
                reading = asyncio.create_task(self._read(sweep)) if goes_on else None
                ruling = await self._send(window, sweep)
                if settling is not None:
                    await settling
                settling = asyncio.create_task(self._settle(ruling, window))
                window = Window() if reading is None else (await reading).still(self._holding.tokens, sweep.stopped)
                reading = None
                if sweep.is_cut:
                    break
            if settling is not None:
                await settling
        finally:
            for task in (reading, settling):
                if task is not None and not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task
        return has_begun and not sweep.is_cut

    async def _read(self, sweep: _Sweep) -> Window:
        """The next rows. What the broker has acknowledged before, and the database still has, is deleted and not sent again."""
        tokens, limit = self._holding.tokens, self._limit
        if not tokens:
            return Window()
        rows = await self._store.pending(
            tokens,
            limit=limit,
            blocked=tuple(sweep.stopped),
            after=sweep.after,
            block_key=self._policy.on_error == "block",
        )
        if rows:
            sweep.after = rows[-1].id
            self._limit = next_limit(rows, self._policy.batch)
        if known := [row for row in rows if self._around.memory.has(row)]:
            await self._delete(known, tokens)
            rows = [row for row in rows if not self._around.memory.has(row)]
        return Window(rows, tokens, is_full=len(rows) + len(known) >= limit)

    async def _send(self, window: Window, sweep: _Sweep) -> Ruling:
        if self._holding.is_over(self._around.clock()):
            raise LeaseOver(f"the lease of {self._around.counts.shards} shards ran out before it was renewed")
        answers = await self._sender.send_many([row.message for row in window.rows], stop_keys=True)
        ruling = self._rule(window.rows, answers)
        if ruling.may_be_outage and not await self._around.brokers_answer():
            sweep.is_cut = True
            self._note_outage(len(window.rows), ruling)
            return Ruling()  # nothing of it is written down: an outage is not an attempt
        if ruling.sent:
            self._end_outage()
        sweep.stopped |= ruling.stopped
        return ruling

    def _rule(self, rows: Sequence[OutboxRow], answers: Sequence[SendAnswer]) -> Ruling:
        return rule(rows, answers, max_attempts=self._policy.max_attempts, parked_blocks=self._policy.on_error == "block")

    async def _settle(self, ruling: Ruling, window: Window) -> None:
        """Make the events durable, then delete what was acknowledged and write down what failed."""
        sent = [row for row, _ in ruling.sent]
        self._around.memory.remember(sent)
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
        counts = self._around.counts
        counts.sent += deleted
        if deleted < len(rows):
            counts.taken_over += len(rows) - deleted
            log.warning(
                "rows of the outbox were sent here and belong to another relay by now, it sends them again under the same ids",
                outbox=self._around.name,
                rows=len(rows) - deleted,
            )

    async def _write_failures(self, failed: Sequence[tuple[OutboxRow, SendFailed, Failed]], tokens: Any) -> None:
        written = await self._store.failed([failure for _, _, failure in failed], tokens)
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
            "a row of the outbox is parked, it is not sent until it is requeued"
            if self._policy.on_error == "skip" or row.message.key is None
            else "a row of the outbox is parked with its key, nothing of the key is sent until it is requeued",
            outbox=self._around.name,
            row=row.id,
            topic=row.message.topic,
            message_id=row.message.message_id,
            attempts=row.attempts + 1,
            cause=failure.cause,
        )

    def _log_failure(self, row: OutboxRow, failure: Failed) -> None:
        if self._around.throttle.is_due(("failed", row.message.topic)):
            log.warning(
                "a row of the outbox was not acknowledged, its key waits and is tried again",
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

    def _note_outage(self, rows: int, ruling: Ruling) -> None:
        self._outages += 1
        self._around.counts.brokers_away = True
        if self._around.throttle.is_due("outage"):
            log.warning(
                "no broker answers, the rows of the outbox wait and no attempt is counted",
                outbox=self._around.name,
                rows=rows,
                error=ruling.failed[0][1].error or None,
            )

    def _end_outage(self) -> None:
        if self._outages:
            self._outages = 0
            self._around.counts.brokers_away = False
            self._around.throttle.reset("outage")
            log.info("the brokers answer again, the rows of the outbox are sent", outbox=self._around.name)

    async def _rest(self, stop: asyncio.Event) -> None:
        """Wait for rows, for the next renewal, for brokers that are away, or for the stop."""
        if self._outages:
            await until(stop, asyncio.sleep(min(_LONGEST_REST, retry_delay(self._outages))), grace=0.0)
            return
        until_own = max(0.0, self._holding.renew_at - self._around.clock())
        await until(stop, self._store.wait_for_rows(min(self._pause, until_own)), grace=0.0)
        self._pause = min(2 * self._pause, float(self._policy.poll))


def _keys(rows: Sequence[OutboxRow]) -> set[Key]:
    return {key for row in rows if (key := key_of(row)) is not None}
