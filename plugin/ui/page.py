"""Pages as values: a template with what it shows, where it is, and the commands that it names. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ackwise.plugin.pages.render import Answer
from ackwise.plugin.status.standing import APP, GROUP

__all__ = ["Leaf", "Named", "Page"]


class Leaf(NamedTuple):
    """What is on a page: a template with its values."""

    title: str
    template: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Page:
    """A page at `path`. `answer` is given the query, each name once; what it raises of ours is shown as a sentence."""

    path: str
    answer: Callable[[Mapping[str, str]], Awaitable[Leaf | Answer]]
    name: str = ""
    """As the navigation has it; empty for a page that only others lead to."""


class Named(NamedTuple):
    """How the group was named on the command line: an app, or a group with where it is, if that was said."""

    whose: str
    brokers: str | None = None
    dlq: str | None = None
    events: tuple[str, ...] = ()
    """The folders of its events."""

    def command(self, words: Sequence[str]) -> str:
        """The command with these words, among which `APP` and `GROUP` stand for the app; ready for a shell, whatever is in them."""
        named = [self._word(word) for word in words]
        return shlex.join(["ackwise", *named, *(self._options(words[0]) if GROUP in words else ())])

    def story(self, message: str) -> str:
        """The command that tells what became of `message`, a `topic/partition/offset` or a key."""
        return shlex.join(["ackwise", "why", message, *(self.events or ("EVENTS",))])

    def _word(self, word: str) -> str:
        if word == GROUP or (word == APP and ":" in self.whose):
            return self.whose
        return word

    def _options(self, name: str) -> list[str]:
        given = {"--brokers": self.brokers, "--dlq": self.dlq}
        return [part for option, value in given.items() if value is not None for part in (option, value)]
