"""Names of the topics of a group."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topictemplate import TopicTemplate

__all__ = ["TopicNames"]

_DEFAULT: Final = TopicTemplate()

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")

#: Kafka: `Topic.MAX_NAME_LENGTH`.
_LONGEST: Final = 249


@dataclass(frozen=True, slots=True, init=False)
class TopicNames:
    """What the topics of `group` are called: one for retries, for dead letters, for cancellations, one per delay level, shortest first.

    With `delayed_sends` there is one more per level, for messages that are sent later.

    Raises `ConfigurationError` for a name that Kafka would refuse, and for a dead-letter topic that has another use.
    """

    group: str
    retry: str
    dead_letter: str
    delays: tuple[str, ...]
    cancel: str
    sends: tuple[str, ...]
    template: TopicTemplate

    def __init__(
        self,
        group: str,
        levels: DelayLevels,
        *,
        dead_letter: str | None = None,
        delayed_sends: bool = False,
        template: TopicTemplate = _DEFAULT,
    ) -> None:
        self._set(
            group=group,
            retry=template.name(group, "retry"),
            dead_letter=template.name(group, "dlq") if dead_letter is None else dead_letter,
            delays=tuple(template.name(group, "delay", name) for name in levels.names()),
            cancel=template.name(group, "cancel"),
            sends=tuple(template.name(group, "send", name) for name in levels.names()) if delayed_sends else (),
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
        if self.dead_letter in (self.retry, *self.delays, *self.sends):
            raise ConfigurationError(
                f"dead-letter topic {self.dead_letter!r} is a retry topic of group {group!r}: its messages would come back; choose another"
            )
        if self.dead_letter == self.control:
            raise ConfigurationError(f"dead-letter topic {self.dead_letter!r} is the control topic of group {group!r}; choose another")
        if self.dead_letter == self.cancel:
            raise ConfigurationError(
                f"dead-letter topic {self.dead_letter!r} is the cancel topic of group {group!r}, which is compacted; choose another"
            )

    def _set(self, **fields: object) -> None:
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @classmethod
    def none(cls, group: str) -> TopicNames:
        """Of an instance that broadcasts: nothing is sent back there, so its group has no topics."""
        names = object.__new__(cls)
        names._set(group=group, retry="", dead_letter="", delays=(), cancel="", sends=(), template=_DEFAULT)
        return names

    @classmethod
    def of(cls, settings: HostSettings, levels: DelayLevels, *, dead_letter: str | None = None) -> TopicNames:
        """Those of the group of `settings`. Raises `ConfigurationError`."""
        if settings.instance:
            return cls.none(settings.group)
        template = TopicTemplate(settings.topic_names)
        return cls(settings.group, levels, dead_letter=dead_letter, delayed_sends=settings.delayed_sends, template=template)

    def of_sends(self) -> TopicNames:
        """Those of a line of messages that are sent later: its levels, and nothing where a copy would come back."""
        names = object.__new__(TopicNames)
        names._set(
            group=self.group,
            retry="",
            dead_letter=self.dead_letter,
            delays=self.sends,
            cancel=self.cancel,
            sends=(),
            template=self.template,
        )
        return names

    def with_levels_of(self, there: Collection[str]) -> TopicNames:
        """These, with the delay and send topics of the group that are `there` besides: of other levels, or of before sends had none."""
        if not self.retry:
            return self
        found = [(topic, of.kind) for topic in there if (of := self.template.of(topic)) is not None and of.group == self.group]
        names = object.__new__(TopicNames)
        fields: dict[str, object] = {each: getattr(self, each) for each in self.__slots__}
        for field, kind in (("delays", "delay"), ("sends", "send")):
            others = {topic for topic, its_kind in found if its_kind == kind} - {*getattr(self, field)}
            if others:
                fields[field] = tuple(sorted((*getattr(self, field), *others), key=self.level_of))
        names._set(**fields)
        return names

    def level_of(self, topic: str) -> float:
        """Seconds that records wait in a delay or send topic of the group, by its name."""
        of = self.template.of(topic)
        if of is None or of.kind not in ("delay", "send"):
            raise ValueError(f"{topic!r} is no delay topic")
        return parse_duration(of.words[1], what=topic)

    @property
    def all(self) -> tuple[str, ...]:
        """Every topic of the group that messages go to; none where it broadcasts."""
        return (self.retry, self.dead_letter, *self.delays, self.cancel, *self.sends) if self.retry else ()

    @property
    def default_dead_letter(self) -> str:
        """Where dead letters are of an app that names no other topic."""
        return self.template.name(self.group, "dlq")

    @property
    def control(self) -> str:
        """Where commands to all workers of the group are."""
        return self.template.name(self.group, "control")

    @property
    def state(self) -> str:
        """Where it is kept what was done with dead letters."""
        return self.template.name(self.group, "dlq", "state")

    def has_name_of_own(self, topic: str) -> bool:
        """Whether `topic` is called like one of this group's, also one that it does not have now, such as of another delay level."""
        found = self.template.of(topic)
        return topic in self.own or (found is not None and found.group == self.group)

    @property
    def own(self) -> frozenset[str]:
        """Every topic that belongs to the group, also those that only commands write to."""
        return frozenset((*self.all, self.control, self.state)) if self.retry else frozenset()

    @property
    def relay_group(self) -> str:
        """The consumer group in which the relay reads the delay topics."""
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
