"""`SQLOutbox`: the outbox of one SQL database, but for what goes over the connections of the business."""

from __future__ import annotations

from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.sql.outbox.inspecting import Inspecting
from ackwise.stores.sql.outbox.preparing import Preparing
from ackwise.stores.sql.outbox.relaying import Relaying

__all__ = ["SQLOutbox"]


class SQLOutbox(Relaying, Preparing, Inspecting, Sends):
    """Each operation is a generator of statements, which the outbox of a database runs on its connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"
