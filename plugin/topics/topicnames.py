"""Names of the topics of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topictemplate import TopicTemplate

_DEFAULT: Final = TopicTemplate()

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")

#: Kafka: `Topic.MAX_NAME_LENGTH`.
_LONGEST: Final = 249


@dataclass(frozen=True, slots=True, init=False)
class TopicNames:
    """What the topics of `group` are called: for retries, for what waits, and for dead letters.

    Raises `ConfigurationError` for a name that Kafka would refuse, and for a dead-letter topic that has another use.
    """

    group: str
    retry: str
    delay: str
    dead_letter: str
    template: TopicTemplate

    def __init__(self, group: str, *, dead_letter: str | None = None, template: TopicTemplate = _DEFAULT) -> None:
        self._set(
            group=group,
            retry=template.name(group, "retry"),
            delay=template.name(group, "delay"),
            dead_letter=template.name(group, "dlq") if dead_letter is None else dead_letter,
            template=template,
        )
        for topic in (*self.all, self.state):
            _check_name(topic, group)
        for topic in sorted(self.own - {dead_letter}):
            if (of := template.of(topic)) is not None and of.group != group:
                raise ConfigurationError(
                    f"{topic!r}, a topic of group {group!r}, would be that of a group {of.group!r} by topic_names={template.text!r}; put "
                    "{group} before {kind}, or choose another name for the group"
                )
        if self.dead_letter in (self.retry, self.delay):
            raise ConfigurationError(
                f"dead-letter topic {self.dead_letter!r} is a retry topic of group {group!r}: its messages would come back; choose another"
            )
        if self.dead_letter == self.control:
            raise ConfigurationError(f"dead-letter topic {self.dead_letter!r} is the control topic of group {group!r}; choose another")

    def _set(self, **fields: object) -> None:
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @classmethod
    def none(cls, group: str) -> TopicNames:
        """Return the names for a broadcasting instance: nothing is sent back there, so its group has no topics."""
        names = object.__new__(cls)
        names._set(group=group, retry="", delay="", dead_letter="", template=_DEFAULT)
        return names

    @classmethod
    def of(cls, settings: HostSettings, *, dead_letter: str | None = None) -> TopicNames:
        """Those of the group of `settings`. Raises `ConfigurationError`."""
        if settings.instance:
            return cls.none(settings.group)
        return cls(settings.group, dead_letter=dead_letter, template=TopicTemplate(settings.topic_names))

    @property
    def all(self) -> tuple[str, ...]:
        """Every topic of the group that messages go to; none where it broadcasts."""
        return (self.retry, self.dead_letter, self.delay) if self.retry else ()

    @property
    def default_dead_letter(self) -> str:
        """Return the default topic for dead letters."""
        return self.template.name(self.group, "dlq")

    @property
    def control(self) -> str:
        """Return the topic of commands to all workers of the group."""
        return self.template.name(self.group, "control")

    @property
    def state(self) -> str:
        """Return the topic that records what was done with dead letters."""
        return self.template.name(self.group, "dlq", "state")

    def has_name_of_own(self, topic: str) -> bool:
        """Return whether `topic` is called like one of this group's, also one that it does not have now, such as of other dead letters."""
        found = self.template.of(topic)
        return topic in self.own or (found is not None and found.group == self.group)

    @property
    def own(self) -> frozenset[str]:
        """Every topic that belongs to the group, also those that only commands write to."""
        return frozenset((*self.all, self.control, self.state)) if self.retry else frozenset()

    @property
    def relay_group(self) -> str:
        """The consumer group in which the relay reads the delay topic."""
        return f"{self.group}.relay"


def _check_name(topic: str, group: str) -> None:
    if not _LEGAL.fullmatch(topic) or topic in (".", ".."):
        raise ConfigurationError(
            f"{topic!r}, a topic of group {group!r}, is not a legal topic name; use letters, digits, '.', '_' and '-' only"
        )
    if len(topic) > _LONGEST:
        raise ConfigurationError(
            f"{topic!r}, a topic of group {group!r}, has {len(topic)} characters and Kafka allows {_LONGEST}; choose a shorter group name, "
            "or other topic_names"
        )
