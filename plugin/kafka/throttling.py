"""`Throttling`: how long brokers have delayed this process because a quota was used up. Their answers say so, and the client ignores it."""

from __future__ import annotations

import threading
from typing import Any, Final

from ackwise.middleware.log import Log, LogThrottle
from ackwise.plugin.kafka.aiokafkainternals import client_id_of, watch_answers

log = Log()


class Throttling:
    """The sum of `throttle_time_ms` of all answers, with a line in the log at most once a minute. Thread-safe."""

    def __init__(self, throttle: LogThrottle | None = None) -> None:
        self.seconds = 0.0
        self._throttle = throttle or LogThrottle()
        self._unsaid = 0.0  #: seconds since the last line
        self._lock = threading.Lock()

    def note(self, client_id: str, broker: int, milliseconds: int) -> None:
        """Count an answer of `broker` to the client of this name."""
        if milliseconds <= 0:
            return
        with self._lock:
            self.seconds += milliseconds / 1000
            self._unsaid += milliseconds / 1000
            if not self._throttle.is_due():
                return
            seconds, self._unsaid = self._unsaid, 0.0
        log.warning("brokers throttled this client", client=client_id, broker=broker, seconds=round(seconds, 3))


#: Of this process.
THROTTLING: Final = Throttling()


def watch_throttling(client: Any, throttling: Throttling = THROTTLING) -> None:
    """Let `throttling` count the answers to `client`: a started consumer, producer or admin client."""
    name = client_id_of(client)

    def look(broker: int, answer: Any) -> None:
        milliseconds = getattr(answer, "throttle_time_ms", 0)
        if isinstance(milliseconds, int):  # whatever it is, the request was answered
            throttling.note(name, broker, milliseconds)

    watch_answers(client, look)
