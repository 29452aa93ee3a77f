"""Partitions of a topic, and which of them a message is for: the one that Kafka's own clients choose. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from aiokafka.partitioner import murmur2

from ackwise.middleware.outgoing import Outgoing

__all__ = ["Partitions"]


class Partitions:
    """The partitions of one topic, for the messages of one call. Those without key and partition share one, so that they share a batch."""

    def __init__(self, known: Sequence[int], available: Sequence[int]) -> None:
        self._known = known
        self._keyless = random.choice(available or known)  # it spreads load and hides nothing

    def __len__(self) -> int:
        return len(self._known)

    def of(self, message: Outgoing) -> int | None:
        """The partition of `message`; `None` if it names one that the topic has not."""
        if message.partition is not None:
            return message.partition if message.partition in self._known else None
        if message.key is None:
            return self._keyless
        hashed: int = murmur2(message.key) & 0x7FFFFFFF
        return self._known[hashed % len(self._known)]
