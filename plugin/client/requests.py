"""Requests: the classes of aiokafka's protocol that are used here, and those that it does not have.

aiokafka documents none of them. They are apart from `internals` since they are bytes on a connection, whatever client sends them.
"""

from __future__ import annotations

import importlib
import pkgutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from ackwise.plugin.client.releases import Release

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
    from aiokafka.protocol.commit import OffsetFetchRequest
    from aiokafka.protocol.fetch import FetchRequest
    from aiokafka.protocol.group import HeartbeatRequest
    from aiokafka.protocol.metadata import MetadataRequest
    from aiokafka.protocol.offset import OffsetRequest
    from aiokafka.protocol.produce import ProduceRequest
    from aiokafka.protocol.types import Array, Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

__all__ = [
    "AIOKAFKA",
    "NAMES",
    "NO_TOPIC_ID",
    "ApiVersionRequest",
    "Array",
    "ConsumerProtocol",
    "DescribeGroupsRequest",
    "FetchRequest",
    "HeartbeatRequest",
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
    "produced_topics",
]

#: What is used here; with its parameters where it is called by position.
NAMES: Final[Mapping[type[Any], str]] = {
    FetchRequest: "__init__(max_wait_time,min_bytes,max_bytes,isolation_level,topics,...)",
    MetadataRequest: "__init__(topics,allow_auto_topic_creation)",
    OffsetFetchRequest: "__init__(consumer_group,partitions,...)",
    OffsetRequest: "__init__(replica_id,isolation_level,topics)",
    ProduceRequest: "_topics",
}

#: Bytes of a UUID.
_BYTES: Final = 16

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
