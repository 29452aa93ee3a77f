"""`Entry`: one message on its way from fetch to commit, the object that visibly changes while it passes the pipeline."""

from __future__ import annotations

import asyncio
import enum
from typing import Any

from ackwise.middleware.disposition import Disposition
from ackwise.middleware.message import Delivery, Message
from ackwise.middleware.retry import SendBack
from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Transaction
from ackwise.middleware.wire import Copy

__all__ = ["Entry", "HandlerRun", "Stage"]


class Stage(enum.IntEnum):
    """How far a message has come. Settling resumes at the step that failed; only SETTLED moves the watermark."""

    FETCHED = 0
    ADMITTED = 1
    """May run: its claim is granted, or it needs none."""
    RULED = 2
    """Has a disposition."""
    PUBLISHED = 3
    """Its copy or dead letter is acknowledged, or it needs none."""
    RECORDED = 4
    """Its events are durable."""
    SETTLED = 5
    """Done, parked or dead, and the store knows."""


class HandlerRun:
    """One execution of a handler, which may be called off when a claim is lost or the worker stops."""

    __slots__ = ("called_off", "moved", "raised", "stopped", "task", "transaction")

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


class Entry:
    """A delivery with everything that was found out about it. The host makes it; the pipeline alone changes it."""

    __slots__ = (
        "__weakref__",
        "alone",
        "at_most",
        "began",
        "claim_lost",
        "copy",
        "deadline",
        "dedup_hash",
        "delivery",
        "disposition",
        "elsewhere",
        "error",
        "exec_id",
        "fencing_token",
        "key",
        "leader",
        "lost",
        "message",
        "not_before",
        "prepared",
        "recorded",
        "renewed_at",
        "run",
        "send_back",
        "stage",
        "started_at",
        "succeeded",
        "token",
        "took_unreleased",
        "tries",
        "unprotected",
        "why",
    )

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.stage = Stage.FETCHED
        self.prepared = False  #: decoded, and its key is known
        self.message: Message[Any] | None = None
        self.key: ClaimKey | None = None  #: `None`: not deduplicated
        self.dedup_hash: int | None = None
        self.token = 0  #: of the claim that is held or asked for; 0 for none
        self.fencing_token = 0  #: grows with each grant of its key
        self.lost = 0
        self.took_unreleased = False
        self.unprotected = False  #: runs without a claim, since the store is down and the policy says so
        self.renewed_at = 0.0  #: monotonic seconds when the lease was last asked for
        self.deadline = 0.0  #: monotonic seconds after which the claim counts as lost
        self.claim_lost = False
        self.alone = False  #: workers died of this message: it runs as the only claim of this worker
        self.at_most: int | None = None  #: messages in a batch with it, itself included, once it would have died with more of them
        self.began = False  #: a handler has seen it since it was admitted
        self.elsewhere = False  #: IN_FLIGHT_ELSEWHERE was written
        self.leader: Entry | None = None  #: the entry of the same key in the same batch that this one follows
        self.run: HandlerRun | None = None
        self.exec_id: int | None = None
        self.started_at = 0.0
        self.disposition: Disposition | None = None
        self.error: str | None = None  #: class name of what the handler raised
        self.succeeded = False  #: the handler succeeded with this very record, in this process
        self.send_back: SendBack | None = None
        self.copy: Copy | None = None
        self.recorded = False  #: its outcome is in the sink's buffer
        self.not_before = 0.0  #: monotonic seconds before which it does not come up again
        self.tries = 0
        self.why = ""  #: why it is held

    def postpone(self, until: float, why: str) -> None:
        """It comes up again at `until` (monotonic seconds), from the stage it has reached."""
        self.not_before = until
        self.why = why

    def rule(self, disposition: Disposition) -> None:
        """Its fate is decided."""
        self.disposition = disposition
        self.stage = Stage.RULED

    def run_again(self, *, at_most: int) -> None:
        """It would have died with others, and runs again in a batch of `at_most`: same claim, same attempt."""
        self.stage = Stage.ADMITTED
        self.disposition = self.send_back = None
        self.began = False
        self.at_most = at_most

    def forget_claim(self) -> None:
        """Back to where it was fetched: whatever was decided without an outcome that stands is decided anew."""
        self.stage = Stage.FETCHED
        self.token = 0
        self.claim_lost = self.began = self.recorded = self.unprotected = False
        self.disposition = self.send_back = self.copy = self.leader = None

    def undo(self) -> None:
        """Back to where it was fetched, and nothing that its handler did has happened: it was rolled back."""
        self.forget_claim()
        self.succeeded = False

    def __repr__(self) -> str:
        return f"<Entry {self.delivery.topic}/{self.delivery.partition}/{self.delivery.offset} {self.stage.name} {self.why}>"
