"""Topic ids: which topic a name stands for now. One that is deleted and made again has another id.

aiokafka asks in a version of the request that does not have them. The leader of a partition is asked, since it can't have the log
of a topic that it does not know yet.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections import defaultdict
from collections.abc import Collection
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError, for_code
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import leader_of

__all__ = ["NO_TOPIC_ID", "Topic", "topics_of"]

#: Seconds that a broker has to answer.
_WITHIN: Final = 5.0

_BYTES: Final = 16

#: What a broker says that has no ids.
NO_TOPIC_ID: Final = uuid.UUID(int=0)


class Topic(NamedTuple):
    """A topic as a broker knows it."""

    id: str | None = None
    """As Kafka writes it: 22 characters of base64; `None` where the broker has no ids."""
    partitions: int | None = None
    """How many it has; `None` if that is not known."""


class Uuid(AbstractType[uuid.UUID]):
    """A UUID on the wire, which aiokafka has no type for."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(_BYTES))


class _MetadataResponse_v10(Response):
    API_KEY = 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    API_VERSION = 10  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v10(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Metadata(Request[_MetadataRequest_v10]):
    API_KEY = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics: list[Any] = [(NO_TOPIC_ID, topic, {}) for topic in topics]

    def build(self, request_struct_class: type[_MetadataRequest_v10]) -> _MetadataRequest_v10:
        return request_struct_class(self._topics, False, False, False, {})


async def topics_of(
    consumer: Any, partitions: Collection[TopicPartition], *, within: float = _WITHIN
) -> tuple[dict[TopicPartition, Topic], dict[TopicPartition, KafkaError]]:
    """The topic of each of `partitions`, as its leader knows it, and of the others why it is not known.

    A broker that is older than ids says `Topic()` with what the client knows of the topic. Raises nothing of the brokers'.
    """
    by_leader: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        by_leader[leader_of(consumer, partition)].append(partition)
    said = await asyncio.gather(*(_ask(consumer, leader, its, within) for leader, its in by_leader.items()))
    known: dict[TopicPartition, Topic] = {}
    unknown: dict[TopicPartition, KafkaError] = {}
    for found in said:
        for partition, topic in found.items():
            if isinstance(topic, Topic):
                known[partition] = topic
            else:
                unknown[partition] = topic
    return known, unknown


async def _ask(
    consumer: Any, leader: int | None, partitions: Collection[TopicPartition], within: float
) -> dict[TopicPartition, Topic | KafkaError]:
    client = consumer._client
    node = leader if leader is not None and leader >= 0 else client.get_random_node()
    names = sorted({partition.topic for partition in partitions})
    try:
        if node is None:
            raise KafkaConnectionError("the client knows no broker")
        found = _read(await answer(client.send(node, _Metadata(names)), within=within))
    except (IncompatibleBrokerVersion, NotImplementedError):  # aiokafka raises either for a broker that does not know version 10
        return {partition: Topic(None, len(client.cluster.partitions_for_topic(partition.topic) or ()) or None) for partition in partitions}
    except Exception as error:  # noqa: BLE001  # whatever the client raises, or an answer that can't be read: it is asked again
        return dict.fromkeys(partitions, error if isinstance(error, KafkaError) else KafkaConnectionError(type(error).__name__))
    silent = KafkaConnectionError("the broker's answer leaves out the topic")
    return {partition: found.get(partition.topic, silent) for partition in partitions}


def _read(response: Any) -> dict[str, Topic | KafkaError]:
    said: dict[str, Topic | KafkaError] = {}
    for each in response.to_object()["topics"]:
        if each["error_code"]:
            said[each["topic"]] = for_code(each["error_code"])(each["topic"])
        else:
            said[each["topic"]] = Topic(_text(each["topic_id"]), len(each["partitions"]) or None)
    return said


def _text(topic_id: uuid.UUID) -> str | None:
    """As Kafka writes it."""
    return None if topic_id == NO_TOPIC_ID else base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
