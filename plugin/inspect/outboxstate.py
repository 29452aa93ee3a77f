"""State of the outbox of one worker: what waits in the database, and what its relay has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import OutboxStatus, OutboxStore
from ackwise.plugin.checkback.counts import CheckCounts
from ackwise.plugin.client.bounded import ended
from ackwise.plugin.group.outboxcounts import OutboxCounts

__all__ = ["OutboxState", "look_at_outbox"]

log = Log()

#: Seconds that whoever asks waits for the database; the rest is known without.
_LOOK_TIMEOUT: Final = 2.0


@dataclass(frozen=True, slots=True)
class OutboxState:
    """How an outbox stands, `None` where the database did not say; ages are seconds. Counts are those of the relay of this worker.

    `lag` is the age of the oldest row when it was last read here, by the clock of this machine; 0 once nothing waited.
    """

    waiting: int | None
    oldest: float | None
    prepared: int | None
    parked: int | None
    relays: int | None
    relaying: bool
    shards: int
    sent: int
    failed: int
    parked_here: int
    taken_over: int
    brokers_away: bool
    lag: float
    checks: CheckCounts
    """Check-backs of half messages in this worker."""


class HasOutbox(Protocol):
    """Whoever may have an outbox: a member of a group, or the relays of a process without one."""

    @property
    def outbox(self) -> OutboxStore | None:
        """The outbox itself."""
        ...

    @property
    def outbox_counts(self) -> OutboxCounts:
        """What its relay here has counted."""
        ...

    @property
    def check_counts(self) -> CheckCounts:
        """What its check-back here has counted."""
        ...


async def look_at_outbox(member: HasOutbox) -> OutboxState | None:
    """The state of the outbox of `member`; `None` if it has none. Raises nothing of the database's."""
    if (outbox := member.outbox) is None:
        return None
    found: list[OutboxStatus] = []

    async def ask() -> None:
        found.append(await outbox.status())

    try:
        await ended(ask(), within=_LOOK_TIMEOUT)
    except AckwiseError as error:
        log.debug("the outbox can't be looked at now", error=said(error))
    status = found[0] if found else None
    counts = asdict(member.outbox_counts)
    counts["parked_here"] = counts.pop("parked")
    return OutboxState(
        waiting=None if status is None else status.waiting,
        oldest=None if status is None else status.oldest,
        prepared=None if status is None else status.prepared,
        parked=None if status is None else status.parked,
        relays=None if status is None else len(status.owners),
        checks=replace(member.check_counts),
        **counts,
    )
