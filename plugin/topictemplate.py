"""`TopicTemplate`: the naming pattern of the topics that Ackwise creates for groups, such as `{group}.{kind}`. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError

DEFAULT_TOPIC_NAMES: Final = "{group}.{kind}"

#: The fields. The two words of the kind `dlq.state` are joined by a dot, or by the character after the colon.
_FIELD: Final = re.compile(r"\{(group|kind(?::[._-])?)\}")

_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]*")

#: First and second word of the kinds with two words.
_SECOND: Final = {"dlq": "state"}
_SINGLE: Final = ("retry", "dlq", "delay", "control")


class TopicOfGroup(NamedTuple):
    """The parts of a topic's name: the group and the kind."""

    group: str
    words: tuple[str, ...]
    """The words of its kind, such as `("dlq", "state")`."""

    @property
    def kind(self) -> str:
        """`retry`, `dlq`, `state` (for `dlq.state`), `control` or `delay`."""
        return "state" if self.words[1:] == ("state",) else self.words[0]


class TopicTemplate:
    """A text with `{group}` and `{kind}` once each; `{kind:-}` joins the words of a kind with `-` instead of a dot.

    Raises `ConfigurationError` for an invalid text.
    """

    def __init__(self, text: str = DEFAULT_TOPIC_NAMES) -> None:
        fields = _FIELD.findall(text) if isinstance(text, str) else []
        if sorted(field[:5].rstrip(":") for field in fields) != ["group", "kind"]:
            raise ConfigurationError(
                f"topic_names is {text!r}; it must contain {{group}} and {{kind}} once each, as in {DEFAULT_TOPIC_NAMES!r} or "
                "'acme-{group}-{kind:-}', or topics of two groups or kinds would have the same name"
            )
        rest = _FIELD.sub("", text)
        if not _LEGAL.fullmatch(rest):
            raise ConfigurationError(
                f"topic_names is {text!r}; apart from {{group}} and {{kind}} it may have letters, digits, '.', '_' and '-'"
            )
        if "}{" in text:
            raise ConfigurationError(
                f"topic_names is {text!r}; put '.', '_' or '-' between {{group}} and {{kind}}, or they could not be distinguished"
            )
        self.text = text
        kind = next(field for field in fields if field.startswith("kind"))
        self._between = kind.partition(":")[2] or "."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def name(self, group: str, *words: str) -> str:
        """Return the name of a topic of `group`; `words` are those of its kind, such as `"dlq", "state"`."""
        kind = self._between.join(words)
        return _FIELD.sub(lambda field: group if field[1] == "group" else kind, self.text)

    def of(self, topic: str) -> TopicOfGroup | None:
        """Return group and kind of `topic`; `None` if its name does not match."""
        found = self._pattern.fullmatch(topic)
        if found is None:
            return None
        return TopicOfGroup(found["group"], tuple(found["kind"].split(self._between, 1)))

    def kind_of(self, topic: str) -> str | None:
        """Return the kind of `topic`; `None` if its name does not match."""
        return None if (of := self.of(topic)) is None else of.kind

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        between = re.escape(self._between)
        kinds = "|".join([*(f"{first}{between}{second}" for first, second in _SECOND.items()), *_SINGLE])  # the longer ones first
        parts = re.split(r"(\{[^}]*\})", self.text)
        made = {"{group}": "(?P<group>.+?)"}
        return re.compile("".join(made.get(part, f"(?P<kind>{kinds})") if part.startswith("{") else re.escape(part) for part in parts))
