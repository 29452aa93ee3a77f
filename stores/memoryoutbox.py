"""`MemoryOutbox`: an outbox that lives as long as the process, for tests and trials."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ackwise.middleware.errors import ConfigurationError, StoreUnavailable, TransactionAborted
from ackwise.middleware.message.outgoing import Outgoing, new_message_id
from ackwise.middleware.storage.asyncblock import asynchronous_block
from ackwise.middleware.storage.outbox import (
    FIRST_CHECK,
    MOST_BYTES,
    SHARDS,
    Begun,
    CheckAnswer,
    Failed,
    HalfMessage,
    Holder,
    OutboxRow,
    OutboxStatus,
    Parked,
    Prepared,
    RowState,
    Sent,
    TransactionOutcome,
    shard_of,
)
from ackwise.middleware.storage.rowtime import AT_ONCE, Timing
from ackwise.stores.protocol.options import OUTBOX
from ackwise.stores.protocol.outbox import (
    BARRIERS_KEPT,
    CAUSE,
    Buffer,
    Keeping,
    Sends,
    Shard,
    Wakes,
    columns_of,
    divide,
    state_of,
)


class MemoryConnection:
    """What is done on it comes true with the commit; savepoints can be nested."""

    def __init__(self) -> None:
        self._levels: list[list[tuple[Callable[[], object], Callable[[], object] | None]]] = []

    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return bool(self._levels)

    def do(self, commit: Callable[[], object], rollback: Callable[[], object] | None = None) -> None:
        """Call `commit` when the transaction commits, and `rollback` when it, or the savepoint, is rolled back."""
        self._levels[-1].append((commit, rollback))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction, or a savepoint if one is open: rolled back if the block raises."""
        self._levels.append([])
        try:
            yield
        except BaseException:
            for _, rollback in reversed(self._levels.pop()):
                if rollback is not None:
                    rollback()
            raise
        done = self._levels.pop()
        if self._levels:
            self._levels[-1] += done
            return
        for commit, _ in done:
            commit()


_PLACE = "memory://"


class MemoryOutboxTransaction(Buffer):
    """Rows of the transaction that is open on `connection`; they are part of it at once."""

    def __init__(self, outbox: MemoryOutbox, connection: MemoryConnection) -> None:
        super().__init__()
        self._outbox, self._connection = outbox, connection

    def _put(self, message: Outgoing, timing: Timing) -> None:
        super()._put(message, timing)
        self.written(1)
        self._connection.do(lambda: self._outbox._insert(message, RowState.LOCAL_COMMIT, timing))

    async def flush(self) -> None:
        """Nothing is left to write."""


@dataclass(slots=True)
class _Row:
    id: int
    message: Outgoing
    state: RowState
    created: float
    next_at: float | None = None
    attempts: int = 0
    checks: int = 0
    cause: str = ""
    tx_id: str = ""
    producer_group: str = ""
    barrier_in: str = ""
    timing: Timing = AT_ONCE

    @property
    def key(self) -> tuple[str, bytes] | None:
        """What it has an order with."""
        return None if self.message.key is None or self.timing.due is not None else (self.message.topic, self.message.key)

    def is_expired(self, now: float) -> bool:
        return self.timing.expires is not None and self.timing.expires <= now

    def begin(self, now: float) -> None:
        """It is to be sent from `now` on: its times count from here."""
        due, expires = (now - time if time is not None and time < 0 else time for time in self.timing)
        self.timing, self.next_at = Timing(self.timing.due, expires), due


class MemoryOutbox(Sends):
    """An outbox in this process; `clock` gives seconds since 1970. `transaction` takes a `MemoryConnection`, or `None` for its own.

    Share the object to share the rows. `keeping` is how long rows stay that need not be sent.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time, keeping: Keeping | None = None) -> None:
        super().__init__()
        self._clock, self.keeping = clock, keeping or Keeping()
        self._is_open = False
        self._rows: dict[int, _Row] = {}
        self._shards = [Shard(number, 0, "", False) for number in range(SHARDS)]
        self._leases: dict[str, float] = {}
        self._barriers: dict[str, tuple[str | None, float]] = {}  #: outcome, `None` while the local transaction runs
        self._kind: str | None = None
        self._id = new_message_id()
        self._last_id = 0
        self._wakes = Wakes()
        self._seen = 0
        self.waits_behind = self.has_more = False

    async def open(self) -> None:
        """Nothing to connect to."""
        self._is_open = True

    async def close(self) -> None:
        """Nothing to give back; the rows stay as long as the object."""
        self._is_open = False

    @asynchronous_block
    async def transaction(self, connection: MemoryConnection | None = None) -> AsyncIterator[MemoryOutboxTransaction]:
        used = MemoryConnection() if connection is None else connection
        mine, is_ours = MemoryOutboxTransaction(self, used), not used.is_in_transaction()
        try:
            async with used.transaction():
                with self.within(mine, used):
                    yield mine
                mine.close()
        finally:
            mine.close()
        if is_ours and mine.has_written:
            self.wake()

    def writer(self, connection: MemoryConnection) -> MemoryOutboxTransaction:
        return MemoryOutboxTransaction(self, connection)

    def wake(self) -> None:
        self._wakes.wake()

    # A relay

    async def claim_relay(self, kind: str) -> None:
        self._require_open()
        self._kind = self._kind or kind
        if self._kind != kind:
            raise ConfigurationError(
                f"{_PLACE}: relays of kind {self._kind!r} send the rows of this outbox, and one of kind {kind!r} would send them again; "
                "stop all of those first, then call ackwise outbox release"
            )

    async def release_relay(self) -> None:
        if alive := await self.relays():
            raise ConfigurationError(f"{_PLACE}: {alive} relays have a lease; stop them, and try again when it has ended")
        self._kind = None

    async def own(self, owner: str, *, lease: float, share: int) -> Mapping[int, int]:
        self._require_open()
        until = self._clock() + lease
        shards = [shard._replace(is_leased=self._is_alive(shard.owner)) for shard in self._shards]
        keep, take, give = divide(shards, owner, share)
        for number in take:
            self._shards[number] = Shard(number, shards[number].token + 1, owner, True)
        for number in give:
            self._shards[number] = shards[number]._replace(owner="")
        self._leases[owner] = until
        return {number: self._shards[number].token for number in (*keep, *take)}

    async def relays(self) -> int:
        self._require_open()
        return sum(map(self._is_alive, self._leases))

    async def leave(self, owner: str) -> None:
        self._leases.pop(owner, None)
        self._shards = [shard._replace(owner="") if shard.owner == owner else shard for shard in self._shards]

    async def pending(
        self,
        shards: Mapping[int, int],
        *,
        limit: int,
        most: int = MOST_BYTES,
        under_way: Collection[int] = (),
        blocked: Collection[tuple[str, bytes]] = (),
        block_key: bool = True,
    ) -> list[OutboxRow]:
        self._require_open()
        self._seen = self._wakes.count
        given, size = list[OutboxRow](), 0
        for row in self._due(set(blocked), block_key):
            if len(given) >= limit or size >= most:
                break
            shard = shard_of(row.message)
            if shard in shards and row.id not in under_way:
                times = row.timing.due is not None, row.timing.expires is not None
                given.append(OutboxRow(row.id, shard, row.message, row.attempts, int(row.created * 1000), *times))
                size += columns_of(row.message).size
        return given

    async def sent(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        mine = self._mine(rows, shards)
        for row in mine:
            if not self.keeping.sent:
                del self._rows[row.id]
                continue
            row.state, row.next_at, row.cause = RowState.GLOBAL_COMMIT, self._clock() + self.keeping.sent, ""
            row.message = self.keeping.without(row.message)
        return len(mine)

    async def failed(self, failures: Sequence[Failed], shards: Mapping[int, int]) -> int:
        mine, by_id = self._mine(failures, shards), {failure.id: failure for failure in failures}
        for row in mine:
            failure = by_id[row.id]
            row.attempts, row.cause = row.attempts + 1, failure.cause[:CAUSE]
            row.next_at = self._clock() + (failure.again_in or 0.0)
            row.state = RowState.MESSAGE_ERROR if failure.again_in is None else RowState.LOCAL_COMMIT
        return len(mine)

    async def begin(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> Begun:
        mine, now = self._mine(rows, shards), self._clock()
        expired = {row.id for row in mine if row.is_expired(now)}
        for row in mine:
            if row.id not in expired:
                row.timing = row.timing._replace(expires=None)
        return Begun({row.id for row in mine} - expired, expired)

    async def expire(self, rows: Sequence[Sent], shards: Mapping[int, int]) -> int:
        now = self._clock()
        expired = [row for row in self._mine(rows, shards) if row.is_expired(now)]
        for row in expired:
            row.state, row.next_at, row.cause = RowState.EXPIRED, now, "expired"
        return len(expired)

    async def free(self, *, block_key: bool = True) -> bool:
        """Do nothing: no row has a mark, and `pending` looks at all."""
        return False

    async def hold(self, ids: Collection[int]) -> set[int]:
        self._require_open()
        return {row.id for row in self._in(RowState.LOCAL_COMMIT) if row.id in ids}

    async def holders(self, *, limit: int = 500, after: int = 0) -> list[Holder]:
        self._require_open()
        states = RowState.LOCAL_COMMIT, RowState.MESSAGE_ERROR
        found = [row for row in self._rows.values() if row.state in states and row.attempts > 0 and row.id > after]
        return [Holder(row.id, row.message.topic, row.key and row.key[1], row.state is states[1]) for row in found[:limit]]

    async def wait_for_rows(self, at_most: float) -> bool:
        return await self._wakes.begin(self._seen).wait(at_most)

    async def next_due(self, shards: Mapping[int, int]) -> float | None:
        now = self._clock()
        waiting = [
            row.next_at - now
            for row in self._in(RowState.LOCAL_COMMIT)
            if row.next_at is not None and row.next_at > now and shard_of(row.message) in shards
        ]
        return min(waiting, default=None)

    # Half messages

    async def database_id(self, connection: MemoryConnection | None = None) -> str:
        if connection is not None and not isinstance(connection, MemoryConnection):
            raise ConfigurationError(f"a connection of type {type(connection).__name__} leads to no outbox in memory")
        return self._id

    async def barrier(self, connection: MemoryConnection, tx_id: str) -> None:
        """See `BarrierStore.barrier`; waits for another transaction that has it."""
        if not connection.is_in_transaction():
            raise ConfigurationError(f"the barrier of {tx_id} has to be in the local transaction, and none is open; start one")
        while (found := self._barriers.get(tx_id)) is not None and found[0] is None:  # noqa: ASYNC110  # as a database does, by its lock
            await asyncio.sleep(0.001)
        if found is not None:
            raise TransactionAborted(
                f"the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
                if found[0] == "C"
                else f"a check-back took the local transaction {tx_id} for rolled back, as it had not started; nothing of it stays"
            )
        self._barriers[tx_id] = (None, self._clock())
        connection.do(lambda: self._barriers.update({tx_id: ("C", self._clock())}), lambda: self._barriers.pop(tx_id))

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`; it does not wait."""
        self._require_open()
        outcome, _ = self._barriers.setdefault(tx_id, ("R", self._clock()))
        outcomes = {None: TransactionOutcome.UNKNOWN, "C": TransactionOutcome.COMMIT, "R": TransactionOutcome.ROLLBACK}
        return outcomes[outcome]

    async def prepare(
        self,
        messages: Sequence[Outgoing],
        tx_id: str,
        *,
        producer_group: str,
        barrier_in: str = "",
        first_check: float = FIRST_CHECK,
        timing: Timing = AT_ONCE,
    ) -> None:
        self._require_open()
        for message in messages:
            columns_of(message)  # refuses what no database takes
            row = self._insert(message, RowState.PREPARED, timing)
            row.next_at, row.tx_id = self._clock() + first_check, tx_id
            row.producer_group, row.barrier_in = producer_group, barrier_in

    async def save(self, messages: Sequence[Outgoing]) -> None:
        self._require_open()
        for message in messages:
            columns_of(message)
            self._insert(message, RowState.LOCAL_COMMIT)
        self.wake()

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        self._require_open()
        if outcome is TransactionOutcome.UNKNOWN or not tx_id:
            return 0
        return await self.answered([CheckAnswer(row.id, outcome) for row in self._in(RowState.PREPARED) if row.tx_id == tx_id])

    async def states_of(self, tx_id: str) -> Collection[RowState]:
        self._require_open()
        return {row.state for row in self._rows.values() if row.tx_id == tx_id and tx_id}

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        self._require_open()
        now = self._clock()
        due = [
            row
            for row in self._in(RowState.PREPARED)
            if (row.next_at or 0.0) <= now
            and (row.barrier_in == self._id if producer_group is None else row.producer_group == producer_group)
        ]
        due = sorted(due, key=lambda row: row.next_at or 0.0)[:limit]
        for row in due:
            row.next_at = now + lease
        return sorted(
            Prepared(
                row.id,
                row.message,
                row.tx_id,
                row.checks,
                int(row.created * 1000),
                row.producer_group,
                row.barrier_in,
                row.timing.due is not None,
            )
            for row in due
        )

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        self._require_open()
        changed = 0
        for answer in answers:
            row = self._rows.get(answer.id)
            if row is None or row.state is not RowState.PREPARED:
                continue
            row.state, row.cause, changed = state_of(answer), answer.cause[:CAUSE], changed + 1
            row.checks += answer.outcome is TransactionOutcome.UNKNOWN and answer.counts
            if answer.content is not None:
                columns_of(answer.content)  # refuses what no database takes
                row.message = answer.content
            is_open = row.state in (RowState.PREPARED, RowState.MESSAGE_ERROR)
            if is_open:
                row.next_at = self._clock() + (answer.again_in or 0.0)
            else:
                row.begin(self._clock())
        if any(answer.outcome is TransactionOutcome.COMMIT for answer in answers) and changed:
            self.wake()
        return changed

    # An operator

    async def status(self) -> OutboxStatus:
        self._require_open()
        sendable, prepared, parked = map(self._in, (RowState.LOCAL_COMMIT, RowState.PREPARED, RowState.MESSAGE_ERROR))
        waiting = [row for row in sendable if row.timing.due is None]
        owners = {owner: sum(shard.owner == owner for shard in self._shards) for owner in sorted(self._leases) if self._is_alive(owner)}
        return OutboxStatus(
            *(len(waiting), self._age(waiting)),
            *(len(prepared), self._age(prepared)),
            *(len(parked), self._age(parked)),
            owners,
            self._kind,
            len(sendable) - len(waiting),
            len(self._in(RowState.EXPIRED)),
        )

    async def parked(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        self._require_open()
        return [_parked(row) for row in self._in(RowState.MESSAGE_ERROR) if row.id > after][:limit]

    async def expired(self, *, limit: int = 100, after: int = 0) -> list[Parked]:
        self._require_open()
        return [_parked(row) for row in self._in(RowState.EXPIRED) if row.id > after][:limit]

    async def show(self, row: int) -> Parked | None:
        found = [_parked(one, whole=True) for one in self._in(RowState.MESSAGE_ERROR) if one.id == row]
        return found[0] if found else None

    async def prepared(self, *, limit: int = 100, after: int = 0) -> list[HalfMessage]:
        self._require_open()
        rows = [row for row in self._in(RowState.PREPARED) if row.id > after][:limit]
        return [
            HalfMessage(
                row.id, row.message.topic, row.message.message_id, row.tx_id, row.producer_group, row.checks, int(row.created * 1000)
            )
            for row in rows
        ]

    async def requeue(self, rows: Collection[int] | None = None) -> int:
        self._require_open()
        found = [row for row in self._in(RowState.MESSAGE_ERROR) if rows is None or row.id in rows]
        for row in found:
            if row.attempts == 0:  # a half message, which is committed by this
                row.begin(self._clock())
            else:
                row.next_at = None
            row.state, row.attempts, row.checks, row.cause = RowState.LOCAL_COMMIT, 0, 0, ""
        if found:
            self.wake()
        return len(found)

    async def init(self) -> None:
        """Nothing to set up."""

    async def check(self) -> list[str]:
        """Nothing that could be wrong."""
        return []

    async def cleanup(self) -> int:
        """Forget what was rolled back or sent and need not be kept, and barriers of 30 days; return how many records."""
        now, needed = self._clock(), {row.tx_id for row in self._in(RowState.PREPARED)}
        ids = [row.id for row in self._in(RowState.LOCAL_ROLLBACK) if row.created < now - self.keeping.retention]
        ids += [row.id for row in self._in(RowState.EXPIRED) if (row.next_at or 0.0) < now - self.keeping.retention]
        ids += [row.id for row in self._in(RowState.GLOBAL_COMMIT) if (row.next_at or 0.0) < now]
        if self.keeping.parked is not None:
            ids += [row.id for row in self._in(RowState.MESSAGE_ERROR) if (row.next_at or row.created) < now - self.keeping.parked]
        kept = max(BARRIERS_KEPT, self.keeping.retention)
        barriers = [
            tx_id for tx_id, (outcome, at) in self._barriers.items() if outcome is not None and at < now - kept and tx_id not in needed
        ]
        for id in ids:
            del self._rows[id]
        for tx_id in barriers:
            del self._barriers[tx_id]
        return len(ids) + len(barriers)

    def _insert(self, message: Outgoing, state: RowState, timing: Timing = AT_ONCE) -> _Row:
        self._last_id += 1
        row = self._rows[self._last_id] = _Row(self._last_id, message, state, self._clock(), timing=timing)
        if state is RowState.LOCAL_COMMIT:
            row.begin(row.created)
        return row

    def _in(self, state: RowState) -> list[_Row]:
        return [row for row in self._rows.values() if row.state is state]

    def _age(self, rows: list[_Row]) -> float | None:
        return max(0.0, self._clock() - min(row.created for row in rows)) if rows else None

    def _due(self, blocked: set[tuple[str, bytes]], block_key: bool) -> Iterator[_Row]:
        """Rows that may be sent now, by id; `blocked` grows by the keys of those that may not."""
        now = self._clock()
        for row in self._rows.values():
            is_late = row.state is RowState.LOCAL_COMMIT and row.next_at is not None and row.next_at > now
            if is_late or (row.state is RowState.MESSAGE_ERROR and row.attempts > 0 and block_key):
                if row.key is not None:
                    blocked.add(row.key)
            elif row.state is RowState.LOCAL_COMMIT and row.key not in blocked:
                yield row

    def _mine(self, rows: Sequence[Sent | Failed], shards: Mapping[int, int]) -> list[_Row]:
        """Those that are still to be sent, and whose shard has the token that is known."""
        self._require_open()
        found = [self._rows.get(row.id) for row in rows if self._shards[row.shard].token == shards.get(row.shard)]
        return [row for row in found if row is not None and row.state is RowState.LOCAL_COMMIT]

    def _is_alive(self, owner: str) -> bool:
        return self._leases.get(owner, 0.0) > self._clock()

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(OUTBOX.not_open(_PLACE))


def _parked(row: _Row, *, whole: bool = False) -> Parked:
    message = row.message
    shown = (message.all_headers, message.value) if whole else ((), None)
    return Parked(
        row.id, message.topic, message.message_id, message.key, row.attempts, row.checks, row.cause, int(row.created * 1000), *shown
    )


def from_url(url: str) -> MemoryOutbox:
    """Return a new outbox for `memory://`, which no other URL names. Raises `ConfigurationError`."""
    if url != _PLACE:
        raise ConfigurationError("the URL of the memory outbox is memory:// and nothing more; pass the object itself to share it")
    return MemoryOutbox()
