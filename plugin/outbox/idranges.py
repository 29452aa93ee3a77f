"""`IdRanges`: a set of row ids that lie together for the most part, kept as ranges. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

#: Ranges that are kept; the lowest go first, since the log comes to them first.
_MOST: Final = 100_000


class IdRanges:
    """Ids that were added, in `most` ranges."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, int):
            return False
        place = bisect_right(self._firsts, id) - 1
        return place >= 0 and id <= self._lasts[place]

    def add(self, id: int) -> None:
        """Add an id. It is cheap at the end of a range, where the next one of a sweep is."""
        if id in self:
            return
        place = bisect_right(self._firsts, id)
        follows = place > 0 and self._lasts[place - 1] == id - 1
        precedes = place < len(self._firsts) and self._firsts[place] == id + 1
        if follows and precedes:
            self._lasts[place - 1] = self._lasts.pop(place)
            del self._firsts[place]
        elif follows:
            self._lasts[place - 1] = id
        elif precedes:
            self._firsts[place] = id
        else:
            self._firsts.insert(place, id)
            self._lasts.insert(place, id)
        if len(self._firsts) > self._most:
            del self._firsts[0], self._lasts[0]
