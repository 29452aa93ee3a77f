"""Topic patterns: which topics of a cluster the agents of a group read by them, as topics come and go; which are passed over, and why.

Topics of Ackwise never match: those of the own group by their names, those of any other group by their suffix. A matching topic is
added once the group's own topics fit it; one that they can't fit is left out and logged. An added topic always has an agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.log import Log
from ackwise.middleware.runs.agent import Agent, readers_of
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topictemplate import TopicTemplate

_DEFAULT: Final = TopicTemplate()

#: Topics of Kafka itself, such as `__consumer_offsets`.
_INTERNAL: Final = "__"


class Matched(NamedTuple):
    """What the patterns of a group match now."""

    topics: tuple[str, ...]
    """Topics that are read by a pattern, sorted; those that an agent names are not among them."""
    disputed: Mapping[str, str]
    """Topics that are not read since several patterns match them, each with its sentence."""
    of_groups: Mapping[str, str]
    """Topics that are not read since they seem to be those of a group of Ackwise, each with its sentence."""


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
    """The topics that agents name, and the one that `text` such as `orders/3` starts with if a pattern matches it."""
    topic = text.partition("/")[0] if isinstance(text, str) else ""
    return {*named_topics(agents), *([topic] if topic and readers_of(agents, topic) else ())}


def match_topics(agents: Sequence[Agent], names: TopicNames, there: Collection[str]) -> Matched:
    """Return the topics among `there` that the patterns of `agents` match; `names` are those of their group."""
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


log = Log()

#: Looks that must miss a topic until it is gone: a broker that starts may not know all of them at once.
_LOOKS_UNTIL_GONE: Final = 2

_Ensure = Callable[[Collection[str]], Awaitable[None]]


class Sources:
    """What the agents of one member read."""

    def __init__(self, agents: Sequence[Agent], names: TopicNames) -> None:
        self._agents = agents
        self._names = names
        self.named = named_topics(agents)
        self.patterns = patterns_of(agents)  #: by the names of their agents
        self.found: frozenset[str] = frozenset()  #: those that are taken up by a pattern
        self.left_out: dict[str, str] = {}  #: those that a pattern matches and that are not read, each with the reason
        self._missed: dict[str, int] = {}  #: how many looks in a row did not show it
        self._begun_at: frozenset[str] | None = None  #: what was there when a group started that had never committed

    @property
    def topics(self) -> list[str]:
        """All that are read now."""
        return sorted({*self.named, *self.found})

    def of(self, agent: Agent) -> tuple[str, ...]:
        """Those of one agent: what it names, and what its pattern has found."""
        found = (topic for topic in sorted(self.found) if any(reader.name == agent.name for reader in readers_of(self._agents, topic)))
        return (*agent.topics, *found)

    def begins_whole(self, topic: str) -> bool:
        """Whether a partition of `topic` without a commit is read from its first record, whatever `start` says: it was found later."""
        return topic in self.found and (self._begun_at is None or topic not in self._begun_at)

    def begin_new(self) -> None:
        """The group has never committed anything: where it starts with the topics that are found now, `start` says."""
        self._begun_at = self.found

    async def take_up(self, there: Collection[str], ensure: _Ensure) -> bool:
        """Take up what matches of the topics that are `there`, let go of what is gone; return whether that changed anything.

        `ensure` makes the group's own topics fit those that it is given, or raises `ConfigurationError`; that is raised if nothing at all
        can be read.
        """
        matched = match_topics(self._agents, self._names, there)
        staying = self._staying(matched.topics)
        fitting, unfit = await self._fitting({*self.named, *staying}, sorted({*matched.topics} - staying), ensure)
        self._say_left_out({**matched.disputed, **unfit})
        before, self.found = self.found, frozenset({*staying, *fitting})
        if before != self.found:
            new, gone = sorted(self.found - before), sorted(before - self.found)
            log.info("topics of patterns have changed", group=self._names.group, new=_listed(new), gone=_listed(gone))
        if not self.topics and unfit:
            raise ConfigurationError(next(iter(unfit.values())))
        return before != self.found

    def _staying(self, matched: Collection[str]) -> set[str]:
        """Those that were found and are not gone."""
        self._missed = {topic: self._missed.get(topic, 0) + 1 for topic in self.found if topic not in matched}
        return {topic for topic in self.found if self._missed.get(topic, 0) < _LOOKS_UNTIL_GONE}

    async def _fitting(self, read: Collection[str], new: Sequence[str], ensure: _Ensure) -> tuple[list[str], dict[str, str]]:
        """Those of `new` that can be read beside `read`, and of the others why not. All at once, or else one after the other."""
        fitting: list[str] = []
        unfit: dict[str, str] = {}
        with suppress(ConfigurationError):
            if new:
                await ensure({*read, *new})
            return [*new], unfit
        for topic in new:
            try:
                await ensure({*read, *fitting, topic})
            except ConfigurationError as error:
                unfit[topic] = str(error)
            else:
                fitting.append(topic)
        return fitting, unfit

    def _say_left_out(self, left_out: dict[str, str]) -> None:
        """One line for each, when it is news."""
        for topic, why in left_out.items():
            if self.left_out.get(topic) != why:
                log.error("topic of a pattern left out", topic=topic, error=why)
        self.left_out = left_out


def _listed(topics: Sequence[str]) -> str | None:
    return ", ".join(topics) or None
