"""`HandlerCall`: one task that executes a handler, for one message or one batch after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence, Sized
from typing import Any

from ackwise.middleware.transaction import Transaction

__all__ = ["HandlerCall", "HandlerTask"]


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
        self.is_abandoned = False  #: it did not end when it was cancelled, and nobody waits for it any more

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
        """Until it is stirred, one of `tasks` has ended, or `timeout` seconds are over."""
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
