"""Work of a stream: one message or a batch, what was sent because of it, and its dispositions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

from ackwise.middleware.errors import InvalidRuling
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import DONE, Delayed, Done, Failure
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.rulings import dispositions_of
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.middleware.usercode import Raised, Returned

_RETURNED: Final = Returned(None)

#: What the task that asks is working on.
current_work: ContextVar[Work | None] = ContextVar("ackwise_work", default=None)


def current_batch() -> Batch[Any]:
    """The batch that the agent which asks is working on: that of `take`, or the one message of a loop over messages.

    Rule on it as on the batch of a handler: `current_batch().ack_index = i`, `.later(message)`, `.dead(message)`. Its messages
    are in the order of what `take` gave, which may come from several partitions. Raises `InvalidRuling` outside of an agent.
    """
    work = current_work.get()
    if work is None:
        raise InvalidRuling("current_batch() was called where no agent works on a message; call it inside an agent's loop")
    return work.batch


class Work:
    """`members` are in the hands of the agent `handler` from now on."""

    __slots__ = ("_batch", "_handler", "_sends", "_shown", "members")

    def __init__(self, members: Sequence[InFlight], handler: str) -> None:
        self.members = self._shown = members
        self._handler = handler
        self._batch: Batch[Any] | None = None
        self._sends: set[asyncio.Future[Any]] = set()

    @property
    def batch(self) -> Batch[Any]:
        """The same as a handler of batches would get."""
        if self._batch is None:
            self._batch = Batch([cast(Message[Any], member.message) for member in self._shown])
        return self._batch

    @property
    def is_open(self) -> bool:
        """Return whether one of its messages is not decided."""
        return any(member.where is not Where.BACK for member in self.members)

    def show(self, members: Sequence[InFlight]) -> None:
        """The agent sees `members` only: its filters took the others out, which were acknowledged."""
        self._shown, self._batch = members, None

    def rule(self, batch: Batch[Any]) -> None:
        """`batch` is what the agent sees, and has ruled on."""
        self._batch = batch

    def waits_for(self, other: Work) -> None:
        """It is not done before what was sent because of `other` is acknowledged."""
        self._sends |= other._sends

    def track(self, send: asyncio.Future[Any]) -> None:
        """It is not done before `send` is, and has failed if that fails."""
        self._sends.add(send)

    def succeed(self) -> None:
        """The agent has gone on: what it did not rule on is done."""
        self._after_sends(self._conclude)

    def ack(self, member: InFlight) -> None:
        """The agent has acknowledged this one itself."""
        self._after_sends(partial(self._ack, member))

    def fail(self, error: BaseException) -> None:
        """The agent raised `error` on it."""
        self.conclude(Raised(error))

    def conclude(self, result: Returned[Any] | Raised, *, keep_ack_index_on_error: bool = False) -> None:
        """The agent did this with it; what it ruled on holds as in a handler. It waits for what was sent only if a message can be done."""
        then = partial(self._conclude, result=result, keep_ack_index_on_error=keep_ack_index_on_error)
        if isinstance(result, Raised) and not keep_ack_index_on_error and (self._batch is None or not self._batch.rulings):
            then(None)
        else:
            self._after_sends(then)

    def stop(self, error: BaseException) -> None:
        """The agent raised `error`, which stops the app: nothing is decided, and what was handed over with it is not started."""
        for member in self.members:
            member.stop(error)

    def forsake(self) -> None:
        """Its agent was cancelled and decides nothing any more: it comes up again."""
        for member in self.members:
            member.leave_undecided()

    def _ack(self, member: InFlight, unsent: BaseException | None) -> None:
        if unsent is None:
            member.decide()
        else:
            self._conclude(unsent)

    def _conclude(
        self, unsent: BaseException | None, *, result: Returned[Any] | Raised = _RETURNED, keep_ack_index_on_error: bool = False
    ) -> None:
        if unsent is not None and not isinstance(result, Raised):
            result = Raised(unsent)
        error = result.error if isinstance(result, Raised) else None
        if self._batch is None and result is _RETURNED:
            for member in self.members:
                member.decide(DONE)
            return
        dispositions = dispositions_of(self.batch, result, handler=self._handler, keep_ack_index_on_error=keep_ack_index_on_error)
        if unsent is not None:  # which of them sent it is unknown
            failed = Delayed(self.batch.delay_level, failure=Failure.of(unsent))
            dispositions = [failed if isinstance(disposition, Done) else disposition for disposition in dispositions]
        ruled = [disposition is self.batch.ruling(index) for index, disposition in enumerate(dispositions)]
        company = max(1, ruled.count(False))
        for member, disposition, is_ruled in zip(self._shown, dispositions, ruled, strict=True):
            member.decide(disposition, None if is_ruled else error, company=company)
        if error is not None:
            self.forsake()  # those that the agent did not see, and that still waited for what was sent because of them

    def _after_sends(self, then: Callable[[BaseException | None], None]) -> None:
        """`then`, once everything that was sent is acknowledged, or with why one of them is not."""
        if not self._sends:
            then(None)
            return
        waiting = {send for send in self._sends if not send.done()}
        failed = next((error for send in self._sends - waiting if (error := _error(send)) is not None), None)
        if failed is not None or not waiting:
            then(failed)
        else:
            self._sends = waiting
            next(iter(waiting)).add_done_callback(lambda _: self._after_sends(then))


def _error(send: asyncio.Future[Any]) -> BaseException | None:
    return asyncio.CancelledError("a message that it sent was given up") if send.cancelled() else send.exception()
