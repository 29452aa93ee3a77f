"""Topics and access rights of a group, as text for the tools that create topics and users. Pure.

In Kafka Read and Write include Describe, so Describe is listed only without them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicplan import MadeTopic

Role = Literal["worker", "relay", "producer", "canceller", "operator", "dashboard"]
Resource = Literal["sources", "targets", "retry", "delay", "dead letters", "state", "control", "group", "relay's group"]
Kind = Literal["topic", "group"]

_READ: Final = ("Read",)
_WRITE: Final = ("Write",)
_DESCRIBE: Final = ("Describe",)
_READ_AND_WRITE: Final = ("Read", "Write")
_CONFIGS: Final = "DescribeConfigs"
_OPERATIONS: Final = (*_READ_AND_WRITE, *_DESCRIBE, _CONFIGS)

#: What each role may do, where `create_topics` is `never`. A worker that relays itself is `relay` too.
RIGHTS: Final[Mapping[Role, Mapping[Resource, tuple[str, ...]]]] = MappingProxyType(
    {
        "worker": {
            "sources": (*_READ, _CONFIGS),
            "retry": (*_READ, _CONFIGS),
            "delay": (*_WRITE, _CONFIGS),
            "dead letters": (*_WRITE, _CONFIGS),
            "control": (*_READ_AND_WRITE, _CONFIGS),
            "group": _READ,
            "relay's group": _DESCRIBE,
        },
        "relay": {
            "sources": (*_DESCRIBE, _CONFIGS),
            "targets": _WRITE,
            "retry": (*_WRITE, _CONFIGS),
            "delay": (*_READ_AND_WRITE, _CONFIGS),
            "dead letters": (*_WRITE, _CONFIGS),
            "control": (*_DESCRIBE, _CONFIGS),
            "relay's group": _READ,
        },
        "producer": {"sources": _WRITE, "delay": _WRITE},
        "canceller": {
            "retry": _READ,
            "delay": _READ_AND_WRITE,
            "group": _DESCRIBE,
            "relay's group": _DESCRIBE,
        },
        "operator": {
            "sources": (*_READ, _CONFIGS),
            "retry": (*_READ_AND_WRITE, _CONFIGS),
            "delay": (*_READ, _CONFIGS),
            "dead letters": (*_READ, _CONFIGS),
            "state": (*_READ_AND_WRITE, _CONFIGS),
            "control": (*_READ_AND_WRITE, _CONFIGS),
            "group": _READ,
            "relay's group": _DESCRIBE,
        },
        "dashboard": {
            "sources": _READ,
            "retry": _READ,
            "delay": _READ,
            "dead letters": _READ,
            "state": _READ,
            "control": _READ,
            "group": _DESCRIBE,
            "relay's group": _DESCRIBE,
        },
    }
)

ROLES: Final = tuple(RIGHTS)
RESOURCES: Final[tuple[Resource, ...]] = (
    "sources",
    "targets",
    "retry",
    "delay",
    "dead letters",
    "state",
    "control",
    "group",
    "relay's group",
)


class Right(NamedTuple):
    """Operations that a user may do to one resource of Kafka."""

    kind: Kind
    name: str
    operations: tuple[str, ...]


def rights_of(
    role: Role, names: TopicNames, sources: Collection[str], *, targets: Collection[str] = (), relays: bool = False
) -> list[Right]:
    """Return the rights of `role` in the group of `names`, which reads `sources`; with `relays` those of a relay too.

    `targets` are the topics that delayed sends go to.
    """
    found: dict[tuple[Kind, str], set[str]] = {}
    for resource in RESOURCES:
        operations = {each for one in ((role, "relay") if relays else (role,)) for each in RIGHTS[one].get(resource, ())}
        for at in _named(resource, names, sources, targets) if operations else ():
            found.setdefault(at, set()).update(operations)
    return [Right(kind, name, _ordered(operations)) for (kind, name), operations in found.items()]


def _ordered(operations: Collection[str]) -> tuple[str, ...]:
    """Without Describe where another one includes it."""
    is_included = not {*_READ_AND_WRITE}.isdisjoint(operations)
    return tuple(each for each in _OPERATIONS if each in operations and not (each == "Describe" and is_included))


def _named(resource: Resource, names: TopicNames, sources: Collection[str], targets: Collection[str]) -> list[tuple[Kind, str]]:
    match resource:
        case "sources" | "targets":
            return [("topic", topic) for topic in sorted(sources if resource == "sources" else targets)]
        case "group":
            return [("group", names.group)]
        case "relay's group":
            return [("group", names.relay_group)]
        case _:
            topics = {"retry": names.retry, "delay": names.delay, "dead letters": names.dead_letter}
            return [("topic", (topics | {"state": names.state, "control": names.control})[resource])]


class User(NamedTuple):
    """A principal of Kafka, such as `User:billing-worker`, and what it may do."""

    role: str
    principal: str
    rights: Sequence[Right]


class Export(NamedTuple):
    """What is printed: topics to make, and users with their rights."""

    topics: Sequence[MadeTopic]
    users: Sequence[User]
    brokers: str


def _acls(export: Export) -> Iterator[str]:
    """The commands of Kafka's own scripts."""
    at = f"--bootstrap-server {shlex.quote(export.brokers)}"
    for topic in export.topics:
        sizes = f"--partitions {topic.partitions} --replication-factor {topic.replication}"
        configs = [f"--config {shlex.quote(f'{name}={value}')}" for name, value in topic.config.items()]
        yield from _continued(f"kafka-topics.sh {at} --create --if-not-exists", f"--topic {topic.name} {sizes}", *configs)
    for user in export.users:
        yield ""
        yield f"# {user.role}"
        for right in user.rights:
            allowed = " ".join(f"--operation {operation}" for operation in right.operations)
            who = f"--allow-principal {shlex.quote(user.principal)}"
            yield from _continued(f"kafka-acls.sh {at} --add {who}", f"--{right.kind} {shlex.quote(right.name)} {allowed}")


def _continued(*parts: str) -> Iterator[str]:
    """One command over several lines."""
    for number, part in enumerate(parts):
        yield f"{'  ' if number else ''}{part}{'' if number == len(parts) - 1 else ' ' + chr(92)}"


class _Expression(str):
    """Of Terraform, not a text."""


def _terraform(export: Export) -> Iterator[str]:
    """Resources of the provider Mongey/kafka."""
    yield "# for the provider Mongey/kafka"
    for topic in export.topics:
        yield from _resource(
            "kafka_topic",
            _identifier(topic.name),
            {"name": topic.name, "partitions": topic.partitions, "replication_factor": topic.replication},
            topic.config,
        )
    for user in export.users:
        for right in user.rights:
            yield from _resource(
                "kafka_acl",
                _identifier(f"{user.role}.{right.kind}.{right.name}"),
                {
                    "for_each": right.operations,
                    "acl_operation": _Expression("each.value"),
                    "acl_permission_type": "Allow",
                    "acl_principal": user.principal,
                    "acl_host": "*",
                    "resource_type": right.kind.capitalize(),
                    "resource_name": right.name,
                },
            )


def _resource(kind: str, name: str, fields: Mapping[str, object], config: Mapping[str, str] | None = None) -> Iterator[str]:
    yield from ("", f'resource "{kind}" "{name}" {{')
    yield from _assigned(fields, "  ")
    if config is not None:
        yield from ("", "  config = {")
        yield from _assigned({json.dumps(key): value for key, value in config.items()}, "    ")
        yield "  }"
    yield "}"


def _assigned(fields: Mapping[str, object], indent: str) -> Iterator[str]:
    width = max(map(len, fields))
    yield from (f"{indent}{field:{width}} = {_hcl(value)}" for field, value in fields.items())


def _hcl(value: object) -> str:
    match value:
        case _Expression():
            return value
        case tuple():
            return f"toset({json.dumps(value)})"
        case _:
            return json.dumps(value)


def _identifier(name: str) -> str:
    """A name for Terraform. Kafka itself keeps topics apart that differ in dots and underscores alone."""
    return re.sub(r"^(?![A-Za-z])", "_", name.replace(".", "_"))


def _strimzi(export: Export) -> Iterator[str]:
    """Custom resources of Strimzi; `my-cluster` is to be replaced."""
    for topic in export.topics:
        yield from _manifest("KafkaTopic", topic.name)
        yield f"  topicName: {topic.name}"
        yield f"  partitions: {topic.partitions}"
        yield f"  replicas: {topic.replication}"
        yield "  config:"
        yield from (f"    {name}: {_scalar(value)}" for name, value in topic.config.items())
    for user in export.users:
        yield from _manifest("KafkaUser", user.principal.removeprefix("User:"))
        yield from ("  authentication:", "    type: scram-sha-512", "  authorization:", "    type: simple", "    acls:")
        for right in user.rights:
            yield f"      - resource: {{type: {right.kind}, name: {json.dumps(right.name)}, patternType: literal}}"
            yield f"        operations: [{', '.join(right.operations)}]"


def _manifest(kind: str, name: str) -> Iterator[str]:
    yield "---"
    yield "apiVersion: kafka.strimzi.io/v1"
    yield f"kind: {kind}"
    yield "metadata:"
    yield f"  name: {json.dumps(_object_name(name))}"
    yield "  labels: {strimzi.io/cluster: my-cluster}"
    yield "spec:"


def _object_name(name: str) -> str:
    """A name for Kubernetes: lower case, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip(".-")


def _scalar(value: str) -> str:
    return value if re.fullmatch(r"-?\d+", value) else json.dumps(value)


#: Each format, by its name on the command line.
FORMATS: Final[Mapping[str, Callable[[Export], Iterator[str]]]] = MappingProxyType(
    {"acls": _acls, "terraform": _terraform, "strimzi": _strimzi}
)
