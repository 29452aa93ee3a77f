"""`ackwise topics export`: the group's topics and the rights of its users, for the tools that make topics and users."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.cli.target import Target, find_app
from ackwise.plugin.cli.waiting import wait_for

if TYPE_CHECKING:
    from ackwise.plugin.group.group import Group
    from ackwise.plugin.group.rights import Role
    from ackwise.plugin.group.topicexport import Export, User

__all__ = ["export"]

#: How many replicas topics have, and how many must acknowledge, where no broker is asked.
_REPLICAS, _IN_SYNC = 3, 2

_Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="[bold]acls[/bold]: commands of Kafka's scripts. [bold]terraform[/bold]: for the provider Mongey/kafka. "
        "[bold]strimzi[/bold]: KafkaTopic and KafkaUser.",
    ),
]
_Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="worker, relay, producer, canceller, operator or dashboard; may be repeated. Default: all of them.",
        show_default=False,
    ),
]
_Principal = Annotated[
    str | None,
    typer.Option(
        metavar="USER",
        help="Who has the one --role, such as [bold]User:billing[/bold]. Default: User:GROUP-ROLE.",
        show_default=False,
    ),
]
_Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Ask no broker: the widest source has N partitions, three replicas and Kafka's other defaults.",
        show_default=False,
    ),
]

_DEFAULT: Final = "acls"


def export(
    target: Target,
    form: _Format = _DEFAULT,
    roles: _Roles = None,
    principal: _Principal = None,
    partitions: _Partitions = None,
) -> None:
    """Print the five topics of the group and who may do what to them, for another tool to make. Changes nothing.

    The topics are as [bold]ackwise topics create[/bold] would make them now. A worker with relay = inside has the rights of a relay too.
    With these topics and rights a worker starts with create_topics = never.

    Exit code 0: printed. 2: there is no such format, role or app, a source is missing, or the brokers do not answer.
    """
    from ackwise.plugin.group.topicexport import FORMATS

    if (lines := FORMATS.get(form)) is None:
        raise ConfigurationError(f"there is no format {form!r}; choose one of {', '.join(FORMATS)}")
    chosen = _roles(roles or ())
    if principal is not None and len(chosen) != 1:
        raise ConfigurationError("--principal names the user of one role; give that with --role")
    group = find_app(target).group()
    if not group.names.all:
        raise ConfigurationError(f"group {group.settings.group!r} broadcasts and sends nothing back, so it has no topics")
    typer.echo("\n".join(lines(wait_for(_exported(group, chosen, principal, partitions)))))


def _roles(given: Sequence[str]) -> list[Role]:
    from ackwise.plugin.group.rights import ROLES

    for role in given:
        if role not in ROLES:
            raise ConfigurationError(f"there is no role {role!r}; choose of {', '.join(ROLES)}")
    return [role for role in ROLES if role in given or not given]


async def _exported(group: Group, roles: Collection[Role], principal: str | None, partitions: int | None) -> Export:
    from ackwise.plugin.group.matching import with_matching
    from ackwise.plugin.group.topicexport import Export
    from ackwise.plugin.group.topicplan import Topic, made_topics
    from ackwise.plugin.group.topics import read_topics

    if partitions is None:
        group = await with_matching(group)
        found = await read_topics(group.settings, group.sources)
    else:
        like = Topic(partitions, _REPLICAS, max_message_bytes=1048588, retention_ms=604800000, min_insync_replicas=_IN_SYNC)
        found = dict.fromkeys(group.sources, like)
    if not (sources := group.expected(found)):
        raise ConfigurationError("the app names no source whose size is known; create it first, or give --partitions")
    topics = made_topics(
        group.names,
        sources,
        found,
        longest_delay=group.levels.seconds[-1],
        rungs=group.settings.rungs,
    )
    return Export(topics, [_user(group, role, principal) for role in roles], group.settings.brokers)


def _user(group: Group, role: Role, principal: str | None) -> User:
    from ackwise.plugin.group.rights import rights_of
    from ackwise.plugin.group.topicexport import User

    relays = role == "worker" and group.settings.relay == "inside"
    given = principal or f"{group.names.group}-{role}"
    rights = rights_of(role, group.names, group.sources, targets=group.sources if group.settings.delayed_sends else (), relays=relays)
    return User(role, given if ":" in given else f"User:{given}", rights)
