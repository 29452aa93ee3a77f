"""What a handler raises to rule on its messages: `Later` and `Reject`."""

from __future__ import annotations

from typing import Any

from ackwise.middleware.duration import parse_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.usercode import plain, shown


class Later(Exception):
    """Raise it in a handler: the messages without their own ruling come back after `delay`, seconds or a text such as `"30s"`.

    Or after the delay of `level` (`Later(level=3)`; below 0 is a dead letter, as in RocketMQ), or, with neither, as the retry policy says.
    Raises `ConfigurationError` for both, and for what is no duration or level.
    """

    def __init__(self, delay: float | str | None = None, *, level: int | None = None) -> None:
        super().__init__()
        if delay is not None and level is not None:
            raise ConfigurationError("Later was given a delay and a level; give one of them")
        number: Any = plain(level)
        if level is not None and type(number) is not int:
            raise ConfigurationError(f"level of Later is {shown(level, repr)}; it must be a whole number")
        self.delay = None if delay is None else parse_duration(delay, what="delay of Later")
        self.level: int | None = number

    def __str__(self) -> str:
        return f"consume later (level={self.level}, delay={self.delay})"


class Reject(Exception):
    """Raise it in a handler: the messages without their own ruling become dead letters, with this text."""
