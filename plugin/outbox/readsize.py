"""`ReadSize`: how much of an outbox is read at once. Over a slow link a large read has no answer in time, however often it is repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.storage.outbox import MOST_BYTES, OutboxRow

log = Log()

#: Bytes below which a read is not halved any more: the next one is for a single row.
_SMALL: Final = 64 * 1024

#: Reads in a row that succeed until twice as much is read at once.
_GROWS_AFTER: Final = 32


class ReadSize:
    """Bytes of rows to read at once: half as many after a read that failed, down to a single row, and more after those that did not.

    `outbox` is its name in the log.
    """

    def __init__(self, outbox: str) -> None:
        self._outbox = outbox
        self._most, self._succeeded = MOST_BYTES, 0

    async def read(self, pending: Callable[[int], Awaitable[list[OutboxRow]]]) -> list[OutboxRow]:
        """Return what `pending` returns for this number of bytes. Raises `StoreUnavailable` if not even one row can be read."""
        while True:
            try:
                found = await pending(self._most)
            except StoreUnavailable as error:
                if self._most == 1:
                    raise
                self._most, self._succeeded = (self._most // 2 if self._most > _SMALL else 1), 0
                log.warning("outbox read size halved", outbox=self._outbox, bytes=self._most, error=said(error))
                continue
            self._succeeded += 1
            if self._succeeded >= _GROWS_AFTER and self._most < MOST_BYTES:
                self._most, self._succeeded = min(MOST_BYTES, max(_SMALL, 2 * self._most)), 0
            return found
