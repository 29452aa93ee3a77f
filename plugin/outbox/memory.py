"""Memory: the rows that the broker acknowledged and that are not deleted yet. They are not sent again by this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from ackwise.middleware.outbox import OutboxRow

__all__ = ["AckMemory"]

#: Rows that are remembered. It takes an outage of the database to have more than a few windows of them.
_MOST: Final = 20_000


class AckMemory:
    """A bounded set of rows. One that was forgotten is sent again, under its message id."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ids: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def remember(self, rows: Iterable[OutboxRow]) -> None:
        """The broker has acknowledged them."""
        self._ids.update((row.id, row.message.message_id) for row in rows)
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def forget(self, rows: Iterable[OutboxRow]) -> None:
        """They are deleted, or belong to another relay."""
        for row in rows:
            self._ids.pop(row.id, None)

    def has(self, row: OutboxRow) -> bool:
        """Whether it was acknowledged; a row of another database, or of a restored one, has another message id."""
        return self._ids.get(row.id) == row.message.message_id
