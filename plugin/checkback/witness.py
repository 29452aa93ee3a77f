"""`Witnesses`: who knows how a local transaction ended. Its barrier, where it has one; else the callback of its producer group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, cast

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import BarrierStore, Prepared, TransactionOutcome
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.tracebacks import where_raised
from ackwise.middleware.usercode import Called, Returned, class_name, is_a
from ackwise.plugin.client.logthrottle import LogThrottle

__all__ = ["CHECK_TIMEOUT", "PROBE_WAIT", "Check", "Witnesses"]

log = Log()

Check = Callable[[Prepared], Awaitable[TransactionOutcome]]
"""RocketMQ's `checkLocalTransaction`: how did the local transaction of this half message end?"""

#: Seconds that a barrier waits for a local transaction that still runs; then nobody knows yet.
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

    async def ask(self, half: Sequence[Prepared]) -> TransactionOutcome | None:
        """How the local transaction of these messages ended; `None` if nobody could be asked, or whoever was asked raised."""
        first = half[0]
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

    async def _call_back(self, first: Prepared) -> TransactionOutcome | None:
        if self._check is None:
            self._wait(first, "it has no barrier, and there is no check callback here")
            return None
        outcome = await self._checked(self._check, first)
        if not isinstance(outcome, Returned):
            self._tell(first, class_name(outcome.error), where_raised(outcome.error))
            return None
        if is_a(outcome.value, TransactionOutcome):
            return cast(TransactionOutcome, outcome.value)
        self._tell(first, f"it returned {class_name(outcome.value)}, and no TransactionOutcome", None)
        return None

    async def _checked(self, check: Check, first: Prepared) -> Called:
        """In a task of its own: whatever the user's code raises is no answer, and what it leaves of a cancellation meets no other check."""
        task, found = in_a_task(check, first)
        timer = asyncio.get_running_loop().call_later(CHECK_TIMEOUT, task.cancel)
        try:
            if await ended(task):
                raise asyncio.CancelledError
        finally:
            timer.cancel()
        return outcome_of(found)

    def _tell(self, first: Prepared, error: str, at: str | None) -> None:
        log.warning(
            "a check of a half message gave no answer, it does not count",
            producer_group=first.producer_group,
            row=first.id,
            error=error,
            at=at,
        )

    def _wait(self, first: Prepared, why: str) -> None:
        if self._throttle.is_due(why):
            log.warning("a half message can't be checked here, it waits", producer_group=first.producer_group, row=first.id, why=why)
