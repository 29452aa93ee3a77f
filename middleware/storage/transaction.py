"""Protocol of a transactional store: the writes of a handler and the mark "done" are one transaction of its database.

There are two ways to remember finished messages. The inbox has one row per key, inserted at the start of the transaction. Its lock
is the claim, so there is no lease and no token: a second worker waits for the first, and then finds the key finished or free.
The offsets have one row per partition with the next offset; its generation fences an earlier owner. A message that was sent
back has a row in the inbox either way.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.storage.claimstore import ClaimKey, Outcome, Stale

Place = tuple[str, int, int]
"""Where a message was first written: topic, partition, offset."""


class Taken(NamedTuple):
    """Yours, under the lock of its row, until this transaction ends."""


class Finished(NamedTuple):
    """Committed before: by the record at `origin`, in the execution `exec_id`."""

    outcome: Outcome | None
    """`None`: by its handler, which ended the transaction unseen; how much of it came true is unknown."""
    origin: Place
    exec_id: int


TransactionAnswer = Taken | Finished | Stale


class Finish(NamedTuple):
    """What becomes of a key when the transaction commits: one that is `Taken`, or that of a dead letter whose replay succeeded."""

    key: ClaimKey
    origin: Place
    exec_id: int
    outcome: Outcome | None
    """`None`: it was sent back; attempts below `next_attempt` are stale from then on."""
    next_attempt: int


class Progress(NamedTuple):
    """A partition that is ours."""

    next: int
    """The offset to go on with."""
    generation: int
    """Fences the previous owner of the partition."""


class Permit(enum.Enum):
    """Whether a copy may run, where offsets are kept: only if the transaction that passed its original sent it back."""

    GRANTED = "granted"
    """That transaction is there, or the original is from before offsets were kept."""
    PENDING = "pending"
    """The original is not passed yet: its own transaction will tell."""
    SUPERSEDED = "superseded"
    """The original was passed without being sent back: the copy is one of a transaction that was rolled back."""


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
        """One statement for all, of distinct keys; it replaces whatever was known of them, and keeps them for a whole retention.

        Raises `StoreUnavailable`, and `TransactionAborted` if the handler ended or broke the transaction.
        """
        ...


class OffsetsTransaction(Transaction, Protocol):
    """A transaction in which the offset of a partition moves."""

    async def lock(self, owner: str, topic: str, partition: int, generation: int) -> int:
        """Lock the row of the partition until the end, and answer its next offset. Raises `Fenced`, `StoreUnavailable`."""
        ...

    async def advance(self, owner: str, topic: str, partition: int, generation: int, next: int) -> None:
        """Go on at `next` once this is committed. Raises `Fenced`, `TransactionAborted`, `StoreUnavailable`."""
        ...

    async def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """May these copies, each with the place of its original, run? One statement. Raises `StoreUnavailable`."""
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


class OffsetsStore(TransactionalStore, Protocol):
    """A database that can keep offsets as well; its transactions are `OffsetsTransaction`.

    It may have `async def take_over_many(owner, positions)` as well, which takes a position by topic and partition, and answers a
    `Progress` for each, with one statement: all are taken over or none. Without it a worker takes them over one after the other.
    """

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        """From now on the partition is ours, and no previous owner commits anything for it.

        `position` is where it starts if no offset was ever kept for it. Raises `StoreUnavailable`.
        """
        ...


async def take_over_all(store: OffsetsStore, owner: str, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Progress]:
    """Take over many partitions, with the position of each: in one call if `store` has `take_over_many`, otherwise one by one.

    Leaves out those that can't be taken over now, as while another worker's batch holds one. Raises `StoreUnavailable` if that is all.
    """
    many = getattr(store, "take_over_many", None)
    if many is not None:
        try:
            taken: dict[tuple[str, int], Progress] = await many(owner, positions)
        except StoreUnavailable:
            if len(positions) == 1:
                raise
        else:
            return taken
    found, unavailable = {}, None
    for (topic, partition), position in positions.items():
        try:
            found[topic, partition] = await store.take_over(owner, topic, partition, position=position)
        except StoreUnavailable as error:
            unavailable = error
    if unavailable is not None and not found:
        raise unavailable
    return found
