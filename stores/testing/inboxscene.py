"""`InboxScene`: the inboxes of one test, driven without `await`, and what a test asks them."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ackwise.middleware.store import ClaimKey, Outcome
from ackwise.middleware.transaction import (
    Finish,
    OffsetsStore,
    OffsetsTransaction,
    Permit,
    Place,
    Progress,
    Transaction,
    TransactionalStore,
    TransactionAnswer,
)

T = TypeVar("T")

HERE: Final = ("orders", 3, 17)
"""The place of a message: topic, partition and offset."""


class Database(abc.ABC):
    """What the suite is told of the inbox, and of the table that handlers write to."""

    @abc.abstractmethod
    def make(self, place: Path) -> TransactionalStore:
        """An inbox that is not open yet; each call with the same `place`, a folder of this test, names the same database."""

    @abc.abstractmethod
    async def prepare(self, place: Path) -> None:
        """Make an empty table for effects, which are short texts and unique in it."""

    @abc.abstractmethod
    async def write(self, connection: Any, effect: str) -> None:
        """Write an effect through what a handler gets."""

    @abc.abstractmethod
    async def effects(self, place: Path) -> list[str]:
        """What is in the table, as another connection sees it."""

    @abc.abstractmethod
    async def commit(self, connection: Any) -> None:
        """What a handler must not do."""


class RolledBack(Exception):
    """Rolls a block back."""


def fresh_key(attempt: int = 1) -> ClaimKey:
    """A key that nobody used before."""
    return ClaimKey(os.urandom(16), None, attempt)


def done(key: ClaimKey, exec_id: int = 7, outcome: Outcome | None = Outcome.OK, next_attempt: int = 1) -> Finish:
    """The end of a message at `HERE`."""
    return Finish(key, HERE, exec_id, outcome, next_attempt)


def fresh_owner() -> str:
    """An owner of offsets that nobody used before."""
    return f"ackwise/0/{os.urandom(6).hex()}"


def with_offsets(inbox: TransactionalStore) -> OffsetsStore:
    """Return the inbox as one that keeps offsets."""
    return cast(OffsetsStore, inbox)


def with_offsets_open(transaction: Transaction) -> OffsetsTransaction:
    """The transaction as one that keeps offsets."""
    return cast(OffsetsTransaction, transaction)


class InboxScene:
    """One test's inbox, driven without `await`."""

    def __init__(self, suite: Database, place: Path) -> None:
        self.runner = asyncio.Runner()
        self.suite = suite
        self.place = place
        self.run(suite.prepare(place))
        self.inbox = self.open()

    def open(self) -> TransactionalStore:
        """One more inbox on the same place, opened."""
        inbox = self.suite.make(self.place)
        self.run(inbox.open())
        self.opened = [*getattr(self, "opened", []), inbox]
        return inbox

    def end(self) -> None:
        """Close every inbox."""
        for inbox in self.opened:
            self.run(inbox.close())
        self.runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the inboxes live on."""
        return self.runner.run(waiting)

    def consume(
        self,
        keys: Sequence[ClaimKey],
        finishes: Sequence[Finish] = (),
        *,
        effects: Sequence[str] = (),
        boom: bool = False,
        retention: float = 3600.0,
        inbox: TransactionalStore | None = None,
    ) -> list[TransactionAnswer]:
        """One transaction: claim `keys`, write `effects`, finish `finishes`, and commit or not."""

        async def consume() -> list[TransactionAnswer]:
            answers: list[TransactionAnswer] = []
            with suppress(RolledBack):
                async with (inbox or self.inbox).begin(retention=retention) as transaction:
                    answers = await transaction.claim(keys)
                    for effect in effects:
                        await self.suite.write(transaction.connection, effect)
                    await transaction.finish(finishes)
                    if boom:
                        raise RolledBack
            return answers

        return self.run(consume())

    def take_over(self, owner: str, *, position: int, topic: str = "orders", partition: int = 3) -> Progress:
        """Take a partition over."""
        return self.run(with_offsets(self.inbox).take_over(owner, topic, partition, position=position))

    def locked(self, owner: str, mine: Progress) -> int:
        """Lock the partition in a transaction, and return its next offset."""

        async def lock() -> int:
            async with self.inbox.begin(retention=3600.0) as transaction:
                return await with_offsets_open(transaction).lock(owner, "orders", 3, mine.generation)

        return self.run(lock())

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> list[Permit]:
        """Ask in a transaction whether copies may run."""

        async def ask() -> list[Permit]:
            async with self.inbox.begin(retention=3600.0) as transaction:
                return await with_offsets_open(transaction).permits(owner, copies)

        return self.run(ask())

    def advance(
        self, owner: str, mine: Progress, *, next: int, effects: Sequence[str] = (), finishes: Sequence[Finish] = (), boom: bool = False
    ) -> None:
        """One transaction: lock the partition, write `effects`, move its offset to `next`, and commit or not."""

        async def advance() -> None:
            async with self.inbox.begin(retention=3600.0) as transaction:
                await with_offsets_open(transaction).lock(owner, "orders", 3, mine.generation)
                for effect in effects:
                    await self.suite.write(transaction.connection, effect)
                await transaction.finish(finishes)
                await with_offsets_open(transaction).advance(owner, "orders", 3, mine.generation, next)
                if boom:
                    raise RolledBack

        with suppress(RolledBack):
            self.run(advance())

    def effects(self) -> list[str]:
        """What handlers wrote and committed, sorted."""
        return sorted(self.run(self.suite.effects(self.place)))
