"""Answers to requests: what they are made of, and the code of what is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka.errors import BrokerResponseError

from ackwise.testing.kafka.frames import Asked

__all__ = ["NODE", "Answer", "Serve", "Values", "tried"]

Values = Mapping[str, Any]
"""The fields of a request, or of a part of one."""

Answer = dict[str, Any]
"""The fields of an answer, or of a part of one."""

Serve = Callable[[Asked, int], Awaitable[Answer]]
"""Serves a request; with another code than 0 it is refused with that, and has no effect."""

NODE: Final = 1
"""The id of the one broker."""


def tried(refused: int, act: Callable[..., object], *arguments: object) -> Answer:
    """The code of what Kafka would refuse, or of what a fault does."""
    if refused:
        return {"error_code": refused, "error_message": None}
    try:
        act(*arguments)
    except BrokerResponseError as error:
        return {"error_code": error.errno, "error_message": str(error)}
    return {"error_code": 0, "error_message": None}
