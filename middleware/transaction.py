"""What the pipeline asks of a database in which the handler's writes and the mark "done" are one transaction.

The inbox: one row per key, inserted at the start of the transaction. Its lock is the claim, so there is no lease and no
token: who comes second waits for the first, and then finds the key finished or free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from ackwise.middleware.store import ClaimKey, Outcome, Stale

__all__ = ["Finish", "Finished", "Place", "Taken", "Transaction", "TransactionAnswer", "TransactionalStore"]

Place = tuple[str, int, int]
"""Where a message was first written: topic, partition, offset."""


class Taken(NamedTuple):
    """Yours, under the lock of its row, until this transaction ends."""


class Finished(NamedTuple):
    """Committed before: by the record at `origin`, in the execution `exec_id`."""

    outcome: Outcome
    origin: Place
    exec_id: int


TransactionAnswer = Taken | Finished | Stale


class Finish(NamedTuple):
    """What becomes of a key that is `Taken` when the transaction commits."""

    key: ClaimKey
    origin: Place
    exec_id: int
    outcome: Outcome | None
    """`None`: it was sent back; attempts below `next_attempt` are stale from then on."""
    next_attempt: int


class Transaction(Protocol):
    """One open transaction. `connection` is what the handler writes through: a driver's connection or a session."""

    @property
    def connection(self) -> Any:
        """For the handler, which neither commits nor rolls back."""
        ...

    async def claim(self, keys: Sequence[ClaimKey]) -> list[TransactionAnswer]:
        """One statement for all keys, which are distinct; waits for transactions that hold one of them.

        Raises `StoreUnavailable`.
        """
        ...

    async def finish(self, finishes: Sequence[Finish]) -> None:
        """One statement for all. Raises `StoreUnavailable`, and `TransactionAborted` if the handler ended or broke the transaction."""
        ...


class TransactionalStore(Protocol):
    """A database with an inbox. `retention` is how long finished keys are remembered, seconds."""

    async def open(self) -> None:
        """Connect and create what is missing. Raises `StoreUnavailable` or `ConfigurationError`."""

    def begin(self, *, retention: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that commits when the block ends, and rolls back if the block raises.

        Raises `StoreUnavailable`, also when it is not known whether the commit came through: then the keys tell, when
        they are claimed again. Raises `TransactionAborted` if there is nothing left to commit.
        """
        ...

    async def close(self) -> None:
        """Give back connections. Closing twice does nothing."""
