"""The topics of a group: their names, and that they are there, wide enough and large enough, before anything is consumed.

The decision (`plan_topics`) is pure; `ensure_topics` carries it out and looks again, until nothing is left to do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, InvalidPartitionsError, KafkaError, for_code

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import BUDGET
from ackwise.plugin.settings import HostSettings

__all__ = ["Topic", "TopicNames", "TopicPlan", "ensure_topics", "plan_topics"]

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")

#: Kafka: `Topic.MAX_NAME_LENGTH`.
_LONGEST: Final = 249

#: Bytes; Kafka keeps message sizes in a signed 32-bit number.
_LARGEST: Final = 2**31 - 1

#: Seconds until the brokers must have answered, made the topics and told each other.
_TIMEOUT: Final = 30.0
_REQUEST_TIMEOUT_MS: Final = 10_000
_LOOK_AGAIN: Final = 0.2

_NO_ERROR, _UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE, _TOPIC_EXISTS, _NOT_CONTROLLER = 0, 3, 5, 36, 41

_SETTINGS: Final = ("max.message.bytes", "retention.ms", "cleanup.policy", "min.insync.replicas")


@dataclass(frozen=True, slots=True, init=False)
class TopicNames:
    """What the topics of `group` are called: one for retries, one for dead letters, one per delay level, shortest first.

    Raises `ConfigurationError` for a name that Kafka would refuse, and for a dead-letter topic that has another use.
    """

    group: str
    retry: str
    dead_letter: str
    delays: tuple[str, ...]

    def __init__(self, group: str, levels: DelayLevels, *, dead_letter: str | None = None) -> None:
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "retry", f"{group}.retry")
        object.__setattr__(self, "dead_letter", f"{group}.dlq" if dead_letter is None else dead_letter)
        object.__setattr__(self, "delays", tuple(f"{group}.delay.{name}" for name in levels.names()))
        for topic in self.all:
            _check_name(topic, group)
        if self.dead_letter in (self.retry, *self.delays):
            raise ConfigurationError(
                f"dead-letter topic {self.dead_letter!r} is a retry topic of group {group!r}: its messages would come back; choose another"
            )

    @property
    def all(self) -> tuple[str, ...]:
        """Every topic of the group."""
        return (self.retry, self.dead_letter, *self.delays)

    @property
    def relay_group(self) -> str:
        """The consumer group in which the relay reads the delay topics."""
        return f"{self.group}.relay"


def _check_name(topic: str, group: str) -> None:
    if not _LEGAL.fullmatch(topic) or topic in (".", ".."):
        raise ConfigurationError(
            f"{topic!r}, a topic of group {group!r}, is not a legal topic name; use letters, digits, '.', '_' and '-' only"
        )
    if len(topic) > _LONGEST:
        raise ConfigurationError(
            f"{topic!r}, a topic of group {group!r}, has {len(topic)} characters and Kafka allows {_LONGEST}; choose a shorter group name"
        )


class Topic(NamedTuple):
    """What the brokers say about a topic. Retention is in milliseconds, -1 for ever; sizes are in bytes."""

    partitions: int
    replication: int
    max_message_bytes: int
    retention_ms: int
    cleanup_policy: str = "delete"
    min_insync_replicas: int = 1


class TopicPlan(NamedTuple):
    """What is missing: topics to create `like` this, and topics to extend to as many partitions as it has."""

    create: tuple[str, ...]
    extend: tuple[str, ...]
    like: Topic
    dead_letter: str

    def retention(self, topic: str) -> int:
        """Milliseconds for which a created topic keeps its messages; dead letters wait for people, so they are kept for ever."""
        return -1 if topic == self.dead_letter else self.like.retention_ms


def plan_topics(names: TopicNames, sources: Collection[str], found: Mapping[str, Topic], *, longest_delay: float) -> TopicPlan:
    """What must be done so that every copy of a message of `sources` fits and none is deleted before it is due.

    `longest_delay` is in seconds. Raises `ConfigurationError` for what only the user can change.
    """
    missing = sorted(set(sources) - set(found))
    if missing:
        raise ConfigurationError(f"topic {missing[0]!r} does not exist, and an agent consumes it; create it first, or correct the name")
    like = _like([found[source] for source in sources], longest_delay)
    for topic in names.all:
        if (there := found.get(topic)) is not None:
            _check_size(topic, there, like)
            if topic != names.dead_letter:
                _check_retention(topic, there, longest_delay)
    return TopicPlan(
        create=tuple(topic for topic in names.all if topic not in found),
        extend=tuple(topic for topic in names.all if topic in found and found[topic].partitions < like.partitions),
        like=like,
        dead_letter=names.dead_letter,
    )


def _like(sources: Sequence[Topic], longest_delay: float) -> Topic:
    """As wide, as safe and as long-lived as the sources, and messages may be larger by the budget of our headers."""
    retentions = [source.retention_ms for source in sources]
    # A copy that waits may be as old as a message, and must outlive its delay by the time for which no relay runs.
    retention = -1 if -1 in retentions else max(*retentions, round(2 * longest_delay * 1000))
    return Topic(
        partitions=max(source.partitions for source in sources),
        replication=max(source.replication for source in sources),
        max_message_bytes=min(_LARGEST, max(source.max_message_bytes for source in sources) + BUDGET),
        retention_ms=retention,
        min_insync_replicas=max(source.min_insync_replicas for source in sources),
    )


def _check_size(topic: str, there: Topic, like: Topic) -> None:
    if there.max_message_bytes < like.max_message_bytes:
        raise ConfigurationError(
            f"topic {topic!r} takes messages of at most {there.max_message_bytes} bytes, and a copy with its headers can have "
            f"{like.max_message_bytes}; set its max.message.bytes to that"
        )


def _check_retention(topic: str, there: Topic, longest_delay: float) -> None:
    if "compact" in there.cleanup_policy:
        raise ConfigurationError(f"topic {topic!r} is compacted, which deletes copies with equal keys; set its cleanup.policy to delete")
    if 0 <= there.retention_ms < longest_delay * 1000:
        raise ConfigurationError(
            f"topic {topic!r} keeps messages for {format_duration(there.retention_ms / 1000)} and the longest delay is "
            f"{format_duration(longest_delay)}; raise its retention.ms, or copies are deleted before they are due"
        )


async def ensure_topics(settings: HostSettings, names: TopicNames, sources: Collection[str], *, levels: DelayLevels) -> None:
    """Return once every topic of the group is there and fits `sources`, the topics that its agents consume.

    What is missing is created or extended (`create_topics="auto"`), refused (`"never"`), or left to the broker's
    auto-creation (`"broker"`, which also checks partition counts only: such brokers may not tell more).
    Raises `ConfigurationError`, and `Unavailable` if the brokers do not answer.
    """
    for topic in sorted(set(sources) & set(names.all)):
        raise ConfigurationError(f"an agent consumes {topic!r}, a topic of its own group {names.group!r}; consume it in another group")
    admin = _admin(settings)
    try:
        async with asyncio.timeout(_TIMEOUT):
            await admin.start()
            if settings.create_topics == "broker":
                await _await_broker(admin, names, sources)
            else:
                await _await_plan(admin, settings, names, sources, levels.seconds[-1])
    except IncompatibleBrokerVersion:
        raise ConfigurationError(
            f"the brokers {settings.brokers!r} can't describe or create topics on request; set create_topics to 'broker', "
            "so that they are created when first used"
        ) from None
    except (KafkaError, OSError, TimeoutError) as error:
        raise Unavailable(
            f"the topics of group {names.group!r} can't be checked, since the brokers {settings.brokers!r} do not answer "
            f"({type(error).__name__}); check the address, that they run, and the credentials in client_options"
        ) from error
    finally:
        await admin.close()


def _admin(settings: HostSettings) -> AIOKafkaAdminClient:
    options: dict[str, Any] = dict(settings.client_options)
    try:
        return AIOKafkaAdminClient(
            bootstrap_servers=settings.brokers, client_id=f"{settings.client_id}-topics", request_timeout_ms=_REQUEST_TIMEOUT_MS, **options
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"client_options can't be used: {error}") from error


async def _await_plan(
    admin: AIOKafkaAdminClient, settings: HostSettings, names: TopicNames, sources: Collection[str], longest_delay: float
) -> None:
    """Other workers start at the same time, and brokers learn of a new topic one by one: look until it is so."""
    while True:
        plan = plan_topics(names, sources, await _look(admin, {*sources, *names.all}), longest_delay=longest_delay)
        if not plan.create and not plan.extend:
            return
        if settings.create_topics == "never":
            _refuse(plan)
        await _create(admin, plan)
        await _extend(admin, plan)
        await asyncio.sleep(_LOOK_AGAIN)


def _refuse(plan: TopicPlan) -> None:
    wanted = f"{plan.like.partitions} partitions and max.message.bytes={plan.like.max_message_bytes}"
    if plan.create:
        raise ConfigurationError(
            f"{_listed(plan.create)} must exist, since create_topics is 'never'; create them with {wanted}, or set create_topics to 'auto'"
        )
    raise ConfigurationError(
        f"{_listed(plan.extend)} must have as many partitions as the largest source, {plan.like.partitions}; "
        "extend them, or set create_topics to 'auto'"
    )


async def _look(admin: AIOKafkaAdminClient, topics: Collection[str]) -> dict[str, Topic]:
    """Those of `topics` that are there. Asks for the list first: asking for a topic by its name may create it."""
    there = sorted(set(await admin.list_topics()) & set(topics))
    if not there:
        return {}
    partitions = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics(there) if topic["error_code"] == _NO_ERROR}
    configs = await _configs(admin, there)
    return {topic: _topic(partitions[topic], configs[topic]) for topic in there if topic in configs and partitions.get(topic)}


def _topic(partitions: Sequence[Mapping[str, Any]], config: Mapping[str, str]) -> Topic:
    return Topic(
        partitions=len(partitions),
        replication=max(len(partition["replicas"]) for partition in partitions),
        max_message_bytes=int(config["max.message.bytes"]),
        retention_ms=int(config["retention.ms"]),
        cleanup_policy=config["cleanup.policy"],
        min_insync_replicas=int(config["min.insync.replicas"]),
    )


async def _configs(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(_SETTINGS)) for topic in topics]
    found = {}
    responses: list[Any] = await admin.describe_configs(resources)
    for response in responses:
        for code, message, _, topic, entries in response.resources:
            if code == _NO_ERROR:
                found[topic] = {name: value for name, value, *_ in entries}
            elif code != _UNKNOWN_TOPIC:
                raise ConfigurationError(
                    f"the settings of topic {topic!r} can't be read ({_why(code, message)}); allow this client to describe its "
                    "configuration, or set create_topics to 'broker' to go without the check"
                )
    return found


async def _create(admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
    if not plan.create:
        return
    like = plan.like
    config = {
        "max.message.bytes": str(like.max_message_bytes),
        "retention.bytes": "-1",  # a size limit would delete copies that wait
        "cleanup.policy": "delete",
        "min.insync.replicas": str(like.min_insync_replicas),
        "message.timestamp.type": "CreateTime",  # the relay compares it with the due time, which is a client's clock as well
    }
    response: Any = await admin.create_topics(
        [
            NewTopic(topic, like.partitions, like.replication, topic_configs=config | {"retention.ms": str(plan.retention(topic))})
            for topic in plan.create
        ]
    )
    for topic, code, *message in response.topic_errors:
        if code not in (_NO_ERROR, _TOPIC_EXISTS, _NOT_CONTROLLER):
            raise ConfigurationError(
                f"topic {topic!r} can't be created ({_why(code, *message)}); create it with {like.partitions} partitions and "
                f"max.message.bytes={like.max_message_bytes}, or allow this client to"
            )


async def _extend(admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
    for topic in plan.extend:
        try:
            with suppress(InvalidPartitionsError):  # another worker was faster
                await admin.create_partitions({topic: NewPartitions(plan.like.partitions)})
        except KafkaError as error:
            if error.retriable:
                continue
            raise ConfigurationError(
                f"topic {topic!r} can't be extended to the {plan.like.partitions} partitions of the largest source ({error}); "
                "extend it, or allow this client to"
            ) from error


async def _await_broker(admin: AIOKafkaAdminClient, names: TopicNames, sources: Collection[str]) -> None:
    """Asking for a topic makes a broker with auto-creation create it, in its own time."""
    wanted = sorted({*sources, *names.all})
    deadline = asyncio.get_running_loop().time() + _TIMEOUT / 2
    while True:
        topics = {topic["topic"]: topic for topic in await admin.describe_topics(wanted)}
        counts = {name: len(topic["partitions"]) for name, topic in topics.items() if topic["error_code"] == _NO_ERROR}
        if all(counts.get(topic) for topic in wanted):
            return _compare(counts, names, sources)
        if asyncio.get_running_loop().time() > deadline:
            absent = next(topic for topic in wanted if not counts.get(topic))
            code = topics[absent]["error_code"] if absent in topics else _UNKNOWN_TOPIC
            raise ConfigurationError(
                f"the broker did not create topic {absent!r} ({_why(code)}); turn its auto.create.topics.enable on, "
                "or set create_topics to 'auto'"
            )
        await asyncio.sleep(_LOOK_AGAIN)


def _compare(counts: Mapping[str, int], names: TopicNames, sources: Collection[str]) -> None:
    widest = max(sources, key=lambda source: counts[source])
    for topic in names.all:
        if counts[topic] < counts[widest]:
            raise ConfigurationError(
                f"topic {topic!r} has {counts[topic]} partitions and {widest!r}, which it serves, has {counts[widest]}; "
                "extend it, or set create_topics to 'auto'"
            )


def _listed(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 3} more" if len(topics) > 3 else ""
    return ", ".join(map(repr, topics[:3])) + more


def _why(code: int, message: str | None = None) -> str:
    return message or for_code(code).__name__
