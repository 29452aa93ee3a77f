"""Half messages and barriers in memory, with a clock that a test moves and calls that a test breaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.storage.outbox import TransactionOutcome
from ackwise.stores.memoryoutbox import MemoryConnection, MemoryOutbox


class Local(MemoryConnection):
    """A local transaction that has started: its barrier is there for others once it has committed, or is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._levels.append([])

    def commit(self) -> None:
        for commit, _ in self._levels.pop():
            commit()

    def roll_back(self) -> None:
        for _, rollback in self._levels.pop():
            assert rollback is not None
            rollback()


class HalfStore(MemoryOutbox):
    """`fail` says which calls are not answered."""

    def __init__(self, name: str = "db-1") -> None:
        super().__init__(clock=lambda: self.now)
        self.now = 0.0
        self.probes: list[str] = []
        self.opened = self.closed = 0
        self.fail: Callable[[str], bool] = lambda call: False
        self._id, self._is_open = name, True

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    @property
    def rows(self) -> list[Any]:
        return [*self._rows.values()]

    def commit(self, tx_id: str) -> None:
        """A local transaction has committed with its barrier."""
        self._barriers[tx_id] = ("C", self.now)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        self.probes.append(tx_id)
        return await super().probe(tx_id, wait=wait)


def _breakable(name: str) -> Callable[..., Awaitable[Any]]:
    call = getattr(HalfStore, name)

    async def broken(self: HalfStore, *arguments: Any, **options: Any) -> Any:
        if self.fail(name):
            raise StoreUnavailable(f"{name}: no answer")
        return await call(self, *arguments, **options)

    return broken


for _name in ("database_id", "barrier", "probe", "prepare", "decide", "due_checks", "answered"):
    setattr(HalfStore, _name, _breakable(_name))
