"""Pausing: which handlers and partitions start nothing new, and by whose request. Pure.

Code pauses in its own process, a command in every worker of the group. Each takes back only its own pause; a handler or a partition
is paused while one of them is in effect. Source: RocketMQ `DefaultMQPushConsumer.suspend` and `resume`, for the whole consumer only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import TopicPartition

By = Literal["code", "command"]


class Target(NamedTuple):
    """What can be paused: the handler of this name, or this partition."""

    handler: str | None
    partition: TopicPartition | None = None

    def __str__(self) -> str:
        if self.partition is None:
            return str(self.handler)
        return f"{self.partition.topic}/{self.partition.partition}"


def target_of(text: str, *, handlers: Collection[str], topics: Collection[str]) -> Target:
    """Return the target that `text` names: one of `handlers`, or a partition of `topics` such as `orders/3`. Raise `ConfigurationError`."""
    if text in handlers:
        return Target(text)
    topic, slash, number = text.rpartition("/") if isinstance(text, str) else ("", "", "")
    if slash and topic in topics and number.isascii() and number.isdigit():
        return Target(None, TopicPartition(topic, int(number)))
    known = [*sorted(handlers), *(f"{each}/0" for each in sorted(topics))]
    near = difflib.get_close_matches(str(text), known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"such as {' or '.join(map(repr, known))}"
    raise ConfigurationError(f"{text!r} is neither a handler of this app nor a partition that it reads; {advice}")


class Pausing:
    """What is paused. Listeners (`listen`) are called after each change."""

    def __init__(self) -> None:
        self.paused: dict[Target, set[By]] = {}  #: everything that is paused, and by which commands
        self._listeners: list[Callable[[], None]] = []

    def pause(self, target: Target, by: By) -> bool:
        """From now on `target` takes nothing new. Returns whether that is news."""
        said = self.paused.setdefault(target, set())
        if by in said:
            return False
        said.add(by)
        self._changed()
        return True

    def resume(self, target: Target, by: By) -> bool:
        """`by` does not hold `target` any more. Returns whether it did."""
        said = self.paused.get(target, set())
        if by not in said:
            return False
        said.discard(by)
        if not said:
            del self.paused[target]
        self._changed()
        return True

    def is_paused(self, handler: str | None, partition: TopicPartition) -> bool:
        """Return whether `handler`, or every handler, takes nothing of `partition` now."""
        return bool(self.paused) and (Target(handler) in self.paused or Target(None, partition) in self.paused)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, until what this returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()
