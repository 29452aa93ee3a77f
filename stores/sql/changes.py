"""`LogChanges`: the parts that the change sources of all databases share."""

from __future__ import annotations

import abc
import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from ackwise.middleware.errors import AckwiseError, StoreUnavailable
from ackwise.middleware.storage.changes import Change, Committed, Operation, SourceStatus, UnreadableChange
from ackwise.middleware.storage.outbox import OutboxRow, RowState
from ackwise.stores.protocol.outbox import read_row
from ackwise.stores.sql.connections import Connections
from ackwise.stores.sql.operation import Steps

T = TypeVar("T")

#: What an outbox row says of its message.
_COLUMNS: Final = ("topic", "value", "message_key", "headers", "partition", "message_id")


class LogChanges(abc.ABC):
    """The changes of `tables`, or of the outbox, from the position `name` on; `within` (seconds) bounds what is asked of the database."""

    def __init__(
        self, connections: Connections[Any, Any], name: str, tables: Sequence[str], *, create: bool, replace_lost: bool, within: float
    ) -> None:
        self.name, self.address = name, connections.address
        self._connections, self._given, self._within = connections, tuple(tables), within
        self._create, self._replace_lost = create, replace_lost
        self._reporting: asyncio.Task[None] | None = None
        self._end: AckwiseError | None = None
        self._found: tuple[str, ...] = ()
        self._ready: deque[Change | Committed] = deque()

    async def read(self, limit: int) -> Sequence[Change | Committed]:
        """The next changes. What can't be read ends the source, once what stands before it was given out. Raises as `ChangeSource.read`."""
        while not self._ready:
            if self._end is not None:
                raise self._end
            try:
                await self._receive(limit)
            except AckwiseError:
                if self._end is not None:
                    raise self._end from None
                raise
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def status(self) -> SourceStatus:
        """How far it has come. Raises `StoreUnavailable`, `ChangesLost` or `ConfigurationError`."""
        await self._connections.open(self._require_settings)
        return await self._ask(self._status())

    async def close(self) -> None:
        """Tell the database what was acknowledged, and disconnect."""
        await self._stop_stream()
        await self._connections.close()

    def outbox_row(self, change: Change) -> OutboxRow | None:
        return _inserted_row(change, self.address)

    @abc.abstractmethod
    def _require_settings(self) -> Steps[None]:
        """Raise `ConfigurationError` for a server whose log can't be read."""

    @abc.abstractmethod
    def _status(self) -> Steps[SourceStatus]:
        """See `status`."""

    @abc.abstractmethod
    async def _receive(self, limit: int) -> None:
        """Wait for `limit` pieces of the log at most, and make `_ready` or the `_end` of them."""

    @abc.abstractmethod
    async def _stop_stream(self) -> None:
        """Report what was acknowledged, and read no more."""

    async def _stop_reporting(self) -> bool:
        """Return whether it was reported until now."""
        reporting, self._reporting = self._reporting, None
        if reporting is None:
            return False
        reporting.cancel()
        await asyncio.wait({reporting})
        return True

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address}: change data capture is not open")

    async def _ask(self, steps: Steps[T]) -> T:
        return await self._connections.ask(lambda: steps, self._within)

    def _remains(self) -> str:
        """Return the outcome of lost changes, as a part of a sentence."""
        if self._given:
            return "changes that were not sent yet will be missing in Kafka"
        rows = "rows that were not sent yet are still in the outbox, and are sent from there then"
        return f"{rows}, but for those that were deleted with their insert"


def _inserted_row(change: Change, address: str) -> OutboxRow | None:
    """Return the row of the outbox that was inserted to be sent.

    Raises `UnreadableRow` for one that Ackwise did not write, and `UnreadableChange` where a column of the table is missing.
    """
    row = change.row
    if change.operation is not Operation.INSERT or row.get("state") != RowState.LOCAL_COMMIT:
        return None
    try:
        id, shard, attempts, *columns = [row[name] for name in ("id", "shard", "attempts", *_COLUMNS)]
    except KeyError as error:
        raise UnreadableChange(
            f"{address}: a row of {change.table}, committed at {change.position}, can't be read (it has no column {error}); "
            "run `ackwise outbox check`, and see who changed the table"
        ) from None
    row_read = read_row(id, shard, attempts, change.committed_ms, *columns)
    return row_read._replace(is_delayed=row.get("due") is not None, expires=row.get("expires") is not None)


def require_same(table: str, before: Mapping[str, object], later: Mapping[str, object]) -> None:
    """Raise `ValueError` for a column, by its name, that is gone or has another type; new columns are ignored."""
    gone = [f"column {name} is gone" for name in before if name not in later]
    changed = [f"column {name} has another type" for name, column in before.items() if name in later and later[name] != column]
    if gone or changed:
        raise ValueError(
            f"table {table} was changed while it was read, {(gone or changed)[0]}; everything before that was sent and nothing behind "
            "it: make what reads it fit the new columns, and start again"
        )
