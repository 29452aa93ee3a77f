"""`CheckBack`: asks about half messages that are due, writes down the answers, parks what nobody could tell.

    due_checks → who knows? barrier or callback → answered → LOCAL_COMMIT, LOCAL_ROLLBACK, one more check, or MESSAGE_ERROR

Nothing is ever discarded. A check that has no answer, since it raised or since nobody here knows, does not count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import BarrierStore, CheckAnswer, Prepared, PreparedStore, TransactionOutcome, UnreadableRow
from ackwise.plugin.checkback.counts import CheckCounts
from ackwise.plugin.checkback.schedule import CheckSchedule, by_transaction
from ackwise.plugin.checkback.witness import CHECK_TIMEOUT, PROBE_WAIT, Check, Witnesses
from ackwise.plugin.client.logthrottle import LogThrottle

__all__ = ["CheckBack"]

log = Log()

#: Half messages that are asked about side by side.
_AT_ONCE: Final = 32

#: Seconds for which nobody else is given them: a callback, and the database after it, have answered by then.
_LEASE: Final = 2 * CHECK_TIMEOUT

#: Seconds between two looks; the longest wait while the outbox does not answer.
_LOOK_EVERY, _LONGEST_WAIT = 1.0, 30.0


class CheckBack:
    """Checks the half messages in `store`: those of `producer_group`, or those of all groups with their barrier in it.

    `business` is the database of the local transactions where that is another one; `check` answers for half messages without a
    barrier. Any number of these may run, in any number of processes: a half message is given to one of them at a time.
    """

    def __init__(
        self,
        store: PreparedStore,
        *,
        producer_group: str | None = None,
        business: BarrierStore | None = None,
        check: Check | None = None,
        schedule: CheckSchedule | None = None,
        sink: EventSink | None = None,
        look_every: float = _LOOK_EVERY,
        probe_wait: float = PROBE_WAIT,
        name: str = "",
        counts: CheckCounts | None = None,
    ) -> None:
        """`name` is that of the outbox in events. `probe_wait`: seconds that a barrier waits for a local transaction that still runs."""
        self._store = store
        self._group = producer_group
        self._name = name
        self._witnesses = Witnesses([store] if business is None else [store, business], check, probe_wait=probe_wait)
        self._schedule = schedule or CheckSchedule()
        self._sink = sink
        self._look_every = look_every
        self._throttle = LogThrottle()
        self.counts = counts or CheckCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Check what is due until `stop` is set. While the outbox does not answer, or this user may not, look again with back-off.

        A worker that only writes rows goes on without the rights for it: others check.
        """
        wait = self._look_every
        while not stop.is_set():
            try:
                found = await self.look()
                wait = 0.0 if found == _AT_ONCE else self._look_every
                self._throttle.reset()
            except (Unavailable, ConfigurationError) as error:
                wait = min(_LONGEST_WAIT, max(1.0, 2 * wait))
                if self._throttle.is_due():
                    log.warning("half messages can't be checked here now, they wait", producer_group=self._group, error=said(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await stop.wait()

    async def look(self) -> int:
        """Check what is due now, up to a limit; returns how many half messages that were. Raises `StoreUnavailable`."""
        try:
            due = await self._store.due_checks(self._group, limit=_AT_ONCE, lease=_LEASE)
        except UnreadableRow as error:
            await self._park_unreadable(error)
            return _AT_ONCE
        answers = await asyncio.gather(*map(self._answers, by_transaction(due)))
        told = [pair for some in answers for pair in some]
        self.counts.unanswered += len(due) - len(told)
        if told:
            await self._store.answered([answer for _, answer in told])
            for prepared, answer in told:
                self._tell(prepared, answer)
        return len(due)

    async def _park_unreadable(self, unreadable: UnreadableRow) -> None:
        """Somebody else wrote it so; the others must not wait for that for ever."""
        await self._store.answered([CheckAnswer(unreadable.id, TransactionOutcome.UNKNOWN, None, str(unreadable))])
        self.counts.parked += 1
        log.error(
            "a half message can't be read, it is parked and the others are checked",
            producer_group=self._group,
            row=unreadable.id,
            topic=unreadable.topic,
            cause=str(unreadable),
        )

    async def _answers(self, half: Sequence[Prepared]) -> list[tuple[Prepared, CheckAnswer]]:
        """Those of one local transaction, with what to write down; empty if there is no answer."""
        used_up = [prepared for prepared in half if self._schedule.is_used_up(prepared)]
        asked = [prepared for prepared in half if not self._schedule.is_used_up(prepared)]
        outcome = await self._witnesses.ask(asked) if asked else None
        told = [] if outcome is None else [(prepared, self._schedule.answer(prepared, outcome)) for prepared in asked]
        return told + [(prepared, self._schedule.answer(prepared, TransactionOutcome.UNKNOWN)) for prepared in used_up]

    def _tell(self, prepared: Prepared, answer: CheckAnswer) -> None:
        """Count, log and record an answer."""
        match answer:
            case CheckAnswer(outcome=TransactionOutcome.COMMIT):
                self.counts.committed += 1
            case CheckAnswer(outcome=TransactionOutcome.ROLLBACK):
                self.counts.rolled_back += 1
            case CheckAnswer(again_in=None, cause=cause):
                self.counts.parked += 1
                log.error(
                    "a half message is parked, nobody could tell how its local transaction ended",
                    producer_group=prepared.producer_group,
                    row=prepared.id,
                    topic=prepared.message.topic,
                    transaction=prepared.tx_id,
                    cause=cause,
                )
                self._record(EventCode.OUTBOX_PARKED, prepared, {"checks": prepared.checks + 1})
            case _:
                self.counts.unknown += 1
        self._record(EventCode.OUTBOX_CHECKED, prepared, {"answer": answer.outcome.value, "checks": prepared.checks + 1})

    def _record(self, code: EventCode, prepared: Prepared, facts: dict[str, object]) -> None:
        if self._sink is not None:
            attrs = json.dumps({"outbox": self._name, "row": prepared.id, "producer_group": prepared.producer_group, **facts})
            error = "Unchecked" if code is EventCode.OUTBOX_PARKED else None
            self._sink.record(Event(code, prepared.message.topic, dedup_key=prepared.message.message_id, error=error, attrs=attrs))
