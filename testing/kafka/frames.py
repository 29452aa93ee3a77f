"""Frames of Kafka's protocol, by aiokafka's schemas: requests, answers, and the codes of refused requests."""

from __future__ import annotations

import io
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.errors import BrokerResponseError

from ackwise.plugin.kafka.protocolrequests import (
    Array,
    RequestHeader_v1,
    RequestHeader_v2,
    RequestStruct,
    ResponseHeader_v0,
    ResponseHeader_v1,
    Schema,
    known_requests,
)
from ackwise.testing.kafka.faults import APIS

_HEADER: Final = struct.Struct(">hh")

#: What an answer has where no value was given.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "throttle_time_ms": 0,
    "tags": {},
    "session_id": 0,
    "error_message": None,
    "preferred_read_replica": -1,
    "log_start_offset": -1,
    "rack": None,
    "cluster_id": "in-memory-kafka",
    "is_internal": False,
    "offline_replicas": [],
    "timestamp": -1,
    "leader_epoch": -1,
    "authorized_operations": -(2**31),
}


class UnknownRequest(Exception):
    """A client asked for something that is not served."""


class Asked(NamedTuple):
    """One request."""

    api: str
    version: int
    correlation_id: int
    client_id: str
    body: Mapping[str, Any]
    kind: type[RequestStruct]


_KINDS: Final = known_requests()
_NAMES: Final = {key: name for name, key in APIS.items()}

#: The oldest versions that are served, as by Kafka 4 (KIP-896); the newest are the newest that aiokafka speaks.
_OLDEST: Final = {"Produce": 3, "Fetch": 4, "ListOffsets": 1, "OffsetCommit": 2, "OffsetFetch": 1, "JoinGroup": 2, "CreateTopics": 2}

#: Versions that aiokafka has a schema of and does not speak.
_NEWEST: Final = {"Produce": 7}


def versions() -> list[dict[str, int]]:
    """Return the answer to `ApiVersions`."""
    found = []
    for name, key in APIS.items():
        known = sorted(version for api, version in _KINDS if api == key)
        newest = min(known[-1], _NEWEST.get(name, known[-1]))
        found.append({"api_key": key, "min_version": min(_OLDEST.get(name, known[0]), newest), "max_version": newest})
    return found


def decode(frame: bytes) -> Asked:
    """Read one request, without the length before it. Raises `UnknownRequest`."""
    key, version = _HEADER.unpack_from(frame)
    kind = _KINDS.get((key, version))
    if kind is None or key not in _NAMES:
        raise UnknownRequest(f"request {key} in version {version} is not served")
    data = io.BytesIO(frame)
    schema = (RequestHeader_v2 if kind.FLEXIBLE_VERSION else RequestHeader_v1).SCHEMA
    fields: dict[str, Any] = dict(zip(schema.names, schema.decode(data), strict=True))
    body = _named(kind.SCHEMA, kind.SCHEMA.decode(data))
    return Asked(_NAMES[key], version, fields["correlation_id"], fields["client_id"] or "", body, kind)


def encode(asked: Asked, answer: Mapping[str, Any]) -> bytes:
    """Write the answer to a request, with its length. What its version has no field for is left out."""
    schema = asked.kind.RESPONSE_TYPE.SCHEMA
    header = (
        ResponseHeader_v1.SCHEMA.encode([asked.correlation_id, {}])
        if asked.kind.FLEXIBLE_VERSION
        else ResponseHeader_v0.SCHEMA.encode([asked.correlation_id])
    )
    body = header + schema.encode(_listed(schema, answer))
    return struct.pack(">i", len(body)) + body


def _named(schema: Schema, values: Any) -> dict[str, Any]:
    named = {}
    for name, field, value in zip(schema.names, schema.fields, values, strict=True):
        if isinstance(field, Array) and isinstance(field.array_of, Schema) and value is not None:
            value = [_named(field.array_of, each) for each in value]
        elif isinstance(field, Schema):
            value = _named(field, value)
        named[name] = value
    return named


def _listed(schema: Schema, values: Mapping[str, Any]) -> list[Any]:
    listed = []
    for name, field in zip(schema.names, schema.fields, strict=True):
        value = values[name] if name in values else _DEFAULTS[name]
        if isinstance(field, Array) and isinstance(field.array_of, Schema) and value is not None:
            value = [_listed(field.array_of, each) for each in value]
        listed.append(value)
    return listed


Values = Mapping[str, Any]
"""The fields of a request, or of a part of one."""

Answer = dict[str, Any]
"""The fields of an answer, or of a part of one."""

Serve = Callable[[Asked, int], Awaitable[Answer]]
"""Serves a request; with another code than 0 it is refused with that, and has no effect."""

NODE: Final = 1
"""The id of the one broker."""


def tried(refused: int, act: Callable[..., object], *arguments: object) -> Answer:
    """The code of what Kafka would refuse, or of what a fault does."""
    if refused:
        return {"error_code": refused, "error_message": None}
    try:
        act(*arguments)
    except BrokerResponseError as error:
        return {"error_code": error.errno, "error_message": str(error)}
    return {"error_code": 0, "error_message": None}
