"""`MissingTopics`: how long a topic that no broker knows is waited for, before what is for it is given up. Pure but for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ackwise.middleware.outgoing import MISSING, Acked, SendAnswer

__all__ = ["MissingTopics"]


#: Seconds without a question after which a topic counts as missing anew: much more than from one try to the next.
_PAUSE: Final = 45.0


class MissingTopics:
    """Topics that the brokers, which answered, said are not there, and since when. `patience` and `clock` are seconds."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._missing: dict[str, tuple[float, float]] = {}  #: since when, and when it was said last

    def judge(self, topic: str, answer: SendAnswer) -> SendAnswer:
        """Return the answer; one for a topic that was missing all the time that it was waited for is a refusal.

        Any other answer, such as that of an outage, begins the time anew.
        """
        if isinstance(answer, Acked) or answer.error != MISSING:
            self._missing.pop(topic, None)
            return answer
        now = self._clock()
        since, last = self._missing.get(topic, (now, now))
        if now - last > _PAUSE:  # nobody has asked meanwhile
            since = now
        self._missing[topic] = since, now
        lasted = now - since
        if lasted < self._patience:
            return answer
        return answer._replace(cause=f"topic {topic!r} is missing for {lasted:.0f} s; create it, or correct its name", retriable=False)
