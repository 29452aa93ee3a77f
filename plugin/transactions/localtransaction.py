"""`LocalTransaction`: what the business does between a half message and its end, and how that end becomes known."""

from __future__ import annotations

import uuid
from typing import Any

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import TransactionOutcome
from ackwise.plugin.transactions.barriers import Barriers

__all__ = ["LocalTransaction"]


class LocalTransaction:
    """One local transaction. `id` is in its half messages, for a callback that looks for what became of it.

    With a barrier its database decides, whatever is said here; without one the block decides: its end is COMMIT, an exception leaves
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
        """Whether it claims to have committed without the row that a check-back would look for."""
        return self._barriers is not None and not self._is_begun and self._told in (None, TransactionOutcome.COMMIT)

    async def outcome(self, *, raised: bool, wait: float) -> TransactionOutcome:
        """How it ended: what its database says, asked for at most `wait` seconds; without a barrier what was said.

        Raises `StoreUnavailable`.
        """
        if self._told is TransactionOutcome.UNKNOWN:
            return TransactionOutcome.UNKNOWN
        if self._barriers is not None and (raised or not self.lacks_barrier):
            return await self._barriers.probe(self.id, wait=wait)
        if self._told is not None:
            return self._told
        return TransactionOutcome.UNKNOWN if raised else TransactionOutcome.COMMIT
