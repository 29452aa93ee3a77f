"""Topic plan: the topics that a group needs so that no copy is lost in them, and the changes where they differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.wire import BUDGET
from ackwise.middleware.policies.delaytopic import Ladder, ladder_of, width
from ackwise.middleware.policies.retry import LONGEST_DELAY
from ackwise.middleware.runs.agent import Agent, readers_of
from ackwise.plugin.topics.topicnames import TopicNames

#: Whose clock a topic's records carry, and the value for the broker's.
TIMESTAMP_TYPE: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"

#: Partitions of the control topic: commands, and how workers are. Brokers compact what is older than a segment: ten minutes.
_CONTROL_PARTITIONS: Final = 2
_CONTROL_SEGMENT: Final = "600000"

#: Bytes; Kafka keeps message sizes in a signed 32-bit number.
_LARGEST: Final = 2**31 - 1


class Topic(NamedTuple):
    """What the brokers say about a topic. Retention is in milliseconds, -1 without a limit; sizes are in bytes, -1 without a limit."""

    partitions: int
    replication: int
    max_message_bytes: int
    retention_ms: int
    cleanup_policy: str = "delete"
    min_insync_replicas: int | None = 1  #: `None` of brokers that know no such setting
    timestamp_type: str = "CreateTime"
    retention_bytes: int = -1


class MadeTopic(NamedTuple):
    """A topic as it is created."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str]


class Demand(NamedTuple):
    """The least that a topic must have. Units are those of `Topic`; `None` where anything will do."""

    partitions: int
    max_message_bytes: int
    retention_ms: int | None


class TopicReview(NamedTuple):
    """One topic that a group needs, and what is to be done about it."""

    topic: str
    role: Literal["source", "passed over", "earlier", "retry", "dead letter", "delay", "control"]
    wanted: Demand | None  #: `None` for a source, and for all as long as there is no source to measure them by
    found: Topic | None
    todo: Literal["nothing", "create", "extend", "mend"]  #: only the user can fix
    faults: tuple[str, ...] = ()  #: what to fix, a sentence each
    advice: str | None = None  #: what would be better; a worker starts without it


class TopicPlan(NamedTuple):
    """What is missing: topics to create `like` this, and topics to extend to as many partitions as it has."""

    create: tuple[str, ...]
    extend: tuple[str, ...]
    like: Topic
    dead_letter: str
    delay: str = ""
    rungs: int = 0  #: partitions of the delay topic
    control: str | None = None  #: to create as well, if that is allowed; a worker starts without it

    def made(self, topic: str) -> MadeTopic:
        """One of `create`, as it is created."""
        config = {
            "max.message.bytes": str(self.like.max_message_bytes),
            "retention.bytes": "-1",  # a size limit would delete copies that wait
            **_safe_as(self.like),
            "retention.ms": str(self.retention(topic)),
            "cleanup.policy": "delete",
            TIMESTAMP_TYPE: self.timestamp_type(topic),
        }
        return MadeTopic(topic, self.partitions(topic), self.like.replication, config)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a created topic. For the delay topic it depends on the waits, not on the sources."""
        return self.rungs if topic == self.delay else self.like.partitions

    def retention(self, topic: str) -> int:
        """Milliseconds for which a created topic keeps its messages; dead letters wait for people, so they are kept forever."""
        if topic == self.dead_letter or self.like.retention_ms == -1:
            return -1
        return max(self.like.retention_ms, _kept(ladder_of(self.rungs))) if topic == self.delay else self.like.retention_ms

    def timestamp_type(self, topic: str) -> str:
        """Whose clock a created topic's records carry. In the delay topic a clock that is ahead must delay no other copy."""
        return APPEND_TIME if topic == self.delay else "CreateTime"

    @property
    def required(self) -> tuple[str, ...]:
        """Those of `extend` without which nothing comes back; a delay topic with fewer rungs costs hops."""
        return tuple(topic for topic in self.extend if topic != self.delay)


def control_topic(name: str, like: Topic) -> MadeTopic:
    """The control topic, as it is created."""
    config = {"cleanup.policy": "compact", "segment.ms": _CONTROL_SEGMENT, **_safe_as(like)}
    return MadeTopic(name, _CONTROL_PARTITIONS, like.replication, config)


def state_topic(name: str, like: Topic | None) -> MadeTopic:
    """The topic of what was done with dead letters, as it is created: as safe as these are."""
    replication, safe = (1, {"min.insync.replicas": "1"}) if like is None else (like.replication, _safe_as(like))
    return MadeTopic(name, 1, replication, {"cleanup.policy": "compact", **safe})


def _safe_as(like: Topic) -> dict[str, str]:
    """The settings of a topic that acknowledges as `like` does."""
    return {} if like.min_insync_replicas is None else {"min.insync.replicas": str(like.min_insync_replicas)}


def waits_in_place(agents: Sequence[Agent], sources: Iterable[str]) -> dict[str, float]:
    """Seconds that a message of each of `sources` may wait in place at most, where its handler has an order and a limit that holds."""
    return {
        topic: agent.in_place.max_reconsume_times * LONGEST_DELAY
        for topic in sources
        for agent in readers_of(agents, topic)
        if agent.in_place is not None and agent.in_place.on_dead == "continue"
    }


def plan_topics(
    names: TopicNames,
    sources: Collection[str],
    found: Mapping[str, Topic],
    *,
    longest_delay: float,
    rungs: int = width(),
    in_place: Mapping[str, float] = MappingProxyType({}),
) -> TopicPlan:
    """Plan the topics so that every copy of a message of `sources` fits and none is deleted before it is due.

    `longest_delay`, and those of `in_place` by topic, are in seconds; `rungs` are the partitions of the delay topic. Raises
    `ConfigurationError` for what only the user can change.
    """
    reviews = review_topics(names, sources, found, longest_delay=longest_delay, rungs=rungs, in_place=in_place)
    for fault in (fault for review in reviews for fault in review.faults):
        raise ConfigurationError(fault)
    return TopicPlan(
        create=tuple(review.topic for review in reviews if review.todo == "create" and review.role != "control"),
        extend=tuple(review.topic for review in reviews if review.todo == "extend"),
        like=_like([found[source] for source in sources], longest_delay),
        dead_letter=names.dead_letter,
        delay=names.delay,
        rungs=rungs,
        control=next((review.topic for review in reviews if review.todo == "create" and review.role == "control"), None),
    )


def made_topics(
    names: TopicNames, sources: Collection[str], found: Mapping[str, Topic], *, longest_delay: float, rungs: int
) -> list[MadeTopic]:
    """The five topics of the group, as they are created where only `sources` are there. Raises as `plan_topics`."""
    there = {source: found[source] for source in sources if source in found}
    plan = plan_topics(names, sources, there, longest_delay=longest_delay, rungs=rungs)
    made = [plan.made(topic) for topic in plan.create]
    return [*made, control_topic(names.control, plan.like), state_topic(names.state, plan.like)]


def review_topics(
    names: TopicNames,
    sources: Collection[str],
    found: Mapping[str, Topic],
    *,
    longest_delay: float,
    rungs: int = width(),
    in_place: Mapping[str, float] = MappingProxyType({}),
) -> list[TopicReview]:
    """Every topic of the group and every one that it reads, held against what it must be; the sources come first, the control topic last.

    `longest_delay`, and those of `in_place` by topic, are in seconds; `rungs` are the partitions of the delay topic.
    """
    there = [found[source] for source in sources if source in found]
    like = _like(there, longest_delay) if there else None
    return [
        *(_source(source, found.get(source), in_place.get(source, 0.0)) for source in sorted(sources)),
        *(
            _delay(topic, found.get(topic), like, longest_delay, rungs)
            if topic == names.delay
            else _ours(topic, names, found.get(topic), like, longest_delay)
            for topic in names.all
        ),
        *([_control(names.control, found.get(names.control))] if names.all else []),
    ]


def _source(topic: str, there: Topic | None, in_place: float) -> TopicReview:
    if there is not None and 0 <= there.retention_ms < 2 * in_place * 1000:
        fault = (
            f"topic {topic!r} keeps messages for {format_duration(there.retention_ms / 1000)}, and its handler may let one wait in place "
            f"for {format_duration(in_place)} with others behind it; raise its retention.ms to twice that, or lower max_reconsume_times"
        )
        return TopicReview(topic, "source", None, there, "mend", (fault,))
    if there is not None:
        return TopicReview(topic, "source", None, there, "nothing")
    # Brokers do not even list what a client may not describe.
    fault = (
        f"topic {topic!r}, which an agent consumes, does not exist or is hidden from this client; "
        f"create it first (for development: ackwise topics create MODULE:APP --source {topic} --partitions 3), correct the name, or give "
        "this client Read on it"
    )
    return TopicReview(topic, "source", None, None, "mend", (fault,))


def _ours(topic: str, names: TopicNames, there: Topic | None, like: Topic | None, longest_delay: float) -> TopicReview:
    role: Final = "retry" if topic == names.retry else "dead letter"
    if like is None:
        return TopicReview(topic, role, None, there, "nothing" if there else "create")
    waits = role == "retry"  # a dead letter waits for people, who decide for how long
    wanted = Demand(like.partitions, like.max_message_bytes, round(longest_delay * 1000) if waits else None)
    if there is None:
        return TopicReview(topic, role, wanted, None, "create")
    kept = _of_retention(topic, there, longest_delay) if waits else _of_letters(topic, there)
    faults = (*_of_size(topic, there, like), *kept)
    todo: Final = "mend" if faults else "extend" if there.partitions < like.partitions else "nothing"
    return TopicReview(topic, role, wanted, there, todo, faults)


def _delay(topic: str, there: Topic | None, like: Topic | None, longest_delay: float, rungs: int) -> TopicReview:
    """The delay topic: as many partitions as there are rungs, and kept for twice the longest of those that are there."""
    if like is None:
        return TopicReview(topic, "delay", None, there, "nothing" if there else "create")
    ladder = ladder_of(rungs if there is None else max(there.partitions, 0))
    wanted = Demand(rungs, like.max_message_bytes, _kept(ladder_of(rungs)))
    if there is None:
        return TopicReview(topic, "delay", wanted, None, "create")
    faults = (*_of_size(topic, there, like), *_of_rungs(topic, there, ladder))
    todo: Final = "mend" if faults else "extend" if there.partitions < rungs else "nothing"
    advice = _of_missing(topic, there, ladder, longest_delay) if there.partitions < rungs else None
    return TopicReview(topic, "delay", wanted._replace(retention_ms=_kept(ladder)), there, todo, faults, advice or _of_clock(topic, there))


def _kept(ladder: Ladder) -> int:
    """Milliseconds for which a delay topic keeps its records at least: twice its longest rung."""
    return 2 * 1000 * ladder.longest if ladder else 0


def _control(topic: str, there: Topic | None) -> TopicReview:
    if there is None:
        return TopicReview(topic, "control", None, None, "create")
    advice = None
    if there.cleanup_policy != "compact":
        advice = f"topic {topic!r} forgets what is paused, since it is not compacted; set its cleanup.policy to compact"
    return TopicReview(topic, "control", None, there, "nothing", (), advice)


def _like(sources: Sequence[Topic], longest_delay: float) -> Topic:
    """Return a topic as wide, as safe and as long-lived as the sources, whose messages may be larger by our headers."""
    retentions = [source.retention_ms for source in sources]
    # A copy that waits may be as old as a message, and must outlive its delay by the time for which no relay runs.
    retention = -1 if -1 in retentions else max(*retentions, round(2 * longest_delay * 1000))
    return Topic(
        partitions=max(source.partitions for source in sources),
        replication=max(source.replication for source in sources),
        max_message_bytes=min(_LARGEST, max(source.max_message_bytes for source in sources) + BUDGET),
        retention_ms=retention,
        min_insync_replicas=max((known for source in sources if (known := source.min_insync_replicas) is not None), default=None),
    )


def _of_size(topic: str, there: Topic, like: Topic) -> list[str]:
    if there.max_message_bytes >= like.max_message_bytes:
        return []
    return [
        f"topic {topic!r} takes messages of at most {there.max_message_bytes} bytes, and a copy with its headers can have "
        f"{like.max_message_bytes}; set its max.message.bytes to that"
    ]


def _of_retention(topic: str, there: Topic, longest_delay: float) -> list[str]:
    faults = []
    if "compact" in there.cleanup_policy:
        faults.append(f"topic {topic!r} is compacted, which deletes copies with equal keys; set its cleanup.policy to delete")
    if 0 <= there.retention_ms < longest_delay * 1000:
        faults.append(
            f"topic {topic!r} keeps messages for {format_duration(there.retention_ms / 1000)} and the longest delay is "
            f"{format_duration(longest_delay)}; raise its retention.ms, or copies are deleted before they are due"
        )
    return faults + _of_bytes(topic, there, "copies are deleted before they are due")


def _of_rungs(topic: str, there: Topic, ladder: Ladder) -> list[str]:
    """Return the findings that would delete or strand waiting copies."""
    faults = []
    if not ladder:
        faults.append(f"topic {topic!r} has one partition, which is for cancellations, so nothing can wait; give it {width()} partitions")
    if there.cleanup_policy != "delete":
        faults.append(f"topic {topic!r} has cleanup.policy={there.cleanup_policy}, which deletes copies with equal keys; set it to delete")
    if 0 <= there.retention_ms < _kept(ladder):
        faults.append(
            f"topic {topic!r} keeps messages for {format_duration(there.retention_ms / 1000)} and its longest rung is "
            f"{format_duration(ladder.longest)}; raise its retention.ms to twice that, or copies are deleted while no relay runs"
        )
    return faults + _of_bytes(topic, there, "copies are deleted before they are due")


def _of_missing(topic: str, there: Topic, ladder: Ladder, longest_delay: float) -> str | None:
    """Return what the missing rungs cost; `None` if each wait has a partition and only those for delayed sends are missing."""
    if not ladder or not ladder.missing:
        return None
    hops, least = ladder.hops(longest_delay), ladder_of(width()).hops(longest_delay)
    rungs = " ".join(map(format_duration, ladder.missing))
    return (
        f"topic {topic!r} has {there.partitions} partitions, so rungs are missing ({rungs}): a copy that waits for "
        f"{format_duration(longest_delay)} is written {hops} times and not {least}; give it {width()} partitions"
    )


def _of_bytes(topic: str, there: Topic, otherwise: str) -> list[str]:
    if there.retention_bytes < 0:
        return []
    return [
        f"topic {topic!r} keeps {there.retention_bytes} bytes of each partition and deletes what is older; set its retention.bytes to -1, "
        f"or {otherwise}"
    ]


def _of_letters(topic: str, there: Topic) -> list[str]:
    if "compact" not in there.cleanup_policy:
        return []
    return [
        f"dead-letter topic {topic!r} is compacted: it takes no dead letter without a key, and deletes those with equal keys; set its "
        "cleanup.policy to delete, or give DeadLetter another topic"
    ]


def _of_clock(topic: str, there: Topic) -> str | None:
    if there.timestamp_type == APPEND_TIME:
        return None
    return (
        f"topic {topic!r} has the timestamps of its producers, whose clocks decide how long it keeps their copies; ackwise topics create "
        f"sets its {TIMESTAMP_TYPE} to {APPEND_TIME}"
    )
