"""Failures of an outbox and its relay: what waits, what is sent twice, and what is parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ackwise.middleware.policies import Outbox
from ackwise.plugin.inspect.failures import FailurePath
from ackwise.plugin.settings.entries import spelled

__all__ = ["failures_of_outbox"]

_NONE: Final = "none: a row has no offset"


def failures_of_outbox(outbox: Outbox) -> Iterator[FailurePath]:
    """Those of the rows that wait to be sent."""
    lease = spelled(float(outbox.lease))
    held = "its key waits until it is requeued" if outbox.on_error == "block" else "later rows of its key go on"
    yield _path("the brokers do not acknowledge a row", "its key waits; it is sent again", "1s × 1.6 each time, at most 2m, ± 20%")
    yield _path(f"… {outbox.max_attempts} times", f"parked; {held}", "")
    yield _path("the brokers refuse a row for good", f"parked; {held}", "")
    yield _path("no broker answers", "rows wait, no attempt is counted", "1s, growing to 10s")
    yield _path("the database of the outbox is away", "rows wait; what was acknowledged is deleted later", "1s, doubling to 10s")
    yield _path("the relay is killed before the acknowledgement", "sent by another one", f"{lease} for its shards")
    yield _path("the relay is killed before the row is deleted", "sent again, under the same message id", f"{lease} for its shards")
    yield _path("the relay stalls longer than its lease", "it sends nothing more; another one has its shards", lease)


def _path(when: str, then: str, after: str) -> FailurePath:
    return FailurePath(when, then, after, (), None, "", _NONE)
