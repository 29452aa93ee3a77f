"""The topics of a group: what they are called, and that they are there and large enough before anything is consumed.

Retry and dead-letter topics belong to the group, as `%RETRY%group` and `%DLQ%group` do in RocketMQ (`%` is illegal in
Kafka); one delay topic stands for each delay level.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import BUDGET
from ackwise.plugin.settings import HostSettings

__all__ = ["TopicNames", "ensure_topics"]

_LONGEST_NAME: Final = 249
_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

#: Kafka's default of max.message.bytes, for brokers that can't be asked.
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_RETENTION: Final = "retention.ms"

#: How often and how long apart metadata is asked for until topics that were just made are known everywhere.
_LOOKS, _BETWEEN_LOOKS = 50, 0.2

_NO_ERROR, _TOPIC_EXISTS = 0, 36


class TopicNames:
    """The topics that `group` writes: `retry`, `dead_letter`, and `delays`, one per level, shortest first.

    Raises `ConfigurationError` for a name that Kafka would refuse.
    """

    def __init__(self, group: str, levels: DelayLevels, *, dead_letter: str | None = None) -> None:
        self.retry = f"{group}.retry"
        self.dead_letter = dead_letter or f"{group}.dlq"
        self.delays = [f"{group}.delay.{level}" for level in levels.names()]
        self.longest_delay = levels.seconds[-1]
        for name in self.all:
            if len(name) > _LONGEST_NAME or not _LEGAL_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"topic {name!r} can't be made: Kafka allows {_LONGEST_NAME} letters, digits, '.', '_' and '-'; change the group"
                )

    @property
    def all(self) -> list[str]:
        """Every topic of the group."""
        return [self.retry, self.dead_letter, *self.delays]


@dataclass(frozen=True, slots=True)
class _Topic:
    partitions: int
    replicas: int


async def ensure_topics(settings: HostSettings, names: TopicNames, sources: Sequence[str]) -> None:
    """Make sure that the topics of the group exist, with as many partitions as the largest source and room for copies.

    Raises `ConfigurationError` for what is missing and may not be made, or is too small, and aiokafka's
    `KafkaConnectionError` if no broker answers.
    """
    options: dict[str, Any] = dict(settings.client_options)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.brokers, client_id=settings.client_id, request_timeout_ms=30_000, **options)
    await admin.start()
    try:
        if settings.create_topics == "broker":
            await _rely_on_broker(admin, names, sources)
        else:
            await _ensure(admin, settings, names, sources)
    except KafkaError as error:
        raise ConfigurationError(
            f"the topics of group {settings.group!r} can't be checked ({type(error).__name__}: {error}); "
            "the worker needs the rights to describe and create topics, or create_topics='never' and topics that are there"
        ) from error
    finally:
        await admin.close()


async def _ensure(admin: AIOKafkaAdminClient, settings: HostSettings, names: TopicNames, sources: Sequence[str]) -> None:
    there = await _describe(admin, [*sources, *names.all])
    _check_sources(there, sources)
    largest = max(there[source].partitions for source in sources)
    replicas = max(there[source].replicas for source in sources)
    missing = [name for name in names.all if name not in there]
    small = [name for name in names.all if name in there and there[name].partitions < largest]
    if settings.create_topics == "never" and (missing or small):
        raise ConfigurationError(
            f"create_topics is 'never', and {_few(missing or small)} {'is missing' if missing else f'has less than {largest} partitions'}; "
            f"create them with {largest} partitions, or let create_topics be 'auto'"
        )
    configs = await _configs(admin, [*sources, *(name for name in names.all if name in there)])
    room = max(configs[source][_MAX_MESSAGE_BYTES] for source in sources) + BUDGET
    _check_existing(configs, names, room)
    if missing:
        await _create(admin, missing, largest, replicas, room, names)
    if small:
        await admin.create_partitions({name: NewPartitions(largest) for name in small})
    await _wait_for(admin, names.all, largest)


def _check_sources(there: Mapping[str, _Topic], sources: Sequence[str]) -> None:
    if absent := [source for source in sources if source not in there]:
        raise ConfigurationError(
            f"{_few(absent)} to consume from {'do' if len(absent) > 1 else 'does'} not exist; create it, or correct its name"
        )


def _check_existing(configs: Mapping[str, Mapping[str, int]], names: TopicNames, room: int) -> None:
    for name in names.all:
        config = configs.get(name)
        if config is None:
            continue
        if config[_MAX_MESSAGE_BYTES] < room:
            raise ConfigurationError(
                f"topic {name!r} allows {config[_MAX_MESSAGE_BYTES]} bytes per message; a copy of the largest message with its headers "
                f"needs {room}: raise its {_MAX_MESSAGE_BYTES}"
            )
        retention = config[_RETENTION]
        if name != names.dead_letter and 0 <= retention <= names.longest_delay * 1000:
            raise ConfigurationError(
                f"topic {name!r} keeps messages for {format_duration(retention / 1000)}, not longer than the longest delay of "
                f"{format_duration(names.longest_delay)}: messages would be deleted while they wait; raise its {_RETENTION}"
            )


async def _create(admin: AIOKafkaAdminClient, missing: Iterable[str], partitions: int, replicas: int, room: int, names: TopicNames) -> None:
    def topic(name: str) -> NewTopic:
        # dead letters wait for people, who may be away for longer than a broker's default retention
        retention = {_RETENTION: "-1"} if name == names.dead_letter else {}
        return NewTopic(name, partitions, replicas, topic_configs={_MAX_MESSAGE_BYTES: str(room), "cleanup.policy": "delete", **retention})

    response: Any = await admin.create_topics([topic(name) for name in missing])
    for name, code, *_ in response.topic_errors:
        if code not in (_NO_ERROR, _TOPIC_EXISTS):  # another worker of the group may have been faster
            raise ConfigurationError(
                f"topic {name!r} can't be created ({for_code(code).__name__}); grant the right to create it, or create it with "
                f"{partitions} partitions and {_MAX_MESSAGE_BYTES}={room}"
            )


async def _rely_on_broker(admin: AIOKafkaAdminClient, names: TopicNames, sources: Sequence[str]) -> None:
    """Asking for the metadata of a topic makes a broker with auto-creation make it."""
    there: dict[str, _Topic] = {}
    for _ in range(_LOOKS):
        there = await _describe(admin, [*sources, *names.all])
        if len(there) == len(set(sources)) + len(names.all):
            break
        await asyncio.sleep(_BETWEEN_LOOKS)
    if absent := [name for name in (*sources, *names.all) if name not in there]:
        raise ConfigurationError(
            f"create_topics is 'broker', and the broker did not make {_few(absent)}; turn its auto-creation on, or create them"
        )
    largest = max(there[source].partitions for source in sources)
    if small := [name for name in names.all if there[name].partitions < largest]:
        raise ConfigurationError(
            f"the broker made {_few(small)} with fewer than {largest} partitions; raise its num.partitions, or create them"
        )


async def _wait_for(admin: AIOKafkaAdminClient, names: Sequence[str], partitions: int) -> None:
    for _ in range(_LOOKS):
        there = await _describe(admin, names)
        if all(name in there and there[name].partitions >= partitions for name in names):
            return
        await asyncio.sleep(_BETWEEN_LOOKS)
    raise ConfigurationError(
        f"{_few(names)} were created, but the brokers do not know them after {_LOOKS * _BETWEEN_LOOKS:.0f} s; start again"
    )


async def _describe(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, _Topic]:
    """Those of `names` that exist and have leaders."""
    described: list[dict[str, Any]] = await admin.describe_topics(list(names))
    return {
        topic["topic"]: _Topic(len(topic["partitions"]), len(topic["partitions"][0]["replicas"]))
        for topic in described
        if topic["error_code"] == _NO_ERROR and topic["partitions"]
    }


async def _configs(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, int]]:
    """`max.message.bytes` and `retention.ms` of each topic."""
    keys = [_MAX_MESSAGE_BYTES, _RETENTION]
    responses: list[Any] = await admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(keys)) for name in names]
    )
    configs: dict[str, dict[str, int]] = {}
    for response in responses:
        for code, message, _, name, entries, *_ in response.resources:
            if code != _NO_ERROR:
                raise ConfigurationError(
                    f"the settings of topic {name!r} can't be read ({for_code(code).__name__}: {message}); grant DescribeConfigs"
                )
            configs[name] = {entry[0]: int(entry[1]) for entry in entries if entry[0] in keys}
    return configs


def _few(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:3])
    return f"topic{'s' if len(names) > 1 else ''} {listed}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
