"""`MemoryStore`: claims that live as long as the process, for tests and for trying things out."""

import time
from collections import OrderedDict
from collections.abc import Callable

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.store import Exchange, ExchangeResult
from ackwise.stores.protocol.transitions import Place, Record, decide

__all__ = ["MemoryStore", "from_url"]


class MemoryStore:
    """A claim store in this process; `clock` gives seconds that never go back.

    Nothing is shared with other processes and nothing survives this one, so after a restart everything that Kafka
    delivers again runs again.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: OrderedDict[Place, Record] = OrderedDict()  # the one written longest ago first

    async def open(self) -> None:
        """Nothing to connect to."""

    async def exchange(self, exchange: Exchange) -> ExchangeResult:
        """Apply everything at once; there is no await in between, so nothing else runs meanwhile."""
        now = self._clock()
        result, written = decide(self._records.get, exchange, now)
        self._records.update(written)
        for place in written:
            self._records.move_to_end(place)
        self._forget(now)
        return result

    async def close(self) -> None:
        """Nothing to give back; the records stay as long as the object."""

    async def init(self) -> None:
        """Nothing to set up."""

    async def check(self) -> list[str]:
        """Nothing that could be wrong."""
        return []

    async def cleanup(self) -> int:
        """Drop what is forgotten, which exchanges do as well; return how many records."""
        before = len(self._records)
        self._forget(self._clock())
        return before - len(self._records)

    def _forget(self, now: float) -> None:
        """Drop the records that `decide` takes for unknown anyway.

        With one retention for all, what was written first is forgotten first, up to the length of a lease: so the
        first one to keep ends the search.
        """
        while self._records and next(iter(self._records.values())).kept_until <= now:
            self._records.popitem(last=False)


def from_url(url: str) -> MemoryStore:
    """A new, empty store for `memory://`. Raises `ConfigurationError` if the URL says more than that."""
    if url != "memory://":
        raise ConfigurationError("the URL of the memory store is memory:// and nothing else; it has no path and no options")
    return MemoryStore()
