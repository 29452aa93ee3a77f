"""Half messages and barriers in memory, with a clock that a test moves and calls that a test breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ackwise.middleware.errors import StoreUnavailable, TransactionAborted
from ackwise.middleware.outbox import FIRST_CHECK, CheckAnswer, Prepared, RowState, TransactionOutcome
from ackwise.middleware.outgoing import Outgoing

__all__ = ["Half", "HalfStore", "Local"]

_DECIDED = {TransactionOutcome.COMMIT: RowState.LOCAL_COMMIT, TransactionOutcome.ROLLBACK: RowState.LOCAL_ROLLBACK}


@dataclass
class Half:
    """A row."""

    id: int
    message: Outgoing
    tx_id: str
    producer_group: str
    barrier_in: str
    next_at: float
    state: RowState = RowState.PREPARED
    checks: int = 0
    cause: str = ""


class Local:
    """A local transaction in the database: its barrier is there for others once it has committed, or is gone."""

    def __init__(self, store: HalfStore) -> None:
        self._store = store
        self.tx_id: str | None = None

    def commit(self) -> None:
        assert self.tx_id is not None
        self._store.barriers[self.tx_id] = TransactionOutcome.COMMIT
        self._store.running.discard(self.tx_id)

    def roll_back(self) -> None:
        self._store.running.discard(self.tx_id or "")


class HalfStore:
    """A `PreparedStore`. `fail` says which calls are not answered."""

    def __init__(self, name: str = "db-1") -> None:
        self.now = 0.0
        self.name = name
        self.rows: list[Half] = []
        self.barriers: dict[str, TransactionOutcome] = {}
        self.running: set[str] = set()
        self.probes: list[str] = []
        self.opened = self.closed = 0
        self.fail: Callable[[str], bool] = lambda call: False

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    def _step(self, call: str) -> None:
        if self.fail(call):
            raise StoreUnavailable(f"{call}: no answer")

    async def database_id(self, connection: Any | None = None) -> str:
        self._step("database_id")
        return self.name

    async def barrier(self, connection: Any, tx_id: str) -> None:
        self._step("barrier")
        if tx_id in self.barriers:
            raise TransactionAborted("a check-back was first")
        connection.tx_id = tx_id
        self.running.add(tx_id)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        self.probes.append(tx_id)
        await asyncio.sleep(0)
        self._step("probe")
        if tx_id in self.running:
            return TransactionOutcome.UNKNOWN
        return self.barriers.setdefault(tx_id, TransactionOutcome.ROLLBACK)

    async def prepare(
        self, messages: Sequence[Outgoing], tx_id: str, *, producer_group: str, barrier_in: str = "", first_check: float = FIRST_CHECK
    ) -> None:
        self._step("prepare")
        for message in messages:
            self.rows.append(Half(len(self.rows) + 1, message, tx_id, producer_group, barrier_in, self.now + first_check))

    async def decide(self, tx_id: str, outcome: TransactionOutcome) -> int:
        self._step("decide")
        changed = [row for row in self.rows if row.tx_id == tx_id and row.state is RowState.PREPARED and outcome in _DECIDED]
        for row in changed:
            row.state = _DECIDED[outcome]
        return len(changed)

    async def due_checks(self, producer_group: str | None, *, limit: int, lease: float) -> list[Prepared]:
        self._step("due_checks")
        due = [row for row in self.rows if row.state is RowState.PREPARED and row.next_at <= self.now and self._is_for(row, producer_group)]
        for row in due[:limit]:
            row.next_at = self.now + lease
        return [Prepared(row.id, row.message, row.tx_id, row.checks, 0, row.producer_group, row.barrier_in) for row in due[:limit]]

    def _is_for(self, row: Half, producer_group: str | None) -> bool:
        return row.barrier_in == self.name if producer_group is None else row.producer_group == producer_group

    async def answered(self, answers: Sequence[CheckAnswer]) -> int:
        self._step("answered")
        changed = 0
        for answer in answers:
            row = self.rows[answer.id - 1]
            if row.state is not RowState.PREPARED:
                continue
            changed += 1
            row.checks, row.cause = row.checks + 1, answer.cause
            if answer.outcome in _DECIDED:
                row.state = _DECIDED[answer.outcome]
            elif answer.again_in is None:
                row.state = RowState.MESSAGE_ERROR
            else:
                row.next_at = self.now + answer.again_in
        return changed
