"""What an app needs of Kafka and of this machine: its group, what it reads, and the topics, claims and events of its own."""

from __future__ import annotations

from typing import NamedTuple

from ackwise.middleware.policies import Dedup, Events, Transactional
from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.app import App
from ackwise.plugin.settings import HostSettings
from ackwise.plugin.topicnames import TopicNames

__all__ = ["Group", "group_of"]


class Group(NamedTuple):
    """One consumer group, and what its app uses."""

    settings: HostSettings
    names: TopicNames
    sources: tuple[str, ...]  #: the topics that its agents consume, sorted
    levels: DelayLevels
    dedup: Dedup | Transactional | None
    events: Events | None


def group_of(app: App) -> Group:
    """The group of `app`. Raises `ConfigurationError` for what a start of the app would refuse."""
    slots = app._slots
    return Group(
        settings=app.settings,
        names=TopicNames(app.settings.group, slots.later.levels, dead_letter=slots.dead_letter.topic),
        sources=tuple(sorted(topic for agent in app.agents() for topic in agent.topics)),
        levels=slots.later.levels,
        dedup=slots.dedup or slots.transactional,
        events=slots.events,
    )
