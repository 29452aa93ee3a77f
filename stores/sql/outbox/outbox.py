"""`SQLOutbox`: the outbox of one SQL database."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.sql.outbox.inspecting import Inspecting
from ackwise.stores.sql.outbox.preparing import Preparing
from ackwise.stores.sql.outbox.relaying import Relaying
from ackwise.stores.sql.outbox.transaction import transaction
from ackwise.stores.sql.outbox.writing import Block, Rows

__all__ = ["SQLOutbox"]


class SQLOutbox(Relaying, Preparing, Inspecting, Sends):
    """Each operation is a generator of statements, which the outbox of a database runs on its connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    def transaction(self, connection: Any) -> AbstractAsyncContextManager[Block]:
        """See `Outbox.transaction`. Errors of `connection` are its driver's own, those of writing rows `AckwiseError`."""
        return transaction(self._through(connection), self, self.wake)

    def writer(self, connection: Any) -> Rows:
        """See `Outbox.writer`."""
        return Rows(self._through(connection))
