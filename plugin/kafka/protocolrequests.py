"""Requests of Kafka's protocol: the classes of aiokafka that are used here, and those that it lacks. aiokafka documents none of them."""

from __future__ import annotations

import importlib
import pkgutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from aiokafka.errors import CommitFailedError, KafkaError

from ackwise.plugin.kafka.releases import Release

AIOKAFKA: Final = Release("aiokafka", "0.14")

with AIOKAFKA.imports():
    import aiokafka.protocol
    from aiokafka.coordinator.protocol import ConsumerProtocol
    from aiokafka.protocol.abstract import AbstractType
    from aiokafka.protocol.admin import ApiVersionRequest, DescribeGroupsRequest
    from aiokafka.protocol.api import (
        Request,
        RequestHeader_v1,
        RequestHeader_v2,
        RequestStruct,
        Response,
        ResponseHeader_v0,
        ResponseHeader_v1,
    )
    from aiokafka.protocol.commit import OffsetCommitRequest, OffsetCommitResponse_v3, OffsetFetchRequest
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.group import HeartbeatRequest
    from aiokafka.protocol.metadata import MetadataRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.protocol.produce import ProduceRequest
    from aiokafka.protocol.types import Array, Boolean, CompactArray, CompactString, Int8, Int16, Int32, Int64, Schema, String, TaggedFields

__all__ = [
    "AIOKAFKA",
    "FENCED",
    "NAMES",
    "NO_TOPIC_ID",
    "ApiVersionRequest",
    "Array",
    "ConsumerProtocol",
    "DescribeGroupsRequest",
    "FencedInstanceError",
    "FetchRequest",
    "HeartbeatRequest",
    "LocalStartRequest",
    "MetadataRequest",
    "MetadataWithIds",
    "OffsetFetchRequest",
    "OffsetRequest",
    "ProduceRequest",
    "RequestHeader_v1",
    "RequestHeader_v2",
    "RequestStruct",
    "ResponseHeader_v0",
    "ResponseHeader_v1",
    "Schema",
    "known_requests",
    "named",
    "produced_topics",
]

#: What is used here; with its parameters where it is called by position.
NAMES: Final[Mapping[type[Any], str]] = {
    FetchRequest: "__init__(max_wait_time,min_bytes,max_bytes,isolation_level,topics,...)",
    HeartbeatRequest: "_generation_id _group _member_id",
    OffsetCommitRequest: "_consumer_group _consumer_group_generation_id _consumer_id _topics",
    MetadataRequest: "__init__(topics,allow_auto_topic_creation)",
    OffsetFetchRequest: "__init__(consumer_group,partitions,...)",
    OffsetRequest: "__init__(replica_id,isolation_level,topics)",
    ProduceRequest: "_topics",
}

#: Bytes of a UUID.
_BYTES: Final = 16

#: The epoch of a partition's leader: not given.
_NO_EPOCH: Final = -1

#: What a broker says that has no ids.
NO_TOPIC_ID: Final = uuid.UUID(int=0)


class _Uuid(AbstractType[uuid.UUID]):
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
                ("topic_id", _Uuid),
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
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class MetadataWithIds(Request[_MetadataRequest_v10]):
    """Metadata of topics, with their ids; aiokafka asks in a version of the request that does not have them."""

    API_KEY = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics: list[Any] = [(NO_TOPIC_ID, topic, {}) for topic in topics]

    def build(self, request_struct_class: type[_MetadataRequest_v10]) -> _MetadataRequest_v10:
        return request_struct_class(self._topics, False, False, False, {})


class _OffsetResponse_v8(Response):
    API_KEY = 2  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    API_VERSION = 8  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _OffsetRequest_v8(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 2
    API_VERSION = 8
    RESPONSE_TYPE = _OffsetResponse_v8
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


#: What is asked for in place of a time: the first offset that its leader has itself (KIP-405).
_EARLIEST_LOCAL: Final = -4


class LocalStartRequest(Request[_OffsetRequest_v8]):
    """The first offset that the leader of a partition has itself, and not in remote storage. aiokafka can't ask for that."""

    API_KEY = 2

    def __init__(self, topic: str, partition: int) -> None:
        self._topics: list[Any] = [(topic, [(partition, _NO_EPOCH, _EARLIEST_LOCAL, {})], {})]

    def build(self, request_struct_class: type[_OffsetRequest_v8]) -> _OffsetRequest_v8:
        return request_struct_class(-1, 0, self._topics, {})


#: Kafka's FENCED_INSTANCE_ID; aiokafka has no name for it.
FENCED: Final = 82


class FencedInstanceError(CommitFailedError):
    """Another process has the id of this static member."""

    def __init__(self, *args: object) -> None:
        KafkaError.__init__(self, *args)  # its base would put advice about slow polls before it


class _HeartbeatResponse_v3(Response):
    API_KEY = 12  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    API_VERSION = 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class _HeartbeatRequest_v3(RequestStruct):
    API_KEY = 12
    API_VERSION = 3
    RESPONSE_TYPE = _HeartbeatResponse_v3
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    )


class _OffsetCommitResponse_v7(Response):
    API_KEY = 8  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    API_VERSION = 7  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  # as aiokafka's own
    SCHEMA = OffsetCommitResponse_v3.SCHEMA


class _OffsetCommitRequest_v7(RequestStruct):
    API_KEY = 8
    API_VERSION = 7
    RESPONSE_TYPE = _OffsetCommitResponse_v7
    SCHEMA = Schema(
        ("consumer_group", String("utf-8")),
        ("consumer_group_generation_id", Int32),
        ("consumer_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", String("utf-8")))),
            ),
        ),
    )


class _Heartbeat(Request[_HeartbeatRequest_v3]):
    API_KEY = 12

    def __init__(self, plain: Any, instance: str) -> None:
        self._fields = plain._group, plain._generation_id, plain._member_id, instance

    def build(self, request_struct_class: type[_HeartbeatRequest_v3]) -> _HeartbeatRequest_v3:
        return request_struct_class(*self._fields)


class _OffsetCommit(Request[_OffsetCommitRequest_v7]):
    API_KEY = 8

    def __init__(self, plain: Any, instance: str) -> None:
        topics = [
            (topic, [(partition, offset, _NO_EPOCH, metadata) for partition, offset, metadata in partitions])
            for topic, partitions in plain._topics
        ]
        self._fields = plain._consumer_group, plain._consumer_group_generation_id, plain._consumer_id, instance, topics

    def build(self, request_struct_class: type[_OffsetCommitRequest_v7]) -> _OffsetCommitRequest_v7:
        return request_struct_class(*self._fields)


def named(request: Any, instance: str) -> Any:
    """`request` of a static member (KIP-345), with the name of its instance where aiokafka leaves it out: in heartbeats and commits.

    Without the name a broker can't tell a member that lost its id to another process from one whose session is over, and aiokafka
    would join again under the id and take it back.
    """
    if isinstance(request, HeartbeatRequest):
        return _Heartbeat(request, instance)
    if isinstance(request, OffsetCommitRequest):
        return _OffsetCommit(request, instance)
    return request


def produced_topics(request: ProduceRequest) -> list[str]:
    """The topics that `request` writes to."""
    return [topic for topic, _ in request._topics]


def known_requests() -> dict[tuple[int, int], type[RequestStruct]]:
    """The requests that aiokafka or Ackwise can write, by key and version."""
    for module in pkgutil.iter_modules(aiokafka.protocol.__path__):
        importlib.import_module(f"aiokafka.protocol.{module.name}")

    def below(kind: type[RequestStruct]) -> Iterator[type[RequestStruct]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    return {(kind.API_KEY, kind.API_VERSION): kind for kind in below(RequestStruct)}
