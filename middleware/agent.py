"""`Agent`: a handler with what the pipeline needs to know of it, resolved when the app starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ackwise.middleware.batch import Batch
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Delivery, Message
from ackwise.middleware.ordering import Order, RetryInPlace
from ackwise.middleware.wire import HANDLER_LIMIT

__all__ = ["Agent"]


@dataclass(frozen=True, slots=True)
class Agent:
    """One handler of a group. `call` takes a `Batch` or one `Message`, as `kind` says, with the user's middleware around it.

    One that takes a stream is a loop, which is not called. `within` is in seconds. Raises `ConfigurationError` for a name
    that a copy can't carry.
    """

    name: str
    topics: tuple[str, ...]
    kind: Literal["batch", "message", "stream"]
    call: Callable[[Batch[Any]], Awaitable[object]] | Callable[[Message[Any]], Awaitable[object]]
    decode: Callable[[bytes | None], object]  #: raises anything for a value that can't be decoded
    max_batch: Annotated[int, "messages in a batch at most"] = 200
    within: Annotated[float, "time that a batch waits to fill"] = 0.0
    keep_ack_index_on_error: Annotated[bool, "keep the prefix up to `ack_index` when the handler raises after it"] = False
    order: Order = "none"  #: what runs one after the other
    order_by: Callable[[Message[Any]], object] | None = None  #: finds the key of a message for the order `key`; `None`: the record's
    in_place: RetryInPlace | None = None  #: how a message comes back where there is an order; `None` without one
    batch: Callable[[Sequence[Message[Any]]], Batch[Any]] = Batch  #: makes what a handler of batches gets
    message: Callable[[Delivery], Message[Any]] | None = None  #: makes the message itself, where decoding takes more than the value

    @property
    def overlaps(self) -> bool:
        """Whether its batches of one partition may be at work side by side."""
        return False

    def __post_init__(self) -> None:
        if (size := len(self.name.encode("utf-8", "backslashreplace"))) > HANDLER_LIMIT:
            raise ConfigurationError(
                f"an agent has a name of {size} bytes, and copies carry at most {HANDLER_LIMIT}; give it a shorter one with name="
            )
