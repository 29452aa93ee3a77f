"""`Agent`: a handler with what the pipeline needs to know of it, resolved when the app starts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from ackwise.middleware.batch import Batch
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Delivery, Message
from ackwise.middleware.ordering import Order, RetryInPlace
from ackwise.middleware.wire import HANDLER_LIMIT

__all__ = ["CONSUME_TIMEOUT", "MOST_THREADS", "Agent", "readers_of"]

#: Seconds. RocketMQ: `consumeTimeout`, 15 minutes.
CONSUME_TIMEOUT: Final = 900.0

#: Threads of one handler at most; `concurrency` sets a lower bound.
MOST_THREADS: Final = 64


@dataclass(frozen=True, slots=True)
class Agent:
    """One handler of a group. `call` takes a `Batch` or one `Message`, as `kind` says, with the user's middleware around it.

    One that takes a stream is a loop, which is not called. `max_wait` is in seconds. Raises `ConfigurationError` for a name
    that a copy can't carry.
    """

    name: str
    topics: tuple[str, ...]
    kind: Literal["batch", "message", "stream"]
    call: Callable[[Batch[Any]], Awaitable[object]] | Callable[[Message[Any]], Awaitable[object]]
    decode: Callable[[Any], object]  #: of a value, or as `decodes` says; raises anything for one that can't be decoded
    max_batch: Annotated[int, "messages in a batch at most"] = 200
    max_wait: Annotated[float, "time that a batch waits to fill"] = 0.0
    keep_ack_index_on_error: Annotated[bool, "keep the prefix up to `ack_index` when the handler raises after it"] = False
    concurrency: Annotated[int | None, "calls of its handler at a time in this worker"] = None
    consume_timeout: Annotated[float, "time that a call of its handler may take; 0 for any"] = CONSUME_TIMEOUT
    in_thread: bool = False  #: its handler is a plain `def`, which nothing can cancel
    order: Order = None  #: what runs one after the other
    order_by: Callable[[Message[Any]], object] | None = None  #: finds the key of a message for the order `key`; `None`: the record's
    in_place: RetryInPlace | None = None  #: how a message comes back where there is an order; `None` without one
    max_messages: Annotated[
        int | None,
        "unsettled messages of all its partitions in a worker, which share them",
    ] = None
    max_bytes: Annotated[int | None, "the same in bytes"] = None
    batch: Callable[[Sequence[Message[Any]]], Batch[Any]] = Batch  #: makes what a handler of batches gets
    around: Callable[[Callable[[Any], Awaitable[object]]], Callable[[Any], Awaitable[object]]] | None = None
    """Puts the batch middleware around what calls the handler with each message of a batch; only for a handler of messages."""
    loops: asyncio.Semaphore | None = None  #: one slot for each loop of the user's that takes its batches
    message: Callable[[Delivery], Message[Any]] | None = None  #: makes the message itself, where decoding takes more than the value
    decodes: Literal["value", "message"] = "value"  #: what `decode` takes
    decodes_async: bool = False  #: `decode` returns an awaitable
    decodes_own: bool = False  #: `decode` is the user's, and may raise `CodecUnavailable`
    pattern: re.Pattern[str] | None = None  #: it reads topics whose whole name matches as well, also those that are made later

    @property
    def overlaps(self) -> bool:
        """Whether its batches of one partition may be at work side by side."""
        return self.concurrency is not None and self.concurrency > 1 and self.order != "partition"

    @property
    def slots(self) -> int | None:
        """Calls at a time at most: for a plain `def` there are so many threads, and a message that waits for one has not begun."""
        if not self.in_thread:
            return self.concurrency
        return min(self.concurrency or MOST_THREADS, MOST_THREADS)

    @property
    def room(self) -> int:
        """How many messages of one partition may be at work: a batch that is consumed, and what is admitted or settled meanwhile."""
        calls = self.concurrency or 1
        return max(2, calls) * self.max_batch if self.kind == "batch" else max(2 * self.max_batch, calls)

    def __post_init__(self) -> None:
        if (size := len(self.name.encode("utf-8", "backslashreplace"))) > HANDLER_LIMIT:
            raise ConfigurationError(
                f"an agent has a name of {size} bytes, and copies carry at most {HANDLER_LIMIT}; give it a shorter one with name="
            )


def readers_of(agents: Iterable[Agent], topic: str) -> list[Agent]:
    """Those of `agents` that read `topic`: who names it, or else whose pattern matches its whole name."""
    agents = list(agents)
    named = [agent for agent in agents if topic in agent.topics]
    return named or [agent for agent in agents if agent.pattern is not None and agent.pattern.fullmatch(topic)]
