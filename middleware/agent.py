"""A handler and what the pipeline needs to know of it, resolved when the app starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from ackwise.middleware.batch import Batch
from ackwise.middleware.message import Message

__all__ = ["Agent"]


@dataclass(frozen=True, slots=True)
class Agent:
    """One handler of a group. `call` takes a `Batch` or one `Message`, as `kind` says, with the user's middleware around it."""

    name: str
    topics: tuple[str, ...]
    kind: Literal["batch", "message"]
    call: Callable[[Batch[Any]], Awaitable[object]] | Callable[[Message[Any]], Awaitable[object]]
    decode: Callable[[bytes | None], object]  #: raises anything for a value that can't be decoded
    max_batch: int = 200
    within: float = 0.0  #: seconds to wait for a batch to fill
    keep_ack_index_on_error: bool = False
