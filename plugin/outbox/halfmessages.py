"""`HalfMessages`: messages that are durable before the local transaction starts, and sent once it has committed.

    prepare (PREPARED) → local transaction → how did it end? → LOCAL_COMMIT or LOCAL_ROLLBACK, by compare-and-set

A process that dies in between leaves them PREPARED, and so does an unknown outcome: the check-back resolves them. A barrier row in the
database of the local transaction records its outcome.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError, TransactionAborted, Unavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.storage.asyncblock import asynchronous_block
from ackwise.middleware.storage.outbox import BarrierStore, PreparedStore, RowState, TransactionOutcome
from ackwise.middleware.storage.rowtime import AT_ONCE, Timing


class Barriers:
    """The barriers in `store`. Each connection that one is inserted through is compared with it, as it leads by now.

    A barrier in another database would never be found: what has committed there would be taken for rolled back.
    """

    def __init__(self, store: BarrierStore) -> None:
        self._store = store
        self._id: str | None = None

    async def database_id(self) -> str:
        """Return the id of the database with the barrier. Raise `StoreUnavailable`."""
        if self._id is None:
            self._id = await self._store.database_id()
        return self._id

    async def insert(self, connection: Any, tx_id: str) -> None:
        """See `BarrierStore.barrier`. Raises `ConfigurationError` for a connection to another database."""
        if await self._store.database_id(connection) != await self.database_id():
            raise ConfigurationError(
                "the connection that was given to tx.barrier leads to another database than that of the TransactionalProducer; name "
                "the database of your local transactions by business="
            )
        await self._store.barrier(connection, tx_id)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`."""
        return await self._store.probe(tx_id, wait=wait)


_DENIED: Final = (
    "the local transaction {id} ended without an error, and its database says that it was rolled back: its messages are not sent. An error "
    "that undoes all of it was caught inside, or tx.barrier was called in a savepoint that was rolled back, and then the rest may be "
    "committed: check what it wrote. Let such an error pass, and call tx.barrier outside of savepoints"
)

_REFUSED: Final = (
    "the local transaction {id} ended without an error, and a check-back had answered ROLLBACK before: its messages are not sent, check "
    "what it did. Raise first_check, or let the check callback answer UNKNOWN while it may still come"
)


class LocalTransaction:
    """One local transaction. `id` is in its half messages, for a callback that looks for what became of it.

    With a barrier its database decides; without one the block decides: its end is COMMIT, an exception leaves
    it to the check-back, and `rollback` says that nothing was done.
    """

    def __init__(self, barriers: Barriers | None) -> None:
        """`barriers`: `None` if it has none."""
        self.id = uuid.uuid4().hex
        self._barriers = barriers
        self._is_begun = False
        self._told: TransactionOutcome | None = None
        self.ended = TransactionOutcome.UNKNOWN  #: how it ended, as far as that is written down

    async def barrier(self, connection: Any) -> None:
        """The first statement of the local transaction, on the `connection` that it writes through.

        From here on a check-back waits for its end. Put last, it would let a check-back abort what takes long. Raises
        `TransactionAborted` if a check-back came first, so that the transaction must roll back, `StoreUnavailable`, and
        `ConfigurationError` where only a callback can be asked, and for a connection to another database.
        """
        if self._barriers is None:
            raise ConfigurationError("this TransactionalProducer asks its check callback, and has no database for a barrier; leave it out")
        await self._barriers.insert(connection, self.id)
        self._is_begun = True

    def rollback(self) -> None:
        """Say that the local transaction did nothing, or that what it did is undone: its messages are not sent."""
        self._told = TransactionOutcome.ROLLBACK

    def tell(self, outcome: TransactionOutcome) -> None:
        """Say how the local transaction ended; UNKNOWN leaves it to the check-back."""
        self._told = outcome

    @property
    def lacks_barrier(self) -> bool:
        """Return whether it claims to have committed without the row that a check-back would look for."""
        return self._barriers is not None and not self._is_begun and self._claims_commit

    def require_commit(self) -> None:
        """Raise `TransactionAborted` if it claims to have committed, and is rolled back by what is written down."""
        if self._claims_commit and self.ended is TransactionOutcome.ROLLBACK:
            raise TransactionAborted((_DENIED if self._is_begun else _REFUSED).format(id=self.id))

    @property
    def _claims_commit(self) -> bool:
        return self._told in (None, TransactionOutcome.COMMIT)

    async def outcome(self, *, raised: bool, wait: float) -> TransactionOutcome:
        """Return the outcome by its database, asked for at most `wait` seconds; without a barrier the reported one.

        Raises `StoreUnavailable`.
        """
        if self._told is TransactionOutcome.UNKNOWN:
            return TransactionOutcome.UNKNOWN
        if self._barriers is not None and (raised or not self.lacks_barrier):
            return await self._barriers.probe(self.id, wait=wait)
        if self._told is not None:
            return self._told
        return TransactionOutcome.UNKNOWN if raised else TransactionOutcome.COMMIT


log = Log()

#: Seconds that the sender waits for a local transaction that is still open when its block has ended.
_PROBE_WAIT: Final = 1.0

#: Seconds for both questions after a local transaction, also when the waiting caller is cancelled; the check-back answers after that.
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

    @asynchronous_block
    async def prepare(
        self, messages: Sequence[Outgoing], *, first_check: float | str | None = None, timing: Timing = AT_ONCE
    ) -> AsyncIterator[LocalTransaction]:
        """Write `messages` as half messages, let the block be the local transaction, then decide about them. `timing` is that of all.

        Raises what the block raises, `TransactionAborted` if it ended well and its database says that it rolled back, and
        `StoreUnavailable` if they could not be written: then the block has not started.
        """
        transaction = LocalTransaction(self._barriers)
        await self._store.prepare(
            messages,
            transaction.id,
            producer_group=self._group,
            barrier_in="" if self._barriers is None else await self._barriers.database_id(),
            first_check=self._first_check if first_check is None else parse_duration(first_check, what="first_check"),
            timing=timing,
        )
        try:
            yield transaction
        except BaseException:
            await self._conclude(transaction, messages, raised=True, timing=timing)
            raise
        await self._conclude(transaction, messages, raised=False, timing=timing)
        transaction.require_commit()
        if transaction.lacks_barrier:
            raise ConfigurationError(
                "a local transaction ended without `await tx.barrier(connection)`, which must be its first statement. Its messages are "
                "sent this time; had the process died, a check-back would have taken it for rolled back. Call it, or give "
                "TransactionalProducer a check callback instead"
            )

    async def _conclude(self, transaction: LocalTransaction, messages: Sequence[Outgoing], *, raised: bool, timing: Timing) -> None:
        """Decide; a cancellation meanwhile takes effect after that."""
        concluding = asyncio.ensure_future(self._decide(transaction, messages, raised=raised, timing=timing))
        try:
            transaction.ended = await asyncio.shield(concluding)
        except asyncio.CancelledError:
            await asyncio.wait({concluding})
            raise

    async def _decide(
        self, transaction: LocalTransaction, messages: Sequence[Outgoing], *, raised: bool, timing: Timing
    ) -> TransactionOutcome:
        """Never raises: the local transaction has ended, and what can't be known or written down now is found out by the check-back."""
        try:
            async with asyncio.timeout(_CONCLUDE):
                outcome = await transaction.outcome(raised=raised, wait=_PROBE_WAIT)
                if outcome is TransactionOutcome.UNKNOWN:
                    return outcome
                changed = await self._store.decide(transaction.id, outcome)
                if changed and outcome is TransactionOutcome.COMMIT and timing.due is None:  # a delayed one is not late yet
                    self._tell_stored(transaction, messages)
                return outcome if changed == len(messages) else await self._decided_before(transaction, outcome)
        except (Unavailable, TimeoutError) as error:
            log.warning(
                "end of a local transaction not written",
                producer_group=self._group,
                transaction=transaction.id,
                error=said(error),
            )
            return TransactionOutcome.UNKNOWN

    async def _decided_before(self, transaction: LocalTransaction, outcome: TransactionOutcome) -> TransactionOutcome:
        """A check-back was first: what it decided counts, and rows that are gone were sent. It may have parked them, undecided."""
        states = await self._store.states_of(transaction.id)
        if is_parked := RowState.MESSAGE_ERROR in states:
            log.error(
                "local transaction ended after its messages were parked",
                producer_group=self._group,
                transaction=transaction.id,
                outcome=outcome.value,
            )
        if RowState.LOCAL_ROLLBACK in states:
            return TransactionOutcome.ROLLBACK
        return outcome if is_parked else TransactionOutcome.COMMIT

    def _tell_stored(self, transaction: LocalTransaction, messages: Sequence[Outgoing]) -> None:
        if self._sink is not None:
            attrs = json.dumps({"outbox": self._name, "producer_group": self._group, "transaction": transaction.id})
            for message in messages:
                self._sink.record(Event(EventCode.OUTBOX_STORED, message.topic, dedup_key=message.message_id, attrs=attrs))
