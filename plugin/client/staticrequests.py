"""Requests of a static member (KIP-345) that aiokafka does not speak: heartbeats and commits that name the instance.

Without the name a broker can't tell a member that lost its id to another process from one whose session is over, and aiokafka
would join anew under the id and take it back.
"""

from __future__ import annotations

from typing import Any, Final

from aiokafka.errors import CommitFailedError, KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetCommitResponse_v3
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

__all__ = ["FENCED", "FencedInstanceError", "named"]

#: Kafka's FENCED_INSTANCE_ID; aiokafka has no name for it.
FENCED: Final = 82

#: A commit says nothing of the epoch of a partition's leader.
_NO_EPOCH: Final = -1


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
    """`request` of a member, with the name of its instance where aiokafka leaves it out."""
    if isinstance(request, HeartbeatRequest):
        return _Heartbeat(request, instance)
    if isinstance(request, OffsetCommitRequest):
        return _OffsetCommit(request, instance)
    return request
