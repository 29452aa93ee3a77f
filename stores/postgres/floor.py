"""`Floor`: the id up to which a read of the outbox need not look for rows that were never tried. Pure.

Under a long transaction PostgreSQL keeps the index entries of rows that were deleted, and a read by id walks over all of them. Ids are
given at the INSERT and appear with the COMMIT, so the highest id that was sent says nothing: a lower one may come. The floor moves over an
id only if every row up to it was gone, and each transaction that had started by then has ended since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

#: Seconds from one look for a higher floor to the next, and from one read of all rows to the next: an id may have been given out long
#: before its row came, as by a sequence with a cache.
LOOK_EVERY: Final = 1.0
ALL_EVERY: Final = 60.0


class Seen(NamedTuple):
    """What one snapshot of the database shows."""

    oldest: int
    """The oldest transaction that still runs (`pg_snapshot_xmin`)."""
    next: int
    """The first transaction id that no transaction has yet (`pg_snapshot_xmax`)."""
    lowest: int | None
    """The lowest id above the floor of a row to be sent that was never tried."""


class Floor:
    """`id` is the floor. All times are seconds of one clock."""

    def __init__(self) -> None:
        self.id = 0
        self._highest = 0  #: id that was given to the relay
        self._look_at = self._all_at = float("-inf")
        self._next: tuple[int, int] | None = None  #: the floor to be, and the transaction id before which all have to end

    def is_due(self, now: float) -> bool:
        """Return whether to look for a higher floor."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        return True

    def see(self, seen: Seen) -> None:
        """Move the floor as far as is safe."""
        gone = self._highest if seen.lowest is None else seen.lowest - 1
        if self._next is not None and seen.oldest >= self._next[1]:
            self.id, self._next = max(self.id, min(self._next[0], gone)), None
        if self._next is None and gone > self.id:
            self._next = gone, seen.next

    def begin(self, now: float) -> int:
        """Return the id above which to read now: 0 once a minute."""
        if now < self._all_at:
            return self.id
        self._all_at = now + ALL_EVERY
        return 0

    def found(self, ids: Sequence[int], above: int) -> None:
        """These were read `above` an id. Where all were read, the floor goes below them: beside a late one there may be more."""
        self._highest = max(ids, default=self._highest)
        if ids and not above and min(ids) <= self.id:
            self.id, self._next = min(ids) - 1, None
