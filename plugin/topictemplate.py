"""Topic template: how the topics that Ackwise makes for groups are called, such as `{group}.{kind}`. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError

DEFAULT_TOPIC_NAMES: Final = "{group}.{kind}"

#: What may stand in braces. The kind of two words, `dlq.state`, has a dot between them, or what is behind the colon.
_FIELD: Final = re.compile(r"\{(group|kind(?::[._-])?)\}")

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]*")

#: What a kind of two words starts with, and what its second word may be.
_SECOND: Final = {"dlq": "state"}
_SINGLE: Final = ("retry", "dlq", "delay", "control")


class TopicOfGroup(NamedTuple):
    """What the name of a topic says: whose it is, and what for."""

    group: str
    words: tuple[str, ...]
    """Of its kind, such as `("dlq", "state")`."""

    @property
    def kind(self) -> str:
        """`retry`, `dlq`, `state` for that of dead letters, `control` or `delay`."""
        return "state" if self.words[1:] == ("state",) else self.words[0]


class TopicTemplate:
    """A text in which `{group}` and `{kind}` stand once each; `{kind:-}` has `-` between the words of a kind, not a dot.

    Raises `ConfigurationError` for what is no such text.
    """

    def __init__(self, text: str = DEFAULT_TOPIC_NAMES) -> None:
        fields = _FIELD.findall(text) if isinstance(text, str) else []
        if sorted(field[:5].rstrip(":") for field in fields) != ["group", "kind"]:
            raise ConfigurationError(
                f"topic_names is {text!r}; {{group}} and {{kind}} must stand in it once each, as in {DEFAULT_TOPIC_NAMES!r} or "
                "'acme-{group}-{kind:-}', or topics of two groups or of two kinds would have one name"
            )
        rest = _FIELD.sub("", text)
        if not _LEGAL.fullmatch(rest):
            raise ConfigurationError(
                f"topic_names is {text!r}; beside {{group}} and {{kind}} it may have letters, digits, '.', '_' and '-'"
            )
        if "}{" in text:
            raise ConfigurationError(
                f"topic_names is {text!r}; put '.', '_' or '-' between {{group}} and {{kind}}, or they could not be told apart"
            )
        self.text = text
        kind = next(field for field in fields if field.startswith("kind"))
        self._between = kind.partition(":")[2] or "."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def name(self, group: str, *words: str) -> str:
        """The name of the topic of `group` whose kind has these words, such as `"dlq", "state"`."""
        kind = self._between.join(words)
        return _FIELD.sub(lambda field: group if field[1] == "group" else kind, self.text)

    def of(self, topic: str) -> TopicOfGroup | None:
        """Whose topic `topic` is, by its name; `None` if it is called like none that Ackwise makes."""
        found = self._pattern.fullmatch(topic)
        if found is None:
            return None
        return TopicOfGroup(found["group"], tuple(found["kind"].split(self._between, 1)))

    def kind_of(self, topic: str) -> str | None:
        """The kind of a topic, by its name; `None` if it is called like none that Ackwise makes."""
        return None if (of := self.of(topic)) is None else of.kind

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        between = re.escape(self._between)
        kinds = "|".join([*(f"{first}{between}{second}" for first, second in _SECOND.items()), *_SINGLE])  # the longer ones first
        parts = re.split(r"(\{[^}]*\})", self.text)
        made = {"{group}": "(?P<group>.+?)"}
        return re.compile("".join(made.get(part, f"(?P<kind>{kinds})") if part.startswith("{") else re.escape(part) for part in parts))
