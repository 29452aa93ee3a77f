"""Topics of a group: created and corrected before anything is consumed, and the topics that its patterns match.

`topicplan.py` decides what to change; `ensure_topics` applies it and checks again until nothing is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, InvalidPartitionsError, KafkaError, for_code

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.middleware.log import Log, said
from ackwise.middleware.policies.delaytopic import ladder_of, width
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.plugin.kafka.aiokafkainternals import has_controller
from ackwise.plugin.kafka.clients import close_consumer, start
from ackwise.plugin.kafka.kafkaerrors import NotLetIn, is_refusal
from ackwise.plugin.kafka.timeouts import is_asked_to_end
from ackwise.plugin.settings.connecting import require_broker
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import Matched, Sources, match_topics
from ackwise.plugin.topics.topicplan import APPEND_TIME, TIMESTAMP_TYPE, MadeTopic, Topic, TopicPlan, control_topic, plan_topics

log = Log()

#: Seconds until the brokers must have made the topics and told each other.
_TIMEOUT: Final = 30.0
_REQUEST_TIMEOUT_MS: Final = 10_000

#: Each question asks again; the client by itself would ask about all topics of the cluster.
_NEVER_MS: Final = 2**31 - 1

_LOOK_AGAIN: Final = 0.2
_LOOK_SOON: Final = 0.01  # after the first look; most brokers know of a topic as soon as they have made it

#: Seconds in which a topic that was made just before must have become known to the broker that is asked.
_KNOWN_WITHIN: Final = 3.0
_CLOSE_TIMEOUT: Final = 2.0

#: Partitions that one request makes; Kafka refuses one that writes more than 10,000 records (`QuorumController`).
_PARTITIONS_AT_ONCE: Final = 2_000

#: The source of a setting that was made for its topic.
_SET_FOR_TOPIC: Final = 1

_UNKNOWN: Final = -1  #: an error of the broker's own
_NO_ERROR, _UNKNOWN_TOPIC, _TOPIC_EXISTS, _NOT_CONTROLLER = 0, 3, 36, 41

#: What is asked for of a topic, with the values of brokers that know no such setting: Kafka's defaults, where there is one.
_SETTINGS: Final[Mapping[str, str | None]] = MappingProxyType(
    {
        "max.message.bytes": "1048588",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "min.insync.replicas": None,
        TIMESTAMP_TYPE: "CreateTime",
    }
)


async def ensure_topics(
    settings: HostSettings,
    names: TopicNames,
    sources: Collection[str],
    *,
    levels: DelayLevels,
    made: Collection[str] = (),
    in_place: Mapping[str, float] = MappingProxyType({}),
) -> str | None:
    """Return the id of the cluster, if it has one, once every topic of the group is there and fits `sources`, what its agents consume.

    `made` are those of `sources` that another part of this worker is making now; they are waited for. `in_place` says for how many
    seconds a message of a topic may wait there.

    What is missing is created or extended (`create_topics="auto"`), refused (`"never"`), or left to the broker's
    auto-creation (`"broker"`, which also checks partition counts only: such brokers may not tell more).
    Raises `ConfigurationError`, and `Unavailable` if the brokers do not answer.
    """
    for topic in sorted(set(sources) & {*names.all, names.control}):
        raise ConfigurationError(f"an agent consumes {topic!r}, a topic that belongs to group {names.group!r}; consume it in another group")
    async with connected(settings) as admin, asyncio.timeout(_TIMEOUT):
        if settings.create_topics == "broker":
            await _await_broker(admin, names, sources)
        else:
            await _await_plan(admin, settings, names, sources, levels.seconds[-1], made, in_place)
        described: Mapping[str, Any] = await admin.describe_cluster()
        cluster: str | None = described.get("cluster_id")
        return cluster


async def list_topics(settings: HostSettings) -> set[str]:
    """The names of all topics that this client may see. Raises as `read_topics`."""
    async with connected(settings) as admin, asyncio.timeout(_TIMEOUT):
        return set(await admin.list_topics())


async def read_topics(settings: HostSettings, topics: Collection[str]) -> dict[str, Topic]:
    """Those of `topics` that are there, as the brokers describe them; nothing is changed.

    Raises `ConfigurationError` if they may not be described, and `Unavailable` if the brokers do not answer.
    """
    async with connected(settings) as admin, asyncio.timeout(_TIMEOUT):
        return await _look(admin, topics)


async def create_sources(
    settings: HostSettings, topics: Collection[str], partitions: int | None = None
) -> tuple[dict[str, Topic], set[str]]:
    """Create those of `topics` that are not there, with `partitions` each and the brokers' default of replicas.

    `None` is the brokers' default of partitions. Returns all of `topics`, as the brokers describe them, and which were created now. Raises
    as `read_topics`, and `ConfigurationError` for what the brokers refuse.
    """
    async with connected(settings) as admin, asyncio.timeout(_TIMEOUT):
        created, begun = set[str](), asyncio.get_running_loop().time()
        while absent := sorted(set(topics) - (found := await _look(admin, topics)).keys()):
            if uncreated := [topic for topic in absent if topic not in created]:
                created |= await _create_sources(admin, uncreated, partitions)
            if asyncio.get_running_loop().time() - begun > _TIMEOUT / 2:
                raise ConfigurationError(
                    f"{_listed(absent)} can't be seen {_TIMEOUT / 2:.0f} s after it was to be created; give this client Describe on it, or "
                    "check that the cluster has a controller"
                )
            await asyncio.sleep(_LOOK_SOON)
        return found, created


async def _create_sources(admin: AIOKafkaAdminClient, topics: Sequence[str], partitions: int | None) -> set[str]:
    """Return those that were created now; others were created meanwhile, or there is no controller yet."""
    if not await has_controller(admin):
        return set()
    default: Final = -1
    # aiokafka takes a default only with assignments, though empty ones.
    wanted = [NewTopic(topic, default if partitions is None else partitions, default, {}) for topic in topics]
    response: Any = await admin.create_topics(wanted)
    for topic, code, *message in response.topic_errors:
        _check_created(topic, code, *message, advice="create it with another tool, or allow this client to")
    return {topic for topic, code, *_ in response.topic_errors if code == _NO_ERROR}


async def set_append_time(settings: HostSettings, topics: Collection[str]) -> None:
    """Let the brokers set the timestamps of `topics`, which exist, from now on. Returns once the brokers say that they do.

    A request to alter a topic replaces all that was set for it, so what is there is read and given again. Raises
    `ConfigurationError` if that is not allowed, and `Unavailable` if the brokers do not answer.
    """
    if not topics:
        return
    async with connected(settings) as admin, asyncio.timeout(_TIMEOUT):
        set_before = await _await_set(admin, topics, {})
        altered = [
            ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs | {TIMESTAMP_TYPE: APPEND_TIME})
            for topic, configs in set_before.items()
        ]
        _check_altered(await admin.alter_configs(altered))
        await _await_set(admin, topics, {TIMESTAMP_TYPE: APPEND_TIME})


def _check_altered(responses: Sequence[Any]) -> None:
    for code, message, _, topic in (resource for response in responses for resource in response.resources):
        if code != _NO_ERROR:
            raise ConfigurationError(
                f"{TIMESTAMP_TYPE} of topic {topic!r} can't be set to {APPEND_TIME} ({_why(code, message)}); set it, or allow this "
                "client to alter the topic's configuration"
            )


async def _await_set(admin: AIOKafkaAdminClient, topics: Collection[str], wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of each of `topics`, without broker defaults, once they include those `wanted`.

    Brokers learn one by one of a topic and of what is set for it: look until the one that is asked knows.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in sorted(topics)]
    while True:
        found = {
            topic: {name: value for name, value, _, source, *_ in entries if _is_of_topic(version, source)}
            for topic, version, entries in await _described(admin, resources)
        }
        if all(topic in found and wanted.items() <= found[topic].items() for topic in topics):
            return found
        await asyncio.sleep(_LOOK_AGAIN)


def _is_of_topic(version: int, source: int | bool) -> bool:
    """The oldest answer only says whether a value is a default; later ones say whose it is."""
    return not source if version == 0 else source == _SET_FOR_TOPIC


@asynccontextmanager
async def connected(settings: HostSettings, name: str = "topics") -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that is connected while the block runs; unanswered calls in it raise one sentence.

    Its client id ends with `name`.
    """
    admin = _admin(settings, name)
    try:
        await require_broker(settings.brokers)
        await start(admin)
        yield admin
    except IncompatibleBrokerVersion:
        raise ConfigurationError(
            f"the brokers {settings.brokers!r} can't describe or create topics on request; set create_topics to 'broker', "
            "so that they are created when first used"
        ) from None
    except NotLetIn as error:
        raise ConfigurationError(str(error)) from error
    except (KafkaError, ConnectionError, TimeoutError, asyncio.CancelledError) as error:  # not a disk's, which may be full
        if isinstance(error, asyncio.CancelledError) and is_asked_to_end():
            raise
        if is_refusal(error):
            raise Unavailable(
                f"the brokers {settings.brokers!r} refuse what this client asks ({said(error)}); allow it to describe, read and write the "
                "topics and groups of its app"
            ) from error
        raise Unavailable(
            f"the brokers {settings.brokers!r} take connections and do not answer questions about topics ({type(error).__name__}); "
            "check that they are Kafka, that they are not overloaded, and security_protocol and the credentials in client_options"
        ) from error
    finally:
        await close_consumer(admin, within=_CLOSE_TIMEOUT)


def _admin(settings: HostSettings, name: str) -> AIOKafkaAdminClient:
    options: dict[str, Any] = {**settings.client_options, "metadata_max_age_ms": _NEVER_MS}
    try:
        return AIOKafkaAdminClient(
            bootstrap_servers=settings.brokers, client_id=f"{settings.client_id}-{name}", request_timeout_ms=_REQUEST_TIMEOUT_MS, **options
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"client_options can't be used: {error}") from error


async def _await_plan(
    admin: AIOKafkaAdminClient,
    settings: HostSettings,
    names: TopicNames,
    sources: Collection[str],
    longest_delay: float,
    made: Collection[str],
    in_place: Mapping[str, float],
) -> None:
    """Other workers start at the same time, and brokers learn of a new topic one by one, a while after it was made: look until it is so."""
    now = asyncio.get_running_loop().time
    begun, pause = now(), 0.0
    while True:
        await asyncio.sleep(pause)
        pause = min(max(2 * pause, _LOOK_SOON), _LOOK_AGAIN)
        found = await _look(admin, {*sources, *names.all, names.control})
        absent = {*sources, *made} - found.keys()
        if absent and now() - begun < (_TIMEOUT / 2 if absent & set(made) else _KNOWN_WITHIN):
            continue
        plan = plan_topics(names, sources, found, longest_delay=longest_delay, rungs=settings.rungs, in_place=in_place)
        if not plan.create and not plan.extend and (plan.control is None or settings.create_topics == "never"):
            return
        if settings.create_topics == "never":
            if not plan.create and not plan.required:
                return  # a delay topic with fewer rungs costs hops, and works
            _refuse(plan)
        if plan.control is not None and not await _create_control(admin, plan.control, plan.like) and not plan.create and not plan.extend:
            return
        await _create(admin, plan)
        await _extend(admin, plan)


def _refuse(plan: TopicPlan) -> None:
    if plan.create:
        wanted = " and ".join(f"{number} partitions" for number in sorted({plan.partitions(topic) for topic in plan.create}))
        if plan.delay in plan.create:
            wanted = f"{plan.rungs} partitions for {plan.delay!r}, {plan.like.partitions} for each other one"
        raise ConfigurationError(
            f"{_listed(plan.create)} must exist, since create_topics is 'never'; create them with {wanted} and "
            f"max.message.bytes={plan.like.max_message_bytes}, set create_topics to 'auto', or, if they are there, give this client Read "
            "or Write on them, as ackwise topics export prints"
        )
    raise ConfigurationError(
        f"{_listed(plan.required)} must have as many partitions as the largest source, {plan.like.partitions}; "
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


def _topic(partitions: Sequence[Mapping[str, Any]], config: Mapping[str, str | None]) -> Topic:
    said: dict[str, Any] = {**_SETTINGS, **{name: value for name, value in config.items() if value}}
    replicas = said["min.insync.replicas"]
    return Topic(
        partitions=len(partitions),
        replication=max(len(partition["replicas"]) for partition in partitions),
        max_message_bytes=int(said["max.message.bytes"]),
        retention_ms=int(said["retention.ms"]),
        cleanup_policy=said["cleanup.policy"],
        min_insync_replicas=None if replicas is None else int(replicas),
        timestamp_type=said[TIMESTAMP_TYPE],
        retention_bytes=int(said["retention.bytes"]),
    )


async def _configs(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(_SETTINGS)) for topic in topics]
    return {topic: {name: value for name, value, *_ in entries} for topic, _, entries in await _described(admin, resources)}


async def _described(admin: AIOKafkaAdminClient, resources: list[ConfigResource]) -> list[tuple[str, int, Any]]:
    """Those of the topics that are there: name, version of the answer, settings. Raises if the settings of one can't be read."""
    found = []
    responses: list[Any] = await admin.describe_configs(resources)
    for response in responses:
        for code, message, _, topic, entries in response.resources:
            if code == _NO_ERROR:
                found.append((topic, response.API_VERSION, entries))
            elif _may_pass(code) and code != _UNKNOWN_TOPIC:
                raise Unavailable(f"the settings of topic {topic!r} can't be read now ({_why(code, message)})")
            elif code != _UNKNOWN_TOPIC:
                raise ConfigurationError(
                    f"the settings of topic {topic!r} can't be read ({_why(code, message)}); give this client "
                    "DescribeConfigs on it, or set create_topics to 'broker' to go without the check"
                )
    return found


async def _create(admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
    if not plan.create or not await has_controller(admin):
        return
    like = plan.like
    topics = iter([_new(plan.made(topic)) for topic in plan.create])
    while some := [*islice(topics, max(1, _PARTITIONS_AT_ONCE // like.partitions))]:
        response: Any = await admin.create_topics(some)
        for topic, code, *message in response.topic_errors:
            size = f"{plan.partitions(topic)} partitions and max.message.bytes={like.max_message_bytes}"
            _check_created(topic, code, *message, advice=f"create it with {size}, or allow this client to")


def _check_created(topic: str, code: int, message: str | None = None, *, advice: str) -> None:
    """Raise an error unless the topic was created, is there already, or is to be asked for again."""
    if _may_pass(code) and code != _NOT_CONTROLLER:
        raise Unavailable(f"topic {topic!r} can't be created now ({_why(code, message)})")
    if code not in (_NO_ERROR, _TOPIC_EXISTS, _NOT_CONTROLLER):
        raise ConfigurationError(f"topic {topic!r} can't be created ({_why(code, message)}); {advice}")


def _new(topic: MadeTopic) -> NewTopic:
    return NewTopic(topic.name, topic.partitions, topic.replication, topic_configs=topic.config)


async def _create_control(admin: AIOKafkaAdminClient, topic: str, like: Topic) -> bool:
    """Create the control topic. Returns whether to look again: a worker starts without it as well."""
    if not await has_controller(admin):
        return True
    response: Any = await admin.create_topics([_new(control_topic(topic, like))])
    for _, code, *message in response.topic_errors:
        if code not in (_NO_ERROR, _TOPIC_EXISTS, _NOT_CONTROLLER) and not _may_pass(code):
            log.warning("control topic could not be created", topic=topic, error=_why(code, *message))
            return False
    return True


async def _extend(admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
    for topic in plan.extend if await has_controller(admin) else ():
        try:
            with suppress(InvalidPartitionsError):  # another worker was faster
                await admin.create_partitions({topic: NewPartitions(plan.partitions(topic))})
        except KafkaError as error:
            if error.retriable:
                continue
            raise ConfigurationError(
                f"topic {topic!r} can't be extended to {plan.partitions(topic)} partitions ({error}); extend it, or allow this client to"
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
    if not (ladder := ladder_of(counts[names.delay])):
        raise ConfigurationError(
            f"topic {names.delay!r} has one partition, which is for cancellations, so nothing can wait; give it {width()} partitions"
        )
    if ladder.missing:
        log.warning(
            "delay topic has few partitions",
            topic=names.delay,
            partitions=counts[names.delay],
            missing=" ".join(map(format_duration, ladder.missing)),
        )
    for topic in names.all:
        if topic != names.delay and counts[topic] < counts[widest]:
            raise ConfigurationError(
                f"topic {topic!r} has {counts[topic]} partitions and {widest!r}, which it serves, has {counts[widest]}; "
                "extend it, or set create_topics to 'auto'"
            )


def _listed(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - 3} more" if len(topics) > 3 else ""
    return ", ".join(map(repr, topics[:3])) + more


def _may_pass(code: int) -> bool:
    return code == _UNKNOWN or bool(for_code(code).retriable)


def _why(code: int, message: str | None = None) -> str:
    return message or for_code(code).__name__


async def with_matching(group: Group) -> Group:
    """`group` with the topics that its patterns match now among its sources; no broker is asked where there is no pattern.

    Raises `ConfigurationError` if the topics may not be listed, and `Unavailable` if the brokers do not answer.
    """
    return group.matching(await list_topics(group.settings)) if group.patterns else group


async def matched_by(group: Group) -> Matched:
    """Return the topics that the patterns of `group` match now. Raise as `with_matching`."""
    return match_topics(group.agents, group.names, await list_topics(group.settings) if group.patterns else ())


async def ensure_topics_of(group: Group) -> Group:
    """Make the own topics of `group` fit all that it reads; return it with what its patterns have found, as its workers do.

    Raises as `ensure_topics`.
    """

    async def ensure(sources: Collection[str]) -> None:
        await ensure_topics(group.settings, group.names, sorted(sources), levels=group.levels, in_place=group.in_place)

    if named := set(group.sources) - group.made:
        await ensure(named)
    if not group.patterns:
        return group
    sources = Sources(group.agents, group.names)
    await sources.take_up(await list_topics(group.settings), ensure)
    return group._replace(sources=tuple(sources.topics))
