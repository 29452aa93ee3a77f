"""`RecordRefusals`: when an error about one record is its refusal, and when it may be a fault of the broker. Pure but for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["REFUSED_AFTER", "RecordRefusals"]

#: Seconds for which a record is tried before an error about it, or a topic that is missing, is a refusal for good.
REFUSED_AFTER: Final = 120.0

#: Seconds without a try after which a record counts as failing again from the start: much more than from one try to the next.
_PAUSE: Final = 900.0

#: Records that are remembered as failing; of more, the oldest start again.
_MOST: Final = 10_000

Place = tuple[str, int]
"""A topic and a partition."""


class RecordRefusals:
    """Records that fail by themselves, alone in their batch, and since when; each is known by a hash or an id. `clock` is seconds.

    One that fails for `REFUSED_AFTER` seconds is refused, if its own partition has taken another record meanwhile: a partition that
    takes nothing is at fault itself. Where the broker has judged the record (`certain`), the time alone decides.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failing: dict[Hashable, tuple[float, float]] = {}  #: since when, and when it failed last
        self._taken: dict[Place, float] = {}  #: when each partition last took a record, while any record fails

    def __bool__(self) -> bool:
        """Whether any record fails now; otherwise nothing has to be noted of those that are taken."""
        return bool(self._failing)

    def take(self, record: Hashable, place: Place) -> None:
        """Note that `place` has taken `record`."""
        if not self._failing:
            return
        self._failing.pop(record, None)
        self._taken[place] = self._clock()
        if not self._failing:
            self._taken.clear()

    def is_refused(self, record: Hashable, place: Place, *, certain: bool = False) -> bool:
        """Note that `record` failed at `place`, alone in its batch; return whether that is a refusal by now."""
        now = self._clock()
        since, last = self._failing.pop(record, (now, now))
        if now - last > _PAUSE:
            since = now
        if now - since >= REFUSED_AFTER and (certain or self._taken.get(place, since) > since):
            return True
        self._failing[record] = since, now
        if len(self._failing) > _MOST:
            del self._failing[next(iter(self._failing))]
        return False
