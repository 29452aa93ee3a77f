"""An outbox in memory whose calls can be broken, a sender that fails as it is told, and relays between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes import Sink
from tests.waiting import PATIENCE

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import Failed, RowState, Sent
from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.plugin.outbox.outboxrelay import OutboxRelay
from ackwise.stores.memoryoutbox import MemoryOutbox
from ackwise.stores.protocol.outbox import Shard


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


class Table(MemoryOutbox):
    """An outbox whose clock a test moves, and whose rows and shards it looks at."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now)
        self.now, self._is_open = 0.0, True

    @property
    def rows(self) -> dict[int, Any]:
        return self._rows

    @property
    def due(self) -> dict[int, float]:
        """When rows that failed are tried again."""
        return {row.id: row.next_at for row in self._in(RowState.LOCAL_COMMIT) if row.next_at is not None}

    @property
    def causes(self) -> dict[int, str]:
        """Why rows are parked."""
        return {row.id: row.cause for row in self._in(RowState.MESSAGE_ERROR)}

    @property
    def owners(self) -> set[str]:
        return {shard.owner for shard in self._shards}

    def add(self, *messages: Outgoing) -> list[int]:
        """Commit a transaction with these messages."""
        ids = [self._insert(message, RowState.LOCAL_COMMIT).id for message in messages]
        self.wake()
        return ids

    def take_over(self) -> None:
        """Another relay owns all shards from now on."""
        self._shards = [Shard(shard.number, shard.token + 1, "another", True) for shard in self._shards]
        self._leases["another"] = 1e9


class Store:
    """A relay's connection to a `Table`. `harm` is called with the name of each call, before it has its effect and after."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.harm: Callable[[str, str], None] = lambda call, when: None
        self.calls: Counter[str] = Counter()
        self.waits: list[float] = []
        self.under_way: list[Collection[int]] = []
        self.waits_behind = self.has_more = False

    async def _call(self, call: str, *arguments: Any, **options: Any) -> Any:
        self.calls[call] += 1
        self.harm(call, "before")
        found = await getattr(self.table, call)(*arguments, **options)
        await asyncio.sleep(0)
        self.harm(call, "after")
        return found

    async def claim_relay(self, kind: str) -> None:
        await self._call("claim_relay", kind)

    async def release_relay(self) -> None:
        await self._call("release_relay")

    async def own(self, owner: str, *, lease: float, share: int) -> Any:
        return await self._call("own", owner, lease=lease, share=share)

    async def relays(self) -> Any:
        return await self._call("relays")

    async def leave(self, owner: str) -> None:
        await self._call("leave", owner)

    async def pending(self, shards: Mapping[int, int], **how: Any) -> Any:
        self.under_way.append(how["under_way"])
        return await self._call("pending", shards, **how)

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Any:
        return await self._call("sent", rows, shards)

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> Any:
        return await self._call("failed", failures, shards)

    async def begin(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Any:
        return await self._call("begin", rows, shards)

    async def expire(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Any:
        return await self._call("expire", rows, shards)

    async def free(self, **how: Any) -> Any:
        return await self._call("free", **how)

    async def hold(self, ids: Collection[int]) -> Any:
        return await self._call("hold", ids)

    async def holders(self, **how: Any) -> Any:
        return await self._call("holders", **how)

    async def next_due(self, shards: Mapping[int, int]) -> Any:
        return await self._call("next_due", shards)

    async def wait_for_rows(self, at_most: float) -> bool:
        self.waits.append(at_most)
        return bool(await self._call("wait_for_rows", min(at_most, 0.01)))


class Desk:
    """One table, one log, and relays that are made and killed by a test. `clock` is the monotonic clock of all of them."""

    def __init__(self, **policy: Any) -> None:
        self.table, self.log, self.sink = Table(), Log(), Sink()
        self.policy = Outbox("memory://", **policy)
        self.refuse: Callable[[Outgoing], SendFailed | None] = lambda message: None
        self.starting: Callable[[], Any] = lambda: None
        self.are_brokers_there = True
        self.asked_brokers = 0
        self.senders: list[Sender] = []
        self.stop = asyncio.Event()

    def clock(self) -> float:
        """The clock of the process, which runs with that of the database."""
        return self.table.now

    def relay(self, store: Store | None = None, *, counts: OutboxCounts | None = None, is_alone: bool = False) -> OutboxRelay:
        return OutboxRelay(
            store or Store(self.table),
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
        return not self.table.rows

    async def until(self, is_so: Callable[[], bool], *, step: float = 0.0) -> None:
        """Return once it is so; the clocks move by `step` seconds each time it is not."""
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self.table.now += step
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
