"""Protocol of a publisher of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.wire import Copy

__all__ = ["Publisher", "TopicMissing"]


class TopicMissing(PublishUnavailable):
    """The brokers know no topic of this name: a copy for it waits until somebody makes it."""


class Publisher(Protocol):
    """Publishes copies with acks=all."""

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        """One answer per copy, in order: `None` once every in-sync replica has it, else why it is not there."""
        ...
