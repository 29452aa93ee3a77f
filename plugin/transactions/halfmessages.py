"""`HalfMessages`: messages that are durable before the local transaction begins, and sent once it has committed.

    prepare (PREPARED) → local transaction → how did it end? → LOCAL_COMMIT or LOCAL_ROLLBACK, by compare-and-set

Whoever dies in between leaves them PREPARED, and so does an end that nobody knows: the check-back finds out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import BarrierStore, PreparedStore, TransactionOutcome
from ackwise.middleware.outgoing import Outgoing
from ackwise.plugin.transactions.barriers import Barriers
from ackwise.plugin.transactions.localtransaction import LocalTransaction

__all__ = ["HalfMessages"]

log = Log()

#: Seconds that whoever sends waits for a local transaction that is still open when its block has ended.
_PROBE_WAIT: Final = 1.0

#: Seconds for both questions after a local transaction, also when whoever waits is cancelled; the check-back answers after that.
_CONCLUDE: Final = 10.0


class HalfMessages:
    """Half messages of `producer_group` in `store`. `barriers` is the database of the local transactions, `None` without a barrier."""

    def __init__(
        self,
        store: PreparedStore,
        producer_group: str,
        barriers: BarrierStore | None,
        *,
        first_check: float,
        name: str = "",
        sink: EventSink | None = None,
    ) -> None:
        """`name` is that of the outbox in events, which `sink` takes."""
        self._store = store
        self._group = producer_group
        self._barriers = None if barriers is None else Barriers(barriers)
        self._first_check = first_check
        self._name = name
        self._sink = sink

    @asynccontextmanager
    async def prepare(self, messages: Sequence[Outgoing], *, first_check: float | str | None = None) -> AsyncIterator[LocalTransaction]:
        """Write `messages` as half messages, let the block be the local transaction, then decide about them.

        Raises what the block raises, and `StoreUnavailable` if they could not be written: then the block has not begun.
        """
        transaction = LocalTransaction(self._barriers)
        await self._store.prepare(
            messages,
            transaction.id,
            producer_group=self._group,
            barrier_in="" if self._barriers is None else await self._barriers.database_id(),
            first_check=self._first_check if first_check is None else parse_duration(first_check, what="first_check"),
        )
        try:
            yield transaction
        except BaseException:
            await self._conclude(transaction, messages, raised=True)
            raise
        await self._conclude(transaction, messages, raised=False)
        if transaction.lacks_barrier:
            raise ConfigurationError(
                "a local transaction ended without `await tx.barrier(connection)`, which must be its first statement. Its messages are "
                "sent this time; had the process died, a check-back would have taken it for rolled back. Call it, or give "
                "TransactionalProducer a check callback instead"
            )

    async def _conclude(self, transaction: LocalTransaction, messages: Sequence[Outgoing], *, raised: bool) -> None:
        """Decide, and see to it that a cancellation meanwhile comes after that."""
        concluding = asyncio.ensure_future(self._decide(transaction, messages, raised=raised))
        try:
            transaction.ended = await asyncio.shield(concluding)
        except asyncio.CancelledError:
            await asyncio.wait({concluding})
            raise

    async def _decide(self, transaction: LocalTransaction, messages: Sequence[Outgoing], *, raised: bool) -> TransactionOutcome:
        """Never raises: the local transaction has ended, and what can't be known or written down now is found out by the check-back."""
        try:
            async with asyncio.timeout(_CONCLUDE):
                outcome = await transaction.outcome(raised=raised, wait=_PROBE_WAIT)
                if outcome is not TransactionOutcome.UNKNOWN:
                    changed = await self._store.decide(transaction.id, outcome)
                    if changed and outcome is TransactionOutcome.COMMIT:
                        self._tell_stored(transaction, messages)
                return outcome
        except (Unavailable, TimeoutError) as error:
            log.warning(
                "the end of a local transaction could not be written down, the check-back finds it out",
                producer_group=self._group,
                transaction=transaction.id,
                error=said(error),
            )
            return TransactionOutcome.UNKNOWN

    def _tell_stored(self, transaction: LocalTransaction, messages: Sequence[Outgoing]) -> None:
        if self._sink is not None:
            attrs = json.dumps({"outbox": self._name, "producer_group": self._group, "transaction": transaction.id})
            for message in messages:
                self._sink.record(Event(EventCode.OUTBOX_STORED, message.topic, dedup_key=message.message_id, attrs=attrs))
