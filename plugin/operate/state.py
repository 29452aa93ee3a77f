"""The state of one worker: messages in flight, progress, what it waits for, and its outbox. It contains no message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol

from aiokafka import TopicPartition

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log, said
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.middleware.runs.run import Run, count
from ackwise.middleware.storage.outbox import OutboxStatus, OutboxStore
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.workerstate import CheckCounts, OutboxCounts, ShareCounts
from ackwise.plugin.kafka.timeouts import ended
from ackwise.plugin.operate.explanation import ChainLink, Setting

log = Log()

#: Seconds that a request waits for the database; the rest is known without.
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
    expired: int
    taken_over: int
    brokers_away: bool
    lag: float
    checks: CheckCounts
    """Check-backs of half messages in this worker."""


class HasOutbox(Protocol):
    """The owner of an outbox: a member of a group, or the relays of a process without one."""

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


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages that are held for one reason: the first of their offsets, and the seconds until the first comes up again.

    `again_in` is `None` where that is no matter of time, such as while they are paused.
    """

    why: str
    messages: int
    offset: int
    again_in: float | None


@dataclass(frozen=True, slots=True)
class LaneState:
    """How far one agent is with one partition. `agent` is `None` where a lane is not one agent's.

    `position` is fetched next and `watermark` would be committed now; `lag` is how far that is from `end`, and
    `lag_seconds` the age of the oldest record that is not finished. What is unknown is `None`. `unreadable` is why nothing can be read
    from `position` on, where that is so.
    """

    topic: str
    partition: int
    role: str
    agent: str | None
    position: int
    committed: int | None
    watermark: int | None
    end: int | None
    lag: int | None
    in_hand: int
    running: int
    held: tuple[HeldMessages, ...]
    unreadable: str | None = None
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AgentState:
    """What one agent has in all partitions: messages in flight, and of those the ones that wait for it, that it has taken, that are held.

    `undeduplicated` ran without a claim since their key was empty, `unprotected` since the store was down; `out_of_order` are copies
    that came although the agent has an order. All three since the start.
    """

    agent: str
    topics: tuple[str, ...]
    in_hand: int
    waiting: int
    taken: int
    held: int
    undeduplicated: int
    unprotected: int
    out_of_order: int = 0


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """The topics of the group."""

    retry: str
    delay: str
    dead_letters: str


@dataclass(frozen=True, slots=True)
class State:
    """One worker. `claims` and `store_down` are `None` without a store; `chain` and `settings` are those of `ackwise explain`.

    `event_log_outage`: the event log could not be made durable when it was last asked, and nothing is started. `cut_delays`:
    copies since the start that were due later than `max_delay` allows.
    """

    group: str
    agents: tuple[AgentState, ...]
    lanes: tuple[LaneState, ...]
    claims: int | None
    store_down: bool | None
    event_log_outage: bool
    cut_delays: int
    topics: GroupTopics
    chain: tuple[ChainLink, ...]
    settings: tuple[Setting, ...]
    share: ShareCounts | None = None
    """What it has of a share group, if its sources are consumed by one; `lanes` are those of its copies then."""
    outbox: OutboxState | None = None
    """Its outbox, if it has one."""


def look(
    member: Member,
    ends: Mapping[TopicPartition, int],
    *,
    chain: tuple[ChainLink, ...] = (),
    settings: tuple[Setting, ...] = (),
    outbox: OutboxState | None = None,
) -> State:
    """The state of `member`, which is open; `ends` are where the logs end, as far as that is known."""
    leases, worker, names = member.leases, member.worker, member.names
    now = worker.monotonic()
    return State(
        group=worker.group,
        agents=tuple(_agents(member)),
        lanes=tuple(_lane(lane, ends.get(partition), now) for partition, lanes in sorted(member.lanes.items()) for lane in lanes),
        claims=None if leases is None else len(leases),
        store_down=None if leases is None else leases.has_failed,
        event_log_outage=worker.outage.is_on,
        cut_delays=member.delay_counts.cut,
        topics=GroupTopics(names.retry, names.delay, names.dead_letter),
        chain=chain,
        settings=settings,
        share=None if member.share_counts is None else replace(member.share_counts),
        outbox=outbox,
    )


def by_agent(member: Member) -> tuple[Counter[str], Counter[str]]:
    """How many messages each agent has in flight, and how many of them are held. May be asked from any thread."""
    in_hand, held = (Counter(dict.fromkeys(member.pipelines.copy(), 0)) for _ in range(2))
    for lane in (lane for lanes in member.lanes.copy().values() for lane in lanes):
        in_hand.update(_messages_by_agent((*lane.queued, *lane.running, *lane.held)))
        held.update(_messages_by_agent(lane.held))
    return in_hand, held


def _agents(member: Member) -> Iterator[AgentState]:
    in_hand, held = by_agent(member)
    runs = [run for lanes in member.lanes.values() for lane in lanes for run in lane.running]
    waiting = _messages_by_agent([run for run in runs if _is_at(run, Where.WAITING)])
    taken = _messages_by_agent([run for run in runs if _is_at(run, Where.TAKEN)])
    for name, pipeline in sorted(member.pipelines.items()):
        yield AgentState(
            agent=name,
            topics=member.sources.of(pipeline.agent),
            in_hand=in_hand[name],
            waiting=waiting[name],
            taken=taken[name],
            held=held[name],
            undeduplicated=pipeline.undeduplicated,
            unprotected=pipeline.unprotected,
            out_of_order=member.routes.out_of_order[name],
        )


def _messages_by_agent(runs: Iterable[Run]) -> Counter[str]:
    """Return the handler; "-" for a copy in another version of the wire format."""
    messages: Counter[str] = Counter()
    for run in runs:
        messages["-" if run.pipeline is None else run.pipeline.agent.name] += len(run)
    return messages


def _is_at(run: Run, where: Where) -> bool:
    """A handler that is called has taken its messages; a loop says of each whether it has."""
    if run.call is None:
        return False
    return (run.call.where if isinstance(run.call, InFlight) else Where.TAKEN) is where


def _lane(lane: Lane, end: int | None, now: float) -> LaneState:
    watermark = lane.watermark.commit
    return LaneState(
        topic=lane.topic,
        partition=lane.partition,
        role=lane.role,
        agent=lane.agent,
        position=lane.position,
        committed=lane.committed,
        watermark=watermark,
        end=end,
        lag=None if end is None or watermark is None else max(0, end - watermark),
        in_hand=lane.in_hand,
        running=count(lane.running),
        held=tuple(_held(lane.held, now)),
        unreadable=lane.unreadable,
        lag_seconds=None if (seconds := lane.lag_seconds(end)) is None else round(seconds, 3),
    )


def _held(runs: Sequence[Run], now: float) -> Iterator[HeldMessages]:
    by_reason: dict[str, list[Run]] = {}
    for run in runs:
        by_reason.setdefault(run.why, []).append(run)
    for why, same in by_reason.items():
        again = min(run.not_before for run in same)
        again_in = None if again == math.inf else max(0.0, round(again - now, 3))
        yield HeldMessages(why, count(same), min(run.first for run in same), again_in)
