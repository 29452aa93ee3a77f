"""What only broker and database know of a worker, and since when its commits stand still: looked at every ten seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition

from ackwise.middleware.log import Log
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.group.lane import Lane
from ackwise.plugin.group.member import Member
from ackwise.plugin.inspect.outboxstate import OutboxState, look_at_outbox

__all__ = ["LaneKey", "Seen", "keep_looking", "key_of", "lanes_of"]

log = Log()

#: Seconds between two looks.
_LOOK_EVERY: Final = 10.0

LaneKey = tuple[str, int, str]
"""Topic, partition and agent."""


@dataclass(slots=True)
class Seen:
    """What broker and database said when they were last asked, and since when each commit stands still (monotonic seconds)."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    outbox: OutboxState | None = None
    standing: dict[LaneKey, tuple[int | None, float]] = field(default_factory=dict)

    def note(self, member: Member, now: float) -> None:
        """Look how far each lane is."""
        self.standing = {key_of(lane): self._standing(lane, now) for lane in lanes_of(member)}

    def _standing(self, lane: Lane, now: float) -> tuple[int | None, float]:
        """The next commit of `lane`, and since when it is that. Without messages in hand nothing stands still."""
        commit = lane.watermark.commit
        before = self.standing.get(key_of(lane))
        return before if before is not None and lane.in_hand and before[0] == commit else (commit, now)


async def keep_looking(member: Member, seen: Seen) -> None:
    """Ask broker and database now and every ten seconds, for `seen`; what they do not say is unknown then."""
    while True:
        seen.note(member, time.monotonic())
        try:
            seen.ends, seen.outbox = await asyncio.gather(member.ends(), look_at_outbox(member))
        except Exception as error:  # noqa: BLE001  # the worker goes on unwatched
            seen.ends, seen.outbox = {}, None
            log.warning(
                "a look at the worker failed, it goes on and some metrics are missing",
                group=member.settings.group,
                error=type(error).__name__,
                at=where_raised(error),
            )
        await asyncio.sleep(_LOOK_EVERY)


def lanes_of(member: Member) -> Iterator[Lane]:
    """All lanes of `member`. May be asked from any thread."""
    return (lane for lanes in member.lanes.copy().values() for lane in lanes)


def key_of(lane: Lane) -> LaneKey:
    """What a lane is told from others by; the agent is empty where it has messages of several."""
    return lane.topic, lane.partition, lane.agent or lane.handler or ""
