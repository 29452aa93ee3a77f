"""Names of the topics of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.retry import DelayLevels
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["TopicNames"]

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

    def __init__(self, group: str, levels: DelayLevels, *, dead_letter: str | None = None, delayed_sends: bool = False) -> None:
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "retry", f"{group}.retry")
        object.__setattr__(self, "dead_letter", f"{group}.dlq" if dead_letter is None else dead_letter)
        object.__setattr__(self, "delays", tuple(f"{group}.delay.{name}" for name in levels.names()))
        object.__setattr__(self, "cancel", f"{group}.cancel")
        object.__setattr__(self, "sends", tuple(f"{group}.send.{name}" for name in levels.names()) if delayed_sends else ())
        for topic in self.all:
            _check_name(topic, group)
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

    @classmethod
    def none(cls, group: str) -> TopicNames:
        """Of an instance that broadcasts: nothing is sent back there, so its group has no topics."""
        names = object.__new__(cls)
        for field, value in {"group": group, "retry": "", "dead_letter": "", "delays": (), "cancel": "", "sends": ()}.items():
            object.__setattr__(names, field, value)
        return names

    @classmethod
    def of(cls, settings: HostSettings, levels: DelayLevels, *, dead_letter: str | None = None) -> TopicNames:
        """Those of the group of `settings`. Raises `ConfigurationError`."""
        if settings.instance:
            return cls.none(settings.group)
        return cls(settings.group, levels, dead_letter=dead_letter, delayed_sends=settings.delayed_sends)

    def of_sends(self) -> TopicNames:
        """Those of a line of messages that are sent later: its levels, and nothing where a copy would come back."""
        names = object.__new__(TopicNames)
        here = {"group": self.group, "retry": "", "dead_letter": self.dead_letter, "delays": self.sends, "cancel": self.cancel}
        for field, value in {**here, "sends": ()}.items():
            object.__setattr__(names, field, value)
        return names

    @property
    def all(self) -> tuple[str, ...]:
        """Every topic of the group that messages go to; none where it broadcasts."""
        return (self.retry, self.dead_letter, *self.delays, self.cancel, *self.sends) if self.retry else ()

    @property
    def control(self) -> str:
        """Where commands to all workers of the group are."""
        return f"{self.group}.control"

    @property
    def state(self) -> str:
        """Where it is kept what was done with dead letters."""
        return f"{self.group}.dlq.state"

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
            f"{topic!r}, a topic of group {group!r}, has {len(topic)} characters and Kafka allows {_LONGEST}; choose a shorter group name"
        )
