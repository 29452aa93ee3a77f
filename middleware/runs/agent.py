"""`Agent`: a handler with what the pipeline needs to know of it, resolved when the app starts. `HandlerCall`: a task that executes it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Message
from ackwise.middleware.message.wire import HANDLER_LIMIT
from ackwise.middleware.policies.policies import Dedup, Transactional
from ackwise.middleware.policies.retry import ConsumeLater, Order, RetryInPlace
from ackwise.middleware.storage.transaction import Transaction

#: Seconds. RocketMQ: `consumeTimeout`, 15 minutes.
CONSUME_TIMEOUT: Final = 900.0

#: Threads of one handler at most; `concurrency` sets a lower bound.
MOST_THREADS: Final = 64


@dataclass(frozen=True, slots=True)
class Agent:
    """One handler of a group. `call` takes a `Batch` or one `Message`, as `kind` says, with the user's middleware around it.

    One that takes a stream is a loop, which is not called. `max_wait` and `max_age` are in seconds. Raises `ConfigurationError` for a name
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
    later: ConsumeLater | None = None  #: how its failed messages are retried; `None`: as those of the worker
    dedup: Dedup | Transactional | None = None  #: how its keys are found; `None`: as those of the worker
    max_age: Annotated[float, "age at which a message is a dead letter `expired` instead of running; 0 for any"] = 0.0
    expires: Annotated[bool, "messages are dead letters `expired` once the time in their header `expires` is past"] = False
    pattern: re.Pattern[str] | None = None  #: it reads topics whose whole name matches as well, also those that are made later

    @property
    def overlaps(self) -> bool:
        """Return whether its batches of one partition may be at work side by side."""
        return self.concurrency is not None and self.concurrency > 1 and self.order != "partition"

    @property
    def slots(self) -> int | None:
        """Calls at a time at most: for a plain `def` there are as many threads, and a message that waits for one has not started."""
        if not self.in_thread:
            return self.concurrency
        return min(self.concurrency or MOST_THREADS, MOST_THREADS)

    @property
    def room(self) -> int:
        """Return how many messages of one partition may be at work: a batch that is consumed, and what is admitted or settled meanwhile."""
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


class HandlerTask(asyncio.Task[None]):
    """A task that calls a handler, and knows whether anything has cancelled it: what is left of that must not meet another message."""

    was_cancelled = False

    def cancel(self, msg: Any | None = None) -> bool:
        """As every task."""
        self.was_cancelled = True
        return super().cancel(msg)


class HandlerCall:
    """The execution of a handler, which may be called off when a claim is lost or the worker stops.

    One that works side by side with others on the same messages is a `part` of theirs.
    """

    __slots__ = (
        "__weakref__", "called_off", "deadline", "given", "in_hand", "is_abandoned", "is_waiting", "moved", "needs_task", "parts",
        "publications", "raised", "slots", "stopped", "task", "timed_out", "transaction", "unstarted", "whole", "working_on",
    )  # fmt: skip

    def __init__(self, transaction: Transaction | None = None) -> None:
        self.task: HandlerTask | None = None
        self.needs_task = False  #: its task has ended, and another one goes on with what is left
        self.called_off = False
        self.moved: asyncio.Future[None] | None = None  #: who waits for the handler is woken
        self.transaction = transaction  #: what the handler writes in
        self.raised: BaseException | None = None  #: what the handler raised in a transaction, which has to be rolled back
        self.stopped: BaseException | None = None  #: what the handler raised to stop the app
        self.whole: HandlerCall | None = None  #: what this is a part of
        self.parts: list[HandlerCall] = []
        self.unstarted: Sized = ()  #: what is claimed for it, or may be by now, and is not started
        self.slots = 0  #: that it has of those of its handler in this worker
        self.is_waiting = False  #: for a slot or for its rate, with nothing in its hands
        self.working_on: Sequence[Any] = ()  #: the runs that the handler has now
        self.in_hand: object = None  #: the message or batch that the handler has now
        self.publications: dict[int, list[Any]] | None = None  #: what it publishes for them, by offset
        self.given: Collection[int] = ()  #: places of what a middleware has given to the handler
        self.deadline: float | None = None  #: of what it has now, monotonic seconds
        self.timed_out = False  #: cancelled since the deadline is over
        self.is_abandoned = False  #: it did not end when it was cancelled, and was abandoned

    def part(self) -> HandlerCall:
        """One more task that works on the same messages."""
        made = HandlerCall(self.transaction)
        made.whole = self
        self.parts.append(made)
        return made

    def recall(self) -> None:
        """The partition takes nothing new: what is finished is settled now, and not once all of it is."""
        self.stir()

    def stir(self) -> None:
        """Something is finished, or may start or not start: who waits for the handler may look."""
        moved = (self.whole or self).moved
        if moved is not None and not moved.done():
            moved.set_result(None)

    async def wait(self, *tasks: asyncio.Future[Any], timeout: float | None = None) -> None:
        """Wait until it is stirred, one of `tasks` has ended, or `timeout` seconds are over."""
        self.moved = asyncio.get_running_loop().create_future()
        await asyncio.wait({self.moved, *tasks}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    def time_left(self, now: float) -> float:
        """Seconds for which a message that is to run alone waits for it at most: without end while something could yet be given back."""
        if self.unstarted:
            return float("inf")
        calls = [call for call in (self, *self.parts) if call.deadline is not None and not (call.timed_out or call.is_abandoned)]
        return max((call.deadline - now for call in calls if call.deadline is not None), default=0.0)

    def call_off(self) -> None:
        """Cancel the handler; what it has not ruled on stays undecided."""
        self.called_off = True
        for part in self.parts:
            part.call_off()
        if self.task is not None:
            self.task.cancel()
        else:
            self.stir()
