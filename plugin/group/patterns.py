"""Topic patterns: which topics of a cluster the agents of a group read by them, and which are passed over, and why. Pure.

Topics of Ackwise never match: those of the own group by their names, those of any other group by how they end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ackwise.middleware.agent import Agent, readers_of
from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.topictemplate import TopicTemplate

__all__ = ["Matched", "match_topics", "named_topics", "parse_pattern", "patterns_of", "topics_about"]

_DEFAULT: Final = TopicTemplate()

#: Topics of Kafka itself, such as `__consumer_offsets`.
_INTERNAL: Final = "__"


class Matched(NamedTuple):
    """What the patterns of a group match now."""

    topics: tuple[str, ...]
    """Topics that are read by a pattern, sorted; those that an agent names are not among them."""
    disputed: Mapping[str, str]
    """Topics that nobody reads since several patterns match them, each with the sentence that says so."""
    of_groups: Mapping[str, str]
    """Topics that nobody reads since they seem to be those of a group of Ackwise, each with the sentence that says so."""


def parse_pattern(pattern: str | re.Pattern[str], *, agent: str) -> re.Pattern[str]:
    """The `pattern` of that agent. Raises `ConfigurationError` for what is no regular expression of text."""
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"pattern of agent {agent!r} is {pattern!r}, which is no regular expression ({error})") from None
    if not isinstance(compiled.pattern, str):
        raise ConfigurationError(f"pattern of agent {agent!r} is {compiled.pattern!r}, and topics have names of text; leave the b out")
    if not compiled.pattern:
        raise ConfigurationError(
            f"pattern of agent {agent!r} is empty; give one that matches whole names of topics, such as r'orders\\..+'"
        )
    return compiled


def patterns_of(agents: Sequence[Agent]) -> dict[str, str]:
    """The patterns of those agents that have one, by the name of their agent."""
    return {agent.name: agent.pattern.pattern for agent in agents if agent.pattern is not None}


def named_topics(agents: Sequence[Agent]) -> tuple[str, ...]:
    """The topics that agents name, sorted."""
    return tuple(sorted({topic for agent in agents for topic in agent.topics}))


def topics_about(text: object, agents: Sequence[Agent]) -> set[str]:
    """The topics that agents name, and the one that `text` such as `orders/3` begins with if a pattern matches it."""
    topic = text.partition("/")[0] if isinstance(text, str) else ""
    return {*named_topics(agents), *([topic] if topic and readers_of(agents, topic) else ())}


def match_topics(agents: Sequence[Agent], names: TopicNames, there: Collection[str]) -> Matched:
    """What the patterns of `agents` match of the topics that are `there`; `names` are those of their group."""
    topics, disputed, of_groups = [], {}, {}
    for topic in sorted({*there} - {*named_topics(agents)} - names.own):
        readers = [] if topic.startswith(_INTERNAL) else readers_of(agents, topic)
        if readers and (found := _DEFAULT.of(topic) or names.template.of(topic)) is not None:
            of_groups[topic] = (
                f"topic {topic!r} is called like one that Ackwise makes for a group {found.group!r}, which no pattern matches; if it is "
                "yours, name it in its agent"
            )
        elif len(readers) > 1:
            both = " and ".join(repr(reader.name) for reader in readers)
            disputed[topic] = f"topic {topic!r} matches the patterns of {both}, and one app delivers it to one; name it in that agent"
        elif readers:
            topics.append(topic)
    return Matched(tuple(topics), disputed, of_groups)
