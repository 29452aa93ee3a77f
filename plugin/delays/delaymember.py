"""Member of the relay's consumer group: its lanes are rungs of the delay topic and run the delay pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.flow.limits import Share, Thresholds
from ackwise.middleware.message.outgoing import MessageSender, Publisher
from ackwise.middleware.policies.delaytopic import Ladder
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.consumer.backlog import Budget
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.consumer.workerstate import DelayCounts, DelayStanding
from ackwise.plugin.delays.cancellations import Cancellations
from ackwise.plugin.delays.delaypipeline import LONGEST_REST, DelayPipeline
from ackwise.plugin.delays.nexthop import Bounds, WaitingRun
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames

#: Bytes of copies in memory, over all rungs and of one.
_BYTES, _BYTES_OF_RUNG = 64 * 2**20, 16 * 2**20

#: Copies of one rung in memory: those that are moved in a second, most of which are set aside for their last half second.
_COPIES: Final = 50_000

#: Seconds for what is being published when a partition is given up; a publisher answers within ten.
_RELEASE_TIMEOUT: Final = 12.0


class DelayMember(Member):
    """Reads the rungs of the delay topic in `names`, in its own group. It records only how far the logs reach."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        publisher: Publisher,
        sender: MessageSender,
        cancellations: Cancellations,
        *,
        bounds: Bounds,
        counts: DelayCounts,
        sink: EventSink | None,
        clock: Callable[[], float],
        longest_rest: float = LONGEST_REST,
    ) -> None:
        """`settings` are those of the group that is relayed for."""
        super().__init__(settings_of_relay(settings), [], Parts(ConsumeLater(), DeadLetter(), sink=sink and _Ends(sink)), clock=clock)
        self.names = TopicNames.none(names.relay_group)  # nothing of what it consumes is its own
        self.budget = Budget(_BYTES)
        self.find_ladder: Callable[[], Ladder] = lambda: Ladder(0)  #: of the topic as the client knows it
        self.pipeline = DelayPipeline(
            names,
            publisher,
            sender,
            cancellations,
            ladder=lambda: self.find_ladder(),
            has_room=lambda: not self.budget.is_spent,
            held=lambda: sum(len(run) for run in self._waiting_runs() if run.failing_since is not None),
            bounds=bounds,
            counts=counts,
            sink=sink,
            clock=clock,
            longest_rest=longest_rest,
        )
        counts.standing = self.standing

    @asynccontextmanager
    async def opened(self, **_: Any) -> AsyncIterator[None]:
        """It has nothing to open."""
        yield
        if self.fatal is not None:
            raise self.fatal

    @property
    def cluster(self) -> str | None:
        """The id of the cluster; without it the next owner of a rung is not told what was moved past a held copy, and moves it again."""
        return self._commits.cluster

    @cluster.setter
    def cluster(self, cluster: str | None) -> None:
        self._commits.cluster = cluster

    def lane(self, topic: str, partition: int, role: str, position: int, **_: Any) -> Lane:
        """A lane of one rung."""
        return Lane(
            topic,
            partition,
            "source",
            position,
            make=self.pipeline.make,
            progressed=self._progressed,
            overlapping=True,
            budget=self.budget,
            share=Share(lambda _: Thresholds(_COPIES, _BYTES_OF_RUNG, None)),
            commit=self._commit_lane,
        )

    def _suspect(self, lanes: Sequence[Lane], left: object, end: int | None) -> None:
        """Nothing of a user's runs here, so no record is suspected of the death of the last owner."""

    async def begin(self) -> None:
        """Commit where rungs start: a relay that comes later starts there too."""
        await self.commit([partition for partition, lanes in self.lanes.items() if lanes[0].committed is None])

    def _fail(self, error: BaseException, task: str) -> None:
        """An error ends this membership, and the relay starts another."""
        self.fatal = error if self.fatal is None else self.fatal
        self.stop.set()

    def standing(self) -> list[DelayStanding]:
        """How each rung stands here."""
        now = self.clock()
        return [
            DelayStanding(
                place.topic,
                lane.watermark.count,
                max((now - run.overdue_since / 1000 for run in _runs_of(lane) if run.overdue_since is not None), default=0.0),
            )
            for place, (lane,) in self.lanes.copy().items()
        ]

    def _waiting_runs(self) -> Sequence[WaitingRun]:
        return [run for (lane,) in self.lanes.values() for run in _runs_of(lane)]


class _Ends:
    """Takes only how far the logs reach: what the relay records of messages is the pipeline's."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    async def open(self) -> None:
        """It is open."""

    def record(self, event: Event) -> None:
        """See `EventSink.record`."""
        if event.code is EventCode.BROKER_OFFSETS:
            self._sink.record(event._replace(role="delay"))

    async def flush(self) -> None:
        """See `EventSink.flush`."""
        await self._sink.flush()

    async def close(self) -> None:
        """It stays open."""


def settings_of_relay(settings: HostSettings) -> HostSettings:
    """Those of the group in which the relay reads for the group of `settings`."""
    return replace(
        settings,
        group=f"{settings.group}.relay",
        start="earliest",  # what was written before the first relay is read
        revoke_timeout=_RELEASE_TIMEOUT,
        drain_timeout=_RELEASE_TIMEOUT,
        group_instance_id="",
        delayed_sends=False,
    )


def _runs_of(lane: Lane) -> list[WaitingRun]:
    return [run for run in (*lane.held, *lane.running) if isinstance(run, WaitingRun)]
