"""An outbox in memory whose calls can be broken, a sender that fails as it is told, and relays between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.fakes import Sink

from ackwise.middleware.outbox import SHARDS, Failed, OutboxRow, Sent, shard_of
from ackwise.middleware.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.policies import Outbox
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.outbox.relay import OutboxRelay

__all__ = ["PATIENCE", "Book", "Desk", "Log", "Store", "fields", "lost", "refused"]

#: Seconds after which a test gives up.
PATIENCE = 60.0


class Log:
    """A topic, as all senders of a test share it: what was acknowledged, in order, and what each key's consumer sees."""

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []

    def of_key(self, key: bytes) -> list[bytes]:
        """The values of a key as a consumer sees them that suppresses repeated ids."""
        seen: dict[str, bytes] = {}
        for message in self.messages:
            if message.key == key:
                seen.setdefault(message.message_id, message.value or b"")
        return [*seen.values()]

    @property
    def ids(self) -> Counter[str]:
        return Counter(message.message_id for message in self.messages)


class Sender:
    """Writes to a log. `refuse` says of a message what fails; behind a failure nothing of its key is written."""

    def __init__(self, log: Log, refuse: Callable[[Outgoing], SendFailed | None], before: Callable[[], Any]) -> None:
        self._log, self._refuse, self._before = log, refuse, before
        self.is_open = False

    async def start(self) -> None:
        self._before()
        self.is_open = True

    async def stop(self) -> None:
        self.is_open = False

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        assert stop_keys
        assert self.is_open
        failed: set[tuple[str, bytes]] = set()
        answers: list[SendAnswer] = []
        for message in messages:
            if message.key is not None and (message.topic, message.key) in failed:
                answers.append(SendFailed("an earlier message of its key failed", retriable=True))
            elif (failure := self._refuse(message)) is not None:
                answers.append(failure)
                failed |= {(message.topic, message.key)} if message.key is not None else set()
            else:
                await asyncio.sleep(0)  # others get their turn in the middle
                if not self.is_open:
                    answers.append(SendFailed("stopped", retriable=True))
                    continue
                self._log.messages.append(message)
                answers.append(Acked(message.topic, 0, len(self._log.messages) - 1, 0, message.message_id))
        return answers


class Book:
    """The rows of an outbox and who owns its shards: what a database has. Its clock is moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: dict[int, OutboxRow] = {}
        self.due: dict[int, float] = {}
        self.parked: dict[int, str] = {}
        self.owners: dict[int, tuple[str, int, float]] = {}
        self.relays: dict[str, float] = {}
        self.kind: str | None = None
        self.next_id = 1
        self.changed = asyncio.Event()

    def add(self, *messages: Outgoing) -> list[int]:
        """Commit a transaction with these messages."""
        ids = list(range(self.next_id, self.next_id + len(messages)))
        self.next_id += len(messages)
        self.rows.update((number, OutboxRow(number, shard_of(each), each, 0, 0)) for number, each in zip(ids, messages, strict=True))
        self.changed.set()
        return ids

    def requeue(self) -> None:
        for number in self.parked:
            self.rows[number] = self.rows[number]._replace(attempts=0)
        self.parked.clear()
        self.changed.set()


class Store:
    """A relay's connection to a `Book`. `harm` is called with the name of each call, before it has its effect and after."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.harm: Callable[[str, str], None] = lambda call, when: None
        self.calls: Counter[str] = Counter()
        self.waits: list[float] = []
        self.asked: list[tuple[tuple[int, ...], tuple[tuple[str, bytes], ...], bool]] = []

    def _begin(self, call: str) -> None:
        self.calls[call] += 1
        self.harm(call, "before")

    async def claim_relay(self, kind: str) -> None:
        self._begin("claim_relay")
        self.book.kind = kind

    async def release_relay(self) -> None:
        self.book.kind = None

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        self._begin("own")
        book = self.book
        book.relays[owner] = book.now + lease
        mine = [shard for shard in range(SHARDS) if book.owners.get(shard, ("", 0, 0.0))[0] == owner]
        for shard in mine[share:]:
            book.owners[shard] = ("", book.owners[shard][1], 0.0)
        mine = mine[:share]
        for shard in range(SHARDS):
            name, token, until = book.owners.get(shard, ("", 0, 0.0))
            if len(mine) < share and name != owner and until <= book.now:
                book.owners[shard] = (owner, token + 1, 0.0)
                mine.append(shard)
        for shard in mine:
            book.owners[shard] = (owner, book.owners[shard][1], book.now + lease)
        self.harm("own", "after")
        return {shard: book.owners[shard][1] for shard in mine}

    async def relays(self) -> int:
        self._begin("relays")
        return sum(until > self.book.now for until in self.book.relays.values())

    async def leave(self, owner: str) -> None:
        self._begin("leave")
        book = self.book
        book.relays.pop(owner, None)
        for shard, (name, token, _) in book.owners.items():
            if name == owner:
                book.owners[shard] = ("", token, 0.0)

    async def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        self._begin("pending")
        self.asked.append((tuple(under_way), tuple(blocked), block_key))
        self.book.changed.clear()
        book, held, found = self.book, set[tuple[str, bytes | None]](), []
        for number, row in sorted(book.rows.items()):
            key = (row.message.topic, row.message.key)
            waits = book.due.get(number, 0.0) > book.now or (number in book.parked and block_key)
            is_free = number not in under_way and key not in blocked and key not in held and not waits and number not in book.parked
            if row.shard in shards and is_free and self._is_token(row.shard, shards):
                found.append(row)
            if waits and row.message.key is not None:
                held.add(key)
        await asyncio.sleep(0)
        self.harm("pending", "after")
        return found[:limit]

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        self._begin("sent")
        gone = [each.id for each in rows if self._is_token(each.shard, shards) and self.book.rows.pop(each.id, None) is not None]
        await asyncio.sleep(0)
        self.harm("sent", "after")
        return len(gone)

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        self._begin("failed")
        book, written = self.book, 0
        for failure in failures:
            if not self._is_token(failure.shard, shards):
                continue
            row = book.rows[failure.id]
            book.rows[failure.id] = row._replace(attempts=row.attempts + 1)
            if failure.again_in is None:
                book.parked[failure.id] = failure.cause
            else:
                book.due[failure.id] = book.now + failure.again_in
            written += 1
        self.harm("failed", "after")
        return written

    async def wait_for_rows(self, at_most: float) -> None:
        self._begin("wait_for_rows")
        self.waits.append(at_most)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await self.book.changed.wait()

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        self._begin("next_due")
        waiting = [self.book.due[number] - self.book.now for number in self.book.rows if self.book.due.get(number, 0.0) > self.book.now]
        return min(waiting, default=None)

    def _is_token(self, shard: int, shards: Mapping[int, int]) -> bool:
        return self.book.owners.get(shard, ("", -1, 0.0))[1] == shards.get(shard)


class Desk:
    """One book, one log, and relays that are made and killed by a test. `clock` is the monotonic clock of all of them."""

    def __init__(self, **policy: Any) -> None:
        self.book, self.log, self.sink = Book(), Log(), Sink()
        self.policy = Outbox("memory://", **policy)
        self.refuse: Callable[[Outgoing], SendFailed | None] = lambda message: None
        self.starting: Callable[[], Any] = lambda: None
        self.are_brokers_there = True
        self.asked_brokers = 0
        self.senders: list[Sender] = []
        self.stop = asyncio.Event()

    def clock(self) -> float:
        """The clock of the process, which runs with that of the database."""
        return self.book.now

    def relay(self, store: Store | None = None, *, counts: OutboxCounts | None = None, is_alone: bool = False) -> OutboxRelay:
        return OutboxRelay(
            store or Store(self.book),
            self.policy,
            name="shop",
            new_sender=self._new_sender,
            brokers_answer=self._brokers_answer,
            sink=self.sink,
            counts=counts,
            is_alone=is_alone,
            clock=self.clock,
        )

    def _new_sender(self) -> Sender:
        self.senders.append(Sender(self.log, lambda message: self.refuse(message), self.starting))
        return self.senders[-1]

    async def _brokers_answer(self) -> bool:
        self.asked_brokers += 1
        return self.are_brokers_there

    @asynccontextmanager
    async def running(self, *relays: OutboxRelay) -> AsyncIterator[list[asyncio.Task[None]]]:
        tasks = [asyncio.create_task(relay.run(self.stop)) for relay in relays]
        try:
            yield tasks
        finally:
            self.stop.set()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks, return_exceptions=True)

    def is_empty(self) -> bool:
        return not self.book.rows

    async def until(self, is_so: Callable[[], bool], *, step: float = 0.0) -> None:
        """Return once it is so; the clocks move by `step` seconds each time it is not."""
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self.book.now += step
                await asyncio.sleep(0)

    def orders(self, keys: int, each: int) -> list[Outgoing]:
        """`each` messages of as many `keys`, numbered within their key."""
        return [Outgoing("orders", b"%d" % number, b"key-%d" % key) for number in range(each) for key in range(keys)]


def lost(cause: str = "no answer") -> SendFailed:
    """A failure that may pass."""
    return SendFailed(cause, retriable=True, error="KafkaTimeoutError")


def refused(cause: str = "too large") -> SendFailed:
    """A refusal."""
    return SendFailed(cause, retriable=False, error="MessageSizeTooLargeError")


def fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of each line with this event."""
    return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") == event]
