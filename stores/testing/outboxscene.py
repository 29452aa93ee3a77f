"""`OutboxScene`: the outboxes of one test, driven without `await`, with the business beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ackwise.middleware.outbox import SHARDS, OutboxRow, OutboxStore, Sent
from ackwise.middleware.outgoing import Outgoing

__all__ = ["LEASE", "Business", "OutboxFeatures", "OutboxScene", "RolledBack", "message"]

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


class Business(Protocol):
    """What the suite is told of the outbox and of the business's own table; see `OutboxConformance`."""

    features: OutboxFeatures

    def make(self, place: Path) -> OutboxStore: ...

    async def prepare(self, place: Path) -> None: ...

    def connect(self, place: Path) -> AbstractAsyncContextManager[Any]: ...

    def begin(self, connection: Any) -> AbstractAsyncContextManager[Any]: ...

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[Any]: ...

    async def write(self, connection: Any, effect: str) -> None: ...

    async def effects(self, place: Path) -> list[str]: ...

    async def age(self, place: Path, seconds: float) -> None: ...

    def make_keeping(self, place: Path, **settings: Any) -> OutboxStore: ...

    async def rows(self, place: Path) -> list[tuple[int, str, bytes | None, bytes | None, str | None]]: ...


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

    def open(self) -> OutboxStore:
        """One more outbox object on the same tables, opened."""
        outbox = self.suite.make(self.place)
        self.opened.append(outbox)
        self.run(outbox.open())
        return outbox

    def open_keeping(self, **settings: Any) -> OutboxStore:
        """The same with settings of what stays, opened."""
        outbox = self.suite.make_keeping(self.place, **settings)
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
                try:
                    async with self.outbox.transaction(connection) as transaction:
                        for effect in effects:
                            await self.suite.write(connection, effect)
                        for one in messages:
                            transaction.add(one)
                        if boom:
                            raise RolledBack
                except RolledBack:
                    pass

        self.run(commit())

    def effects(self) -> list[str]:
        """What the business wrote and committed, sorted."""
        return sorted(self.run(self.suite.effects(self.place)))

    def own(self, owner: str = "a", *, lease: float = LEASE, share: int = SHARDS, outbox: OutboxStore | None = None) -> Mapping[int, int]:
        """The shards of `owner`, with their tokens."""

        async def own() -> Mapping[int, int]:
            return await (outbox or self.outbox).own(owner, lease=lease, share=share)

        return self.run(own())

    def pending(
        self,
        shards: Mapping[int, int] | None = None,
        *,
        limit: int = 1000,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
        outbox: OutboxStore | None = None,
    ) -> list[OutboxRow]:
        """What is to be sent of `shards`, by default of all."""
        mine = dict.fromkeys(range(SHARDS), 0) if shards is None else shards

        async def pending() -> list[OutboxRow]:
            return await (outbox or self.outbox).pending(mine, limit=limit, under_way=under_way, blocked=blocked, block_key=block_key)

        return self.run(pending())

    def values(self, **asked: Any) -> list[bytes | None]:
        """The values of `pending`."""
        return [row.message.value for row in self.pending(**asked)]

    def sent(self, rows: Collection[OutboxRow], shards: Mapping[int, int], *, outbox: OutboxStore | None = None) -> int:
        """Say that the broker acknowledged `rows`."""

        async def sent() -> int:
            return await (outbox or self.outbox).sent([Sent(row.id, row.shard) for row in rows], shards)

        return self.run(sent())
