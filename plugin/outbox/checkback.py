"""`CheckBack`: finds out how the local transactions of old half messages ended, and parks those that nothing answers for.

    due checks → ask the barrier, or the producer group's callback → LOCAL_COMMIT, LOCAL_ROLLBACK, one more check, or MESSAGE_ERROR

Nothing is discarded. A check without an answer, because it raised or the outcome is unknown here, does not count. A callback may also
answer with what to send, and that it has to wait.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.storage.outbox import (
    FIRST_CHECK,
    MAX_CHECKS,
    NEXT_CHECK,
    BarrierStore,
    CheckAnswer,
    CheckResult,
    Prepared,
    PreparedStore,
    TransactionOutcome,
    UnreadableRow,
    Wait,
    next_check,
)
from ackwise.middleware.usercode import Called, Returned, class_name, is_a, looked, where_raised
from ackwise.plugin.consumer.workerstate import CheckCounts

Found: TypeAlias = TransactionOutcome | Wait | Outgoing
"""The answer of a check, with the content as the message that it makes of the half message."""


@dataclass(frozen=True, slots=True)
class CheckSchedule:
    """The first check comes `first` seconds after `prepare`, the next ones every `every` seconds, and `most` are answered at most.

    Raises `ConfigurationError` for a setting that can't work.
    """

    first: float = FIRST_CHECK
    every: float = NEXT_CHECK
    most: int = MAX_CHECKS

    def __post_init__(self) -> None:
        for name in ("first", "every"):
            object.__setattr__(self, name, parse_duration(getattr(self, name), what=f"{name} of the check-back"))
        if self.every <= 0:
            raise ConfigurationError("the check-back is to ask every 0 s; give the seconds between two checks, such as 30")
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise ConfigurationError(f"the check-back is to end after {self.most!r} checks; give a number from 1")

    def is_used_up(self, prepared: Prepared) -> bool:
        """Return whether it has had all its checks, as after the limit was lowered: it is parked unasked."""
        return prepared.checks >= self.most

    def answer(self, prepared: Prepared, found: Found) -> CheckAnswer:
        """Return what to store for `prepared`: a decision, one more check, or MESSAGE_ERROR after too many UNKNOWN."""
        match found:
            case Wait():
                return CheckAnswer(prepared.id, TransactionOutcome.UNKNOWN, found.seconds, counts=False)
            case Outgoing():
                return CheckAnswer(prepared.id, TransactionOutcome.COMMIT, content=found)
            case TransactionOutcome.COMMIT | TransactionOutcome.ROLLBACK:
                return CheckAnswer(prepared.id, found)
        again_in = next_check(prepared.checks + 1, limit=self.most, every=self.every)
        cause = "" if again_in is not None else f"{self.most} checks did not tell how its local transaction ended"
        return CheckAnswer(prepared.id, found, again_in, cause)


def by_transaction(due: Iterable[Prepared]) -> Sequence[Sequence[Prepared]]:
    """The messages of each local transaction together: one question answers for all of them."""
    found: dict[tuple[str, str], list[Prepared]] = {}
    for prepared in due:
        found.setdefault((prepared.tx_id, prepared.barrier_in), []).append(prepared)
    return list(found.values())


log = Log()

Check = Callable[[Prepared], Awaitable[CheckResult]]
"""RocketMQ's `checkLocalTransaction`: how did the local transaction of this half message end, and what is to be sent?"""

#: Seconds that a barrier waits for a local transaction that still runs; then the outcome is not known yet.
PROBE_WAIT: Final = 0.5

#: Seconds that a callback may take; it is cancelled then, and counts as one that raised.
CHECK_TIMEOUT: Final = 30.0


class Witnesses:
    """The databases of barriers by their `database_id`, and a callback.

    A barrier is probed in the database that the half message names and in no other: probing inserts the row that makes a
    late local transaction fail, and where there is no barrier it would roll back what has committed.
    """

    def __init__(self, barriers: Iterable[BarrierStore], check: Check | None = None, *, probe_wait: float = PROBE_WAIT) -> None:
        self._probe_wait = probe_wait
        self._barriers = tuple(barriers)
        self._check = check
        self._by_id: dict[str, BarrierStore] = {}
        self._throttle = LogThrottle()

    async def ask(self, first: Prepared) -> Found | None:
        """Return the outcome of the message's local transaction, or its content; `None` if nothing could be asked, or the check raised."""
        if not first.barrier_in:
            return await self._call_back(first)
        try:
            return await self._probe(first)
        except Unavailable as error:
            self._wait(first, f"the database of its barrier does not answer: {said(error)}")
            return None

    async def _probe(self, first: Prepared) -> TransactionOutcome | None:
        store = await self._barrier(first.barrier_in)
        if store is None:
            self._wait(first, "its barrier is in a database that is not known here")
            return None
        return await store.probe(first.tx_id, wait=self._probe_wait)

    async def _barrier(self, database_id: str) -> BarrierStore | None:
        if database_id not in self._by_id:
            self._by_id = {await store.database_id(): store for store in self._barriers}
        return self._by_id.get(database_id)

    async def _call_back(self, first: Prepared) -> Found | None:
        if self._check is None:
            self._wait(first, "it has no barrier, and there is no check callback here")
            return None
        outcome = await self._checked(self._check, first)
        if not isinstance(outcome, Returned):
            self.tell(first, class_name(outcome.error), where_raised(outcome.error))
            return None
        if (found := _found(first, outcome.value)) is None:
            self.tell(first, f"it returned {class_name(outcome.value)}; it takes a TransactionOutcome, Outgoing, bytes or Wait", None)
        return found

    async def _checked(self, check: Check, first: Prepared) -> Called:
        """In its own task: whatever the user's code raises is no answer, and what it leaves of a cancellation meets no other check."""
        task, found = in_a_task(check, first)
        timer = asyncio.get_running_loop().call_later(CHECK_TIMEOUT, task.cancel)
        try:
            if await ended(task):
                raise asyncio.CancelledError
        finally:
            timer.cancel()
        return outcome_of(found)

    def tell(self, first: Prepared, error: str, at: str | None) -> None:
        """Log that there is no answer."""
        log.warning(
            "check of a half message gave no answer",
            producer_group=first.producer_group,
            row=first.id,
            error=error,
            at=at,
        )

    def _wait(self, first: Prepared, why: str) -> None:
        if self._throttle.is_due(why):
            log.warning("half message could not be checked here", producer_group=first.producer_group, row=first.id, why=why)


def _found(first: Prepared, value: object) -> Found | None:
    """Return the answer that a callback has returned, `None` for what is none."""
    if type(value) is TransactionOutcome or type(value) is Wait:
        return value
    return looked(_content, first.message, value, otherwise=None)


def _content(half: Outgoing, value: Any) -> Outgoing | None:
    """Return what is sent for `half`, under the id that its sender knows."""
    if is_a(value, bytes):
        return replace(half, value=b"".join((value,)))
    if not is_a(value, Outgoing):
        return None
    return Outgoing(value.topic, value.value, value.key, value.headers, value.partition, message_id=half.message_id, context=value.context)


#: Half messages that are asked about side by side.
_AT_ONCE: Final = 32

#: Seconds for which no other process gets them: a callback, and the database after it, have answered by then.
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
                    log.warning("half messages could not be checked", producer_group=self._group, error=said(error))
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
        if decided := [(prepared, answer) for prepared, answer in told if answer.content is None]:
            await self._store.answered([answer for _, answer in decided])
            for prepared, answer in decided:
                self._tell(prepared, answer)
        await asyncio.gather(*(self._store_content(*each) for each in told if each[1].content is not None))
        return len(due)

    async def _store_content(self, prepared: Prepared, answer: CheckAnswer) -> None:
        """By itself: what the database does not take holds up no other answer. Who was later with another one changes nothing."""
        try:
            if await self._store.answered([answer]):
                self._tell(prepared, answer)
        except (Unavailable, ConfigurationError) as error:
            self.counts.unanswered += 1
            self._witnesses.tell(prepared, said(error), None)

    async def _park_unreadable(self, unreadable: UnreadableRow) -> None:
        """Another program wrote it so; the others must not wait for that forever."""
        await self._store.answered([CheckAnswer(unreadable.id, TransactionOutcome.UNKNOWN, None, str(unreadable))])
        self.counts.parked += 1
        log.error(
            "half message unreadable and parked",
            producer_group=self._group,
            row=unreadable.id,
            topic=unreadable.topic,
            cause=str(unreadable),
        )

    async def _answers(self, half: Sequence[Prepared]) -> list[tuple[Prepared, CheckAnswer]]:
        """Those of one local transaction, with what to write down; empty if there is no answer.

        Content is the answer for one message. Anything else is the answer for all that are left.
        """
        told = [(each, self._schedule.answer(each, TransactionOutcome.UNKNOWN)) for each in half if self._schedule.is_used_up(each)]
        left = [each for each in half if not self._schedule.is_used_up(each)]
        while left and (found := await self._witnesses.ask(left[0])) is not None:
            told_now = left[:1] if isinstance(found, Outgoing) else left
            told += [(each, self._schedule.answer(each, found)) for each in told_now]
            left = left[len(told_now) :]
        return told

    def _tell(self, prepared: Prepared, answer: CheckAnswer) -> None:
        """Count, log and record an answer."""
        match answer:
            case CheckAnswer(outcome=TransactionOutcome.COMMIT):
                self.counts.committed += 1
            case CheckAnswer(outcome=TransactionOutcome.ROLLBACK):
                self.counts.rolled_back += 1
            case CheckAnswer(counts=False):
                self.counts.waiting += 1
            case CheckAnswer(again_in=None, cause=cause):
                self.counts.parked += 1
                log.error(
                    "half message parked",
                    producer_group=prepared.producer_group,
                    row=prepared.id,
                    topic=prepared.message.topic,
                    transaction=prepared.tx_id,
                    cause=cause,
                )
                self._record(EventCode.OUTBOX_PARKED, prepared, {"checks": prepared.checks + 1})
            case _:
                self.counts.unknown += 1
        reported = answer.outcome.value if answer.counts else "wait"
        if prepared.is_delayed and answer.outcome is TransactionOutcome.COMMIT:
            reported = "delayed"  # committed, and not late yet
        sent = prepared if answer.content is None else prepared._replace(message=answer.content)
        self._record(EventCode.OUTBOX_CHECKED, sent, {"answer": reported, "checks": prepared.checks + answer.counts})

    def _record(self, code: EventCode, prepared: Prepared, facts: dict[str, object]) -> None:
        if self._sink is not None:
            attrs = json.dumps({"outbox": self._name, "row": prepared.id, "producer_group": prepared.producer_group, **facts})
            error = "Unchecked" if code is EventCode.OUTBOX_PARKED else None
            self._sink.record(Event(code, prepared.message.topic, dedup_key=prepared.message.message_id, error=error, attrs=attrs))
