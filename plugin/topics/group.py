"""Group: what an app needs from Kafka and from this machine: its sources, its topics, its claims and its events."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from ackwise.middleware.policies.policies import Dedup, Events, Transactional
from ackwise.middleware.policies.retry import DelayLevels, all_levels
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.policyslots import Slots
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.plugin.topics.topicpatterns import match_topics, named_topics, patterns_of
from ackwise.plugin.topics.topicplan import waits_in_place


class Group(NamedTuple):
    """One consumer group, and what its app uses."""

    settings: HostSettings
    names: TopicNames
    sources: tuple[str, ...]  #: the topics that its agents name, and after `matching` those that their patterns match, sorted
    made: frozenset[str]  #: those among them that its host makes itself when it starts
    levels: DelayLevels
    dedup: Dedup | Transactional | None
    events: Events | None
    agents: tuple[Agent, ...]  #: as a worker has them, down to how they decode
    slots: Slots

    @property
    def in_place(self) -> dict[str, float]:
        """Seconds that a message of each topic may wait in place at most."""
        return waits_in_place(self.agents, self.sources)

    @property
    def patterns(self) -> dict[str, str]:
        """The patterns by which agents find topics, by the names of the agents."""
        return patterns_of(self.agents)

    def matching(self, there: Collection[str]) -> Group:
        """This group with those of the topics that are `there` among its sources that patterns match."""
        return self._replace(sources=tuple(sorted({*self.sources, *match_topics(self.agents, self.names, there).topics})))

    def expected(self, found: Container[str]) -> tuple[str, ...]:
        """The sources that must be there, of which `found` are; those that the host makes count once they are."""
        return tuple(source for source in self.sources if source in found or source not in self.made)


def group_of(settings: HostSettings, slots: Slots, agents: Sequence[Agent], *, made: Collection[str] = ()) -> Group:
    """The group of these settings, policies and agents; of the topics that they read, `made` are those that its host makes itself.

    Raises `ConfigurationError` for what a start would refuse.
    """
    return Group(
        settings=settings,
        names=TopicNames.of(settings, dead_letter=slots.dead_letter.topic),
        sources=named_topics(agents),
        made=frozenset(made),
        levels=all_levels(slots.later, *(agent.later for agent in agents)),
        dedup=slots.dedup or slots.transactional,
        events=slots.events,
        agents=tuple(agents),
        slots=slots,
    )
