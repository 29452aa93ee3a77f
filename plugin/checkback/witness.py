"""`Witnesses`: who knows how a local transaction ended. Its barrier, where it has one; else the callback of its producer group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import BarrierStore, Prepared, TransactionOutcome
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.client.logthrottle import LogThrottle

__all__ = ["Check", "Witnesses"]

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

    def __init__(self, barriers: Iterable[BarrierStore], check: Check | None = None) -> None:
        self._barriers = tuple(barriers)
        self._check = check
        self._by_id: dict[str, BarrierStore] = {}
        self._throttle = LogThrottle()

    async def ask(self, half: Sequence[Prepared]) -> TransactionOutcome | None:
        """How the local transaction of these messages ended; `None` if nobody could be asked, or whoever was asked raised."""
        first = half[0]
        try:
            if first.barrier_in:
                return await self._probe(first)
            return await self._call_back(first)
        except Unavailable as error:
            self._say(first, "the database of a barrier does not answer, its half messages wait", said(error))
        return None

    async def _probe(self, first: Prepared) -> TransactionOutcome | None:
        store = await self._barrier(first.barrier_in)
        if store is None:
            self._say(first, "half messages have their barrier in a database that is not known here, they wait", None)
            return None
        return await store.probe(first.tx_id, wait=PROBE_WAIT)

    async def _barrier(self, database_id: str) -> BarrierStore | None:
        if database_id not in self._by_id:
            self._by_id = {await store.database_id(): store for store in self._barriers}
        return self._by_id.get(database_id)

    async def _call_back(self, first: Prepared) -> TransactionOutcome | None:
        if self._check is None:
            self._say(first, "half messages have no barrier, and nobody here can be asked about them, they wait", None)
            return None
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                outcome = await self._check(first)
        except Exception as error:  # noqa: BLE001  # the user's code; whatever it raises is no answer
            log.warning(
                "a check of a half message raised, it counts as not asked",
                producer_group=first.producer_group,
                row=first.id,
                error=type(error).__name__,
                at=where_raised(error),
            )
            return None
        if not isinstance(outcome, TransactionOutcome):
            log.warning(
                "a check of a half message returned no TransactionOutcome, it counts as not asked",
                producer_group=first.producer_group,
                row=first.id,
                returned=type(outcome).__name__,
            )
            return None
        return outcome

    def _say(self, first: Prepared, what: str, error: str | None) -> None:
        if self._throttle.is_due(what):
            log.warning(what, producer_group=first.producer_group, row=first.id, error=error)
