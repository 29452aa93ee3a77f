"""Rights: what each user of a group does to which resource of Kafka, for ACLs. Pure.

Read and Write include Describe in Kafka, so Describe stands only where neither does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ackwise.plugin.group.topicnames import TopicNames

__all__ = ["RESOURCES", "RIGHTS", "ROLES", "Resource", "Right", "Role", "rights_of"]

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
    """What `role` may do in the group of `names`, which reads `sources`; with `relays` what a relay may, too.

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
