"""`MemoryConnection`: the connection of a business whose database is this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


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
