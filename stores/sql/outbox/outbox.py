"""`SQLOutbox`: the outbox of one SQL database; `ServerOutbox`: of one on a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxwaking import Wakes
from ackwise.stores.protocol.outboxwriting import Sends
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps
from ackwise.stores.sql.outbox.dialect import Dialect, require_rights
from ackwise.stores.sql.outbox.inspecting import Inspecting
from ackwise.stores.sql.outbox.preparing import Preparing
from ackwise.stores.sql.outbox.relaying import Relaying
from ackwise.stores.sql.outbox.writing import Block, Business, Rows, transaction
from ackwise.stores.sql.schema import Layout, Maintenance, SQLStore, complaints, create, required

T = TypeVar("T")


class SQLOutbox(Relaying, Preparing, Inspecting, Sends):
    """Each operation is a generator of statements, which the outbox of a database runs on its connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    def transaction(self, connection: Any) -> AbstractAsyncContextManager[Block]:
        """See `Outbox.transaction`. Errors of `connection` are its driver's own, those of writing rows `AckwiseError`."""
        return transaction(self._through(connection), self, self.wake)

    def writer(self, connection: Any) -> Rows:
        return Rows(self._through(connection))


class ServerOutbox(SQLOutbox, SQLStore[Connections[Any, Any]]):
    """`located` finds the table of the rows, which a business may not see under its name; `business` leads there through a connection."""

    def __init__(
        self,
        connections: Connections[Any, Any],
        sql: Dialect,
        layout: Layout,
        keeping: Keeping,
        wakes: Wakes,
        located: Callable[[], Steps[str]],
        business: Callable[[Any, str, str, float], Business],
    ) -> None:
        SQLOutbox.__init__(self, sql, connections.address, connections.timeout, keeping, wakes)
        maintenance = Maintenance(
            self._prepare, lambda: create(layout), lambda: complaints(layout, self._complaints), lambda: required(layout, self._clean)
        )
        SQLStore.__init__(self, connections, maintenance)
        self._layout, self._located, self._business = layout, located, business
        self._rows = sql.tables["rows"]

    def _prepare(self) -> Steps[None]:
        yield from self._sql.require_settings()
        yield from create(self._layout)
        yield from require_rights(self._sql, self._address)
        self._rows = yield from self._located()

    async def _run(self, begin: Callable[[], Steps[T]], *, repeats: bool = True) -> T:
        return await self._connections.run(begin, repeats=repeats)

    def _through(self, connection: Any) -> Business:
        return self._business(connection, self._rows, self._address, self._timeout)
