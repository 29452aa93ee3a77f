"""`HandlerCall`: one execution of a handler, from its start to its end."""

from __future__ import annotations

import asyncio

from ackwise.middleware.transaction import Transaction

__all__ = ["HandlerCall"]


class HandlerCall:
    """One execution of a handler, which may be called off when a claim is lost or the worker stops."""

    __slots__ = ("__weakref__", "called_off", "moved", "raised", "stopped", "task", "transaction")

    def __init__(self, transaction: Transaction | None = None) -> None:
        self.task: asyncio.Task[None] | None = None
        self.called_off = False
        self.moved: asyncio.Future[None] | None = None  #: who waits for the handler is woken
        self.transaction = transaction  #: what the handler writes in
        self.raised: BaseException | None = None  #: what the handler raised in a transaction, which has to be rolled back
        self.stopped: BaseException | None = None  #: what the handler raised to stop the app

    def recall(self) -> None:
        """The partition takes nothing new: what is finished is settled now, and not once all of it is."""
        self.stir()

    def stir(self) -> None:
        """Something is finished: who waits for the handler may look."""
        if self.moved is not None and not self.moved.done():
            self.moved.set_result(None)

    def call_off(self) -> None:
        """Cancel the handler; what it has not ruled on stays undecided."""
        self.called_off = True
        if self.task is not None:
            self.task.cancel()
