"""`Barriers`: the barrier rows in the database of the local transactions."""

from __future__ import annotations

from typing import Any

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import BarrierStore, TransactionOutcome

__all__ = ["Barriers"]


class Barriers:
    """The barriers in `store`. The first connection that one is inserted through is compared with it.

    A barrier in another database would never be found: what has committed there would be taken for rolled back.
    """

    def __init__(self, store: BarrierStore) -> None:
        self._store = store
        self._id: str | None = None
        self._is_compared = False

    async def database_id(self) -> str:
        """What half messages say of where their barrier is. Raises `StoreUnavailable`."""
        if self._id is None:
            self._id = await self._store.database_id()
        return self._id

    async def insert(self, connection: Any, tx_id: str) -> None:
        """See `BarrierStore.barrier`. Raises `ConfigurationError` for a connection to another database."""
        if not self._is_compared:
            if await self._store.database_id(connection) != await self.database_id():
                raise ConfigurationError(
                    "the connection that was given to tx.barrier leads to another database than that of the TransactionalProducer; name "
                    "the database of your local transactions by business="
                )
            self._is_compared = True
        await self._store.barrier(connection, tx_id)

    async def probe(self, tx_id: str, *, wait: float) -> TransactionOutcome:
        """See `BarrierStore.probe`."""
        return await self._store.probe(tx_id, wait=wait)
