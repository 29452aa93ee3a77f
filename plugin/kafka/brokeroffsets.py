"""Offsets on the brokers: the group's commits, the first and last offset of each log, and the id of the topic behind a name.

This is the only place that decides where to start. An answer that is missing, incomplete or an error never means "nothing was
committed", and no partition starts on it.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
    for_code,
)

from ackwise.plugin.kafka.aiokafkainternals import (
    any_broker,
    ask_coordinator,
    forget_coordinator,
    isolation_of,
    leader_of,
    look_for_topics,
    partitions_of,
    send,
)
from ackwise.plugin.kafka.protocolrequests import NO_TOPIC_ID, MetadataWithIds, OffsetFetchRequest, OffsetRequest
from ackwise.plugin.kafka.timeouts import answer

#: Seconds that a broker has to answer.
_WITHIN: Final = 5.0

#: Seconds that a broker has to say where logs start or end, where what the others say is shown without it; a page waits for two.
_SHOWN_WITHIN: Final = 1.5

#: What is asked for in place of a time.
LATEST: Final = -1
EARLIEST: Final = -2

#: The isolation of a client that reads what is not committed.
UNCOMMITTED: Final = 0

#: What says that the coordinator has to be looked for again.
_MOVED: Final = (NotCoordinatorForGroupError, GroupCoordinatorNotAvailableError, RequestTimedOutError)

_Offsets = dict[TopicPartition, int | KafkaError]


class Committed(NamedTuple):
    """What a group committed of a partition."""

    offset: int
    metadata: str


class Topic(NamedTuple):
    """A topic as a broker knows it. One that is deleted and made again has another id."""

    id: str | None = None
    """As Kafka writes it: 22 characters of base64; `None` where the broker has no ids."""
    partitions: int | None = None
    """How many it has; `None` if that is not known."""


class Standing(NamedTuple):
    """One partition: what its group committed, `None` for a group that never did, and its log from `start` to before `end`."""

    committed: Committed | None
    start: int
    end: int
    topic: Topic = Topic()
    others: Sequence[Committed] = ()
    """What the group committed of other partitions of the topic; it is asked for where nothing was committed of this one."""


class Reach(NamedTuple):
    """One partition's log, from `start` to before `end`."""

    start: int
    end: int


class Asked(NamedTuple):
    """What is known of the partitions that were asked for, and of the others why it is not. Each is in one of the two."""

    known: dict[TopicPartition, Standing]
    unknown: dict[TopicPartition, KafkaError]


async def ask(consumer: Any, group: str, partitions: Collection[TopicPartition], *, within: float = _WITHIN) -> Asked:
    """Ask the brokers about `partitions`: one or two requests to the coordinator of `group` and three to each broker.

    `consumer` is a started `AIOKafkaConsumer` of that group, which need not have the partitions. Raises nothing of the brokers'.
    """
    asked = sorted(partitions)
    if not asked:
        return Asked({}, {})
    # The ids first: where a topic is made again meanwhile, its old id is found wrong later. A new one beside old offsets never would be.
    topics, nameless = await topics_of(consumer, asked, within=within)
    found = Asked({}, dict(nameless))
    committed, (reached, unknown) = await asyncio.gather(
        _committed(consumer, group, sorted(topics), within), reaches(consumer, topics, within=within)
    )
    others = await _committed_of_others(consumer, group, topics, committed, within)
    for partition in topics:
        said, its_others = committed[partition], others.get(partition.topic, ())
        errors = [each for each in (said, its_others, unknown.get(partition)) if isinstance(each, KafkaError)]
        if errors:
            found.unknown[partition] = errors[0]
        else:
            of_others = () if said is not None else cast(Sequence[Committed], its_others)
            found.known[partition] = Standing(cast("Committed | None", said), *reached[partition], topics[partition], of_others)
    return await _past_open_transactions(consumer, found, within)


async def _committed_of_others(
    consumer: Any,
    group: str,
    topics: Mapping[TopicPartition, Topic],
    committed: Mapping[TopicPartition, Committed | KafkaError | None],
    within: float,
) -> dict[str, Sequence[Committed] | KafkaError]:
    """Return the commits of each topic with an uncommitted partition, or the error that hides them."""
    widths = {partition.topic: topic.partitions or 0 for partition, topic in topics.items() if committed[partition] is None}
    asked = sorted({TopicPartition(topic, number) for topic, width in widths.items() for number in range(width)} - committed.keys())
    said = {**committed, **(await _committed(consumer, group, asked, within) if asked else {})}
    found: dict[str, Sequence[Committed] | KafkaError] = {}
    for topic in widths:
        its = [each for partition, each in said.items() if partition.topic == topic and each is not None]
        error = next((each for each in its if isinstance(each, KafkaError)), None)
        found[topic] = error or [each for each in its if isinstance(each, Committed)]
    return found


async def _past_open_transactions(consumer: Any, found: Asked, within: float) -> Asked:
    """`found`, with the true ends of logs that seem to end before what was committed.

    A client that reads what is committed gets the start of the first open transaction as the end. A group that used to read everything may
    have committed behind that, and its log has lost nothing.
    """
    behind = sorted(partition for partition, said in found.known.items() if said.committed is not None and said.committed.offset > said.end)
    if not behind:
        return found
    for partition, end in (await offsets_of(consumer, LATEST, behind, isolation=UNCOMMITTED, within=within)).items():
        standing = found.known.pop(partition)
        if isinstance(end, KafkaError):
            found.unknown[partition] = end
        else:
            found.known[partition] = standing._replace(end=max(end, standing.end))
    return found


async def reaches(
    consumer: Any, partitions: Collection[TopicPartition], *, isolation: int | None = None, within: float = _WITHIN
) -> tuple[dict[TopicPartition, Reach], dict[TopicPartition, KafkaError]]:
    """Return the reach of the logs of `partitions`, and an error for each unknown one. Ask no coordinator.

    `isolation` as in `offsets_of`: with `UNCOMMITTED` a log ends behind its open transactions.
    """
    asked = sorted(partitions)
    starts, ends = await asyncio.gather(
        *(offsets_of(consumer, time, asked, isolation=isolation, within=within) for time in (EARLIEST, LATEST))
    )
    known: dict[TopicPartition, Reach] = {}
    unknown: dict[TopicPartition, KafkaError] = {}
    for partition in asked:
        start, end = starts[partition], ends[partition]
        if isinstance(start, KafkaError):
            unknown[partition] = start
        elif isinstance(end, KafkaError):
            unknown[partition] = end
        else:
            known[partition] = Reach(start, end)
    return known, unknown


async def committed_by(
    consumer: Any, group: str, partitions: Collection[TopicPartition], *, within: float = _WITHIN
) -> tuple[dict[TopicPartition, Committed | None], dict[TopicPartition, KafkaError]]:
    """Return the commits of `group` for `partitions`, and an error for each unknown one. Ask only the coordinator."""
    said = await _committed(consumer, group, sorted(partitions), within) if partitions else {}
    unknown = {partition: each for partition, each in said.items() if isinstance(each, KafkaError)}
    return {partition: each for partition, each in said.items() if not isinstance(each, KafkaError)}, unknown


async def _committed(
    consumer: Any, group: str, partitions: list[TopicPartition], within: float
) -> dict[TopicPartition, Committed | KafkaError | None]:
    """Return the commits as the coordinator reports them.

    aiokafka's own `committed()` overlooks an error about the whole answer, such as a coordinator that is still loading, and takes it
    for a group that never committed.
    """
    try:
        said = await answer(_fetch_committed(consumer, group, partitions), within=within)
    except (KafkaError, OSError) as error:
        return dict.fromkeys(partitions, _as_kafka(error))
    silent = KafkaConnectionError("the coordinator's answer leaves out the partition")
    return {partition: said.get(partition, silent) for partition in partitions}


async def _fetch_committed(
    consumer: Any, group: str, partitions: list[TopicPartition]
) -> dict[TopicPartition, Committed | KafkaError | None]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    response = await ask_coordinator(consumer, OffsetFetchRequest(group, list(by_topic.items())))
    found: dict[TopicPartition, Committed | KafkaError | None] = {}
    for topic, its_partitions in response.topics:
        for number, offset, metadata, code in its_partitions:
            found[TopicPartition(topic, number)] = for_code(code)() if code else Committed(offset, metadata or "") if offset >= 0 else None
    if code := getattr(response, "error_code", 0):  # the oldest form of the answer has none for the whole
        found = dict.fromkeys(partitions, for_code(code)())
    if any(isinstance(each, _MOVED) for each in found.values()):
        forget_coordinator(consumer)
    return found


async def offsets_of(
    consumer: Any, time: int, partitions: Collection[TopicPartition], *, isolation: int | None = None, within: float = _WITHIN
) -> _Offsets:
    """The offset in each log that stands for `time`, `LATEST` or `EARLIEST`; an error of each of which that is not known now.

    Each broker is asked once, side by side, and answers for each partition by itself, so none keeps another waiting. For one without a
    leader nobody is asked: the client looks who leads it, and whoever needs it asks again. `isolation` is the client's unless it is given.
    """
    isolation = isolation_of(consumer) if isolation is None else isolation
    led: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        led[leader_of(consumer, partition)].append(partition)
    found: _Offsets = {partition: LeaderNotAvailableError() for leader in (None, -1) for partition in led.pop(leader, ())}
    for said in await asyncio.gather(*(_offsets_at(consumer, leader, time, its, isolation, within) for leader, its in led.items())):
        found.update(said)
    if any(isinstance(each, KafkaError) and (each.invalid_metadata or isinstance(each, KafkaTimeoutError)) for each in found.values()):
        look_for_topics(consumer)
    return found


async def known_offsets(consumer: Any, time: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset in each log that stands for `time`, of those alone of which a broker says it now.

    The client's own `end_offsets` has none of all of them while one has no leader, and on Faust nobody can end that from outside of its
    thread, which does two things at a time: nothing would be fetched or committed meanwhile.
    """
    found = await offsets_of(consumer, time, partitions, within=_SHOWN_WITHIN)
    return {partition: each for partition, each in found.items() if not isinstance(each, KafkaError)}


async def _offsets_at(
    consumer: Any, leader: int | None, time: int, partitions: Sequence[TopicPartition], isolation: int, within: float
) -> _Offsets:
    """Return the answer of one broker. A missing offset, or one below zero, counts as none."""
    asked: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition in partitions:
        asked[partition.topic].append((partition.partition, time))
    try:
        response = await answer(send(consumer, leader, OffsetRequest(-1, isolation, list(asked.items()))), within=within)
    except (KafkaError, OSError) as error:
        return dict.fromkeys(partitions, _as_kafka(error))
    said = {
        TopicPartition(topic, number): for_code(code)() if code else offset
        for topic, parts in response.topics
        for number, code, _, offset, *_ in parts
    }
    silent = KafkaConnectionError("the broker's answer leaves out the partition")
    found = {partition: said.get(partition, silent) for partition in partitions}
    return {partition: silent if isinstance(each, int) and each < 0 else each for partition, each in found.items()}


def _as_kafka(error: Exception) -> KafkaError:
    return error if isinstance(error, KafkaError) else KafkaConnectionError(type(error).__name__)


async def topics_of(
    consumer: Any, partitions: Collection[TopicPartition], *, within: float = _WITHIN
) -> tuple[dict[TopicPartition, Topic], dict[TopicPartition, KafkaError]]:
    """The topic of each of `partitions`, as its leader knows it, and of the others why it is not known.

    The leader is asked, since it can't have the log of a topic that it does not know yet. A broker that is older than ids says `Topic()`
    with what the client knows of the topic. Raises nothing of the brokers'.
    """
    by_leader: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        by_leader[leader_of(consumer, partition)].append(partition)
    said = await asyncio.gather(*(_ask_leader(consumer, leader, its, within) for leader, its in by_leader.items()))
    known: dict[TopicPartition, Topic] = {}
    unknown: dict[TopicPartition, KafkaError] = {}
    for found in said:
        for partition, topic in found.items():
            if isinstance(topic, Topic):
                known[partition] = topic
            else:
                unknown[partition] = topic
    if any(isinstance(each, KafkaTimeoutError) for each in unknown.values()):  # who hangs may lead nothing any more
        look_for_topics(consumer)
    return known, unknown


async def _ask_leader(
    consumer: Any, leader: int | None, partitions: Collection[TopicPartition], within: float
) -> dict[TopicPartition, Topic | KafkaError]:
    node = leader if leader is not None and leader >= 0 else any_broker(consumer)
    names = sorted({partition.topic for partition in partitions})
    try:
        if node is None:
            raise KafkaConnectionError("the client knows no broker")
        found = _topics_in(await answer(send(consumer, node, MetadataWithIds(names)), within=within))
    except (IncompatibleBrokerVersion, NotImplementedError):  # aiokafka raises either for a broker that does not know version 10
        return {partition: Topic(None, len(partitions_of(consumer, [partition.topic])) or None) for partition in partitions}
    except Exception as error:  # noqa: BLE001  # whatever the client raises, or an answer that can't be read: it is asked again
        return dict.fromkeys(partitions, error if isinstance(error, KafkaError) else KafkaConnectionError(type(error).__name__))
    silent = KafkaConnectionError("the broker's answer leaves out the topic")
    return {partition: found.get(partition.topic, silent) for partition in partitions}


def _topics_in(response: Any) -> dict[str, Topic | KafkaError]:
    said: dict[str, Topic | KafkaError] = {}
    for each in response.to_object()["topics"]:
        if each["error_code"]:
            said[each["topic"]] = for_code(each["error_code"])(each["topic"])
        else:
            said[each["topic"]] = Topic(_written(each["topic_id"]), len(each["partitions"]) or None)
    return said


def _written(topic_id: uuid.UUID) -> str | None:
    """As Kafka writes it."""
    return None if topic_id == NO_TOPIC_ID else base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
