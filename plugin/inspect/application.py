"""Protocol of an app, whatever its host, as the commands see it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ackwise.plugin.group.group import Group
from ackwise.plugin.inspect.explain import Explanation

__all__ = ["Application"]


@runtime_checkable
class Application(Protocol):
    """An app that can be asked, without being started. Each raises `ConfigurationError` for what a start would refuse."""

    def explain(self) -> Explanation:
        """What it does with its messages."""
        ...

    def group(self) -> Group:
        """What it needs of Kafka and of this machine."""
        ...
