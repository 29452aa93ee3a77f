"""`Place`: where the dead letters of a group are, and what was done with them."""

from __future__ import annotations

from typing import NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["Place", "place_of_app", "place_of_group"]


class Place(NamedTuple):
    """The topics of one group. `app` is what is known of its app, if one was named."""

    settings: HostSettings
    names: TopicNames
    app: Group | None = None

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.group

    @property
    def state_topic(self) -> str:
        """Where it is kept what was redriven or dropped."""
        return self.names.state


def place_of_app(group: Group) -> Place:
    """The place of an app's letters. Raises `ConfigurationError` for an app that broadcasts."""
    if not group.names.all:
        raise ConfigurationError(f"{group.settings.group!r} broadcasts: what fails there is dropped, so it has no dead letters")
    return _checked(Place(group.settings, group.names, group))


def place_of_group(settings: HostSettings, dead_letter: str | None = None) -> Place:
    """The place of the letters of a group of which no app is at hand. Raises `ConfigurationError` for names that can't be."""
    return _checked(Place(settings, TopicNames.of(settings, dead_letter=dead_letter)))


def _checked(place: Place) -> Place:
    if place.names.dead_letter == place.state_topic:
        raise ConfigurationError(
            f"the dead-letter topic is {place.state_topic!r}, which is where it is kept what was redriven; give DeadLetter another topic"
        )
    return place
