"""Partitions of a topic, and which of them a message is for: the one that Kafka's own clients choose, or a rung of a delay topic. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from aiokafka.partitioner import murmur2

from ackwise.middleware.ladder import ladder_of
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.sendlater import due_of_send

__all__ = ["Partitions", "due_of"]


class Partitions:
    """The partitions of one topic, for the messages of one call. Those without key and partition share one, so that they share a batch."""

    def __init__(self, known: Sequence[int], available: Sequence[int]) -> None:
        self._known = known
        self._keyless = random.choice(available or known)  # it spreads load and hides nothing

    def __len__(self) -> int:
        return len(self._known)

    def of(self, message: Outgoing, now: float, may_take: Callable[[int], bool] = lambda _: True) -> int | None:
        """The partition of `message`; `None` if it names one that the topic has not. `now`: epoch seconds.

        A message that waits for its time takes the best rung that `may_take` it; the best one if none may.
        """
        if message.partition is not None:
            return message.partition if message.partition in self._known else None
        if (due := due_of(message)) is not None:
            ways = ladder_of(len(self._known)).ways(due / 1000 - now, sends=True, spread=hash(message.message_id))
            best = next(ways, None)
            return best if best is None or may_take(best) else next(filter(may_take, ways), best)
        if message.key is None:
            return self._keyless
        hashed: int = murmur2(message.key) & 0x7FFFFFFF
        return self._known[hashed % len(self._known)]

    def hops(self, message: Outgoing, now: float) -> int:
        """How often a message that waits to be sent is written until it is due; 0 for any other."""
        due, ladder = due_of(message), ladder_of(len(self._known))
        return ladder.hops(due / 1000 - now) if due is not None and ladder else 0


def due_of(message: Outgoing) -> int | None:
    """When a message is due that waits on a rung, epoch milliseconds; `None` for any other."""
    return due_of_send(message.headers) if message.headers and message.partition is None else None
