"""What the patterns of a group match now, for those who look after the group from outside."""

from __future__ import annotations

from collections.abc import Collection

from ackwise.plugin.group.group import Group
from ackwise.plugin.group.patterns import Matched, match_topics
from ackwise.plugin.group.sources import Sources
from ackwise.plugin.group.topics import ensure_topics, list_topics

__all__ = ["ensure_topics_of", "matched_by", "with_matching"]


async def with_matching(group: Group) -> Group:
    """`group` with the topics that its patterns match now among its sources; nobody is asked where there is no pattern.

    Raises `ConfigurationError` if the topics may not be listed, and `Unavailable` if the brokers do not answer.
    """
    return group.matching(await list_topics(group.settings)) if group.patterns else group


async def matched_by(group: Group) -> Matched:
    """What the patterns of `group` match now. Raises as `with_matching`."""
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
