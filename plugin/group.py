"""What an app needs of Kafka: what its group is called, what it reads, and the topics of its own."""

from __future__ import annotations

from typing import NamedTuple

from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.app import App
from ackwise.plugin.settings import HostSettings
from ackwise.plugin.topicnames import TopicNames

__all__ = ["Group", "group_of"]


class Group(NamedTuple):
    """One consumer group and its topics."""

    settings: HostSettings
    names: TopicNames
    sources: tuple[str, ...]  #: the topics that its agents consume, sorted
    levels: DelayLevels


def group_of(app: App) -> Group:
    """The group of `app`. Raises `ConfigurationError` for what a start of the app would refuse."""
    sources = tuple(sorted(topic for agent in app.agents() for topic in agent.topics))
    later, dead_letter = app._slots.later, app._slots.dead_letter
    return Group(app.settings, TopicNames(app.settings.group, later.levels, dead_letter=dead_letter.topic), sources, later.levels)
