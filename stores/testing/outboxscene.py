"""`OutboxScene`: the outboxes of one test, driven without `await`, with the business beside them."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from ackwise.middleware.outbox import SHARDS, Failed, OutboxRow, OutboxStore, Sent
from ackwise.middleware.outgoing import Outgoing

T = TypeVar("T")

#: Seconds that a lease lasts which nobody waits for.
LEASE: Final = 60.0


class RolledBack(Exception):
    """Rolls a block back."""


@dataclass(frozen=True, slots=True)
class OutboxFeatures:
    """What an outbox can do, beside what every one can."""

    relays: bool = True
    """Several relays share its shards; otherwise a second one is refused."""
    writers: bool = True
    """Several business transactions are open at once."""


class Business(abc.ABC):
    """What the suite is told of the outbox, and of the business's own table."""

    features = OutboxFeatures()

    @abc.abstractmethod
    def make(self, place: Path) -> OutboxStore:
        """An outbox that is not open yet; each call with the same `place`, a folder of this test, names the same tables, which only
        this test uses. What was rolled back is not kept by its cleanup."""

    @abc.abstractmethod
    async def prepare(self, place: Path) -> None:
        """Make an empty table for effects, which are short texts and unique in it."""

    @abc.abstractmethod
    def connect(self, place: Path) -> AbstractAsyncContextManager[Any]:
        """A connection of the business, no transaction open."""

    @abc.abstractmethod
    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A transaction as the business itself begins one: it commits at the end, and rolls back if the block raises."""

    @abc.abstractmethod
    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """A savepoint as the business itself makes one: it is released at the end, and rolled back if the block raises."""

    @abc.abstractmethod
    async def write(self, connection: Any, effect: str) -> None:
        """Write an effect through a connection of the business."""

    @abc.abstractmethod
    async def effects(self, place: Path) -> list[str]:
        """What is in the table, as another connection sees it."""

    @abc.abstractmethod
    async def age(self, place: Path, seconds: float) -> None:
        """Make all rows and barriers older by `seconds`."""

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore:
        """As `make`, with `keep_sent`, `keep_parked` or `blank`. An outbox without these settings leaves it out, and `rows` too."""
        pytest.skip("this outbox has no settings for what stays of its rows")

    async def rows(self, place: Path) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]:
        """All rows by id: state, message id, key, value and packed headers, as another connection sees them."""
        raise NotImplementedError("a suite that has make_keeping needs rows as well: return what is in the table, by id")


def message(value: bytes = b"v", *, key: bytes | None = None, topic: str = "orders", message_id: str | None = None) -> Outgoing:
    """A message with an id of its own."""
    return Outgoing(topic, value, key, message_id=message_id or os.urandom(8).hex())


class OutboxScene:
    """One test's outbox, which has tables of its own."""

    def __init__(self, suite: Business, place: Path) -> None:
        self.runner = asyncio.Runner()
        self.suite, self.place = suite, place
        self.opened: list[OutboxStore] = []
        self.run(suite.prepare(place))
        self.outbox = self.open()

    def open(self, **keeping: Any) -> OutboxStore:
        """One more outbox object on the same tables, with settings of what stays if there are any, opened."""
        outbox = self.suite.make_keeping(self.place, **keeping) if keeping else self.suite.make(self.place)
        self.opened.append(outbox)
        self.run(outbox.open())
        return outbox

    def rows(self) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]:
        """All rows of the table by id: state, message id, key, value and packed headers."""
        return self.run(self.suite.rows(self.place))

    def end(self) -> None:
        """Close everything."""
        for outbox in self.opened:
            self.run(outbox.close())
        self.runner.close()

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the outboxes live on, for a minute at most."""

        async def bounded() -> T:
            async with asyncio.timeout(60):
                return await waiting

        return self.runner.run(bounded())

    def commit(self, *messages: Outgoing, effects: Collection[str] = (), boom: bool = False) -> None:
        """One business transaction that writes `effects` and sends `messages`; `boom` raises at its end."""

        async def commit() -> None:
            async with self.suite.connect(self.place) as connection:
                with suppress(RolledBack):
                    async with self.outbox.transaction(connection) as transaction:
                        for effect in effects:
                            await self.suite.write(connection, effect)
                        for one in messages:
                            transaction.add(one)
                        if boom:
                            raise RolledBack

        self.run(commit())

    def effects(self) -> list[str]:
        """What the business wrote and committed, sorted."""
        return sorted(self.run(self.suite.effects(self.place)))

    def own(self, owner: str = "a", *, lease: float = LEASE, share: int = SHARDS, outbox: OutboxStore | None = None) -> Mapping[int, int]:
        """The shards of `owner`, with their tokens."""
        return self.run((outbox or self.outbox).own(owner, lease=lease, share=share))

    def pending(
        self, shards: Mapping[int, int] | None = None, *, limit: int = 1000, outbox: OutboxStore | None = None, **asked: Any
    ) -> list[OutboxRow]:
        """What is to be sent of `shards`, by default of all."""
        mine = dict.fromkeys(range(SHARDS), 0) if shards is None else shards
        return self.run((outbox or self.outbox).pending(mine, limit=limit, **asked))

    def values(self, **asked: Any) -> list[bytes | None]:
        """The values of `pending`."""
        return [row.message.value for row in self.pending(**asked)]

    def sent(self, rows: Collection[OutboxRow], shards: Mapping[int, int], *, outbox: OutboxStore | None = None) -> int:
        """Say that the broker acknowledged `rows`."""
        return self.run((outbox or self.outbox).sent([Sent(row.id, row.shard) for row in rows], shards))

    def fail(
        self,
        shards: Mapping[int, int],
        row: OutboxRow,
        again_in: float | None,
        *,
        cause: str = "refused",
        outbox: OutboxStore | None = None,
    ) -> int:
        """Say that `row` could not be sent."""
        return self.run((outbox or self.outbox).failed([Failed(row.id, row.shard, cause, again_in)], shards))

    def cleanup(self, outbox: Any = None) -> int:
        """Clean up; return how many records went."""
        maintained: Any = outbox or self.outbox
        return int(self.run(maintained.cleanup()))
