"""Failed sends: when an error means that the broker refuses a record, and when it may be an outage. Pure but for a clock.

`RecordRefusals` decides it for errors about one record, `Silence` for partitions that do not acknowledge, `MissingTopics` for topics that
no broker knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

from ackwise.middleware.message.outgoing import MISSING, Acked, SendAnswer

#: Seconds for which a record is tried before an error about it, or a topic that is missing, is a refusal for good.
REFUSED_AFTER: Final = 120.0

#: Seconds without a try after which a record counts as failing again from the start: much more than from one try to the next.
_FAILED_WITHIN: Final = 900.0

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
        """Return whether any record fails now; otherwise nothing has to be noted of those that are taken."""
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
        if now - last > _FAILED_WITHIN:
            since = now
        if now - since >= REFUSED_AFTER and (certain or self._taken.get(place, since) > since):
            return True
        self._failing[record] = since, now
        if len(self._failing) > _MOST:
            del self._failing[next(iter(self._failing))]
        return False


class Silence:
    """While a partition is silent, one record at a time tries it; the others go elsewhere, if they can."""

    def __init__(self) -> None:
        self._silent: dict[Place, bool] = {}  #: whether each is being tried

    def __contains__(self, place: Place) -> bool:
        return place in self._silent

    def may_try(self, place: Place) -> bool:
        """Return whether a record may be written to `place` now. A caller that may write to a silent one reports the result with `tell`."""
        if self._silent.get(place) is None:
            return True
        is_tried, self._silent[place] = self._silent[place], True
        return not is_tried

    def tell(self, place: Place, *, is_silent: bool) -> None:
        """Record whether `place` failed to acknowledge a record in time."""
        if is_silent:
            self._silent[place] = False
        else:
            self._silent.pop(place, None)

    def end_try(self, place: Place) -> None:
        """The result of a try is unknown: another one may start."""
        if place in self._silent:
            self._silent[place] = False


#: Seconds without a question after which a topic counts as missing again: much more than from one try to the next.
_ASKED_WITHIN: Final = 45.0


class MissingTopics:
    """Topics that the brokers, which answered, said are not there, and since when. `patience` and `clock` are seconds."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._missing: dict[str, tuple[float, float]] = {}  #: since when, and when it was said last

    def judge(self, topic: str, answer: SendAnswer) -> SendAnswer:
        """Return the answer; one for a topic that was missing all the time that it was waited for is a refusal.

        Any other answer, such as that of an outage, starts the time again.
        """
        if isinstance(answer, Acked) or answer.error != MISSING:
            self._missing.pop(topic, None)
            return answer
        now = self._clock()
        since, last = self._missing.get(topic, (now, now))
        if now - last > _ASKED_WITHIN:  # no caller has asked meanwhile
            since = now
        self._missing[topic] = since, now
        lasted = now - since
        if lasted < self._patience:
            return answer
        return answer._replace(cause=f"topic {topic!r} is missing for {lasted:.0f} s; create it, or correct its name", retriable=False)
