"""Messages in the hands of a loop, which takes them and decides on them in its own time, one by one or in a batch."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Sequence

from ackwise.middleware.disposition import DONE, Disposition
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.message import Message
from ackwise.middleware.run import Run
from ackwise.middleware.settlement import Assignment

__all__ = ["Flight", "InFlight", "Where"]


class Where(enum.Enum):
    """How far a message came in the loop that it was handed to."""

    WAITING = "waiting"
    """Nobody has seen it: it may be taken back."""
    TAKEN = "taken"
    """The loop works on it, and alone may say what becomes of it."""
    BACK = "back"
    """It is decided, or it was taken back."""


class InFlight(HandlerCall):
    """One message in a loop. Whoever runs the loop takes it, and decides on it once; what comes after counts for nothing."""

    __slots__ = (
        "_begin", "_due_in", "_flight", "again_until", "assignment", "company", "disposition", "error", "limit", "message", "run", "where",
    )  # fmt: skip

    def __init__(
        self,
        run: Run,
        message: Message[object],
        limit: int,
        *,
        again_until: float | None = None,
        begin: Callable[[InFlight], bool] | None = None,
        due_in: Callable[[InFlight], float] | None = None,
        assignment: Assignment | None = None,
    ) -> None:
        """`begin` is asked when the loop takes it: `False` if it must not run any more. `assignment` is where it is from.

        `due_in` says before that for how many seconds its rate lets it wait.
        """
        super().__init__()
        self.assignment = assignment
        self._begin = begin
        self._due_in = due_in
        self.run = run
        self.message = message
        self.limit = limit  #: how many messages may be in a batch with it, itself included
        self.where = Where.WAITING
        self.disposition: Disposition | None = None  #: `None` once it is back: nobody decided
        self.error: BaseException | None = None  #: what the loop raised
        self.company = 1  #: how many messages the loop raised it on, this one included
        self.again_until = (
            again_until  #: until when it may run again in smaller company (monotonic seconds), if it has failed in a larger one
        )
        self._flight: Flight | None = None

    def due_in(self) -> float:
        """Seconds for which a loop may not take it yet, since its rate lets it wait."""
        return 0.0 if self._due_in is None else self._due_in(self)

    def take(self, now: float) -> bool:
        """A loop works on it from `now` on (monotonic seconds); `False` if it is not to run any more, and is back."""
        if self._begin is not None and not self._begin(self):
            self._return()
            return False
        self.where = Where.TAKEN
        self.run.started_at = now
        return True

    def leave_undecided(self) -> None:
        """Nobody will decide on it: it comes up again after a while, and no attempt is counted."""
        if self.where is not Where.BACK:
            self._return()

    def decide(self, disposition: Disposition = DONE, error: BaseException | None = None, *, company: int = 1) -> None:
        """This is what becomes of it; `error` is what was raised, if that is why, on `company` messages at once."""
        if self.where is not Where.BACK:
            self.disposition, self.error, self.company = disposition, error, company
            self._return()

    def stop(self, error: BaseException) -> None:
        """The loop raised `error`, which stops the app: it stays undecided, and those with it that are still waiting are taken back."""
        self.stopped, flight = error, self._flight
        self.leave_undecided()
        if flight is not None:
            for member in flight.members:
                member.recall()

    def is_with(self, other: InFlight) -> bool:
        """Whether both were handed over together, and are still away."""
        return self._flight is not None and self._flight is other._flight

    def recall(self) -> None:
        """Take it back if nobody has seen it: it comes up again, and no attempt is counted."""
        if self.where is Where.WAITING:
            self.called_off, flight = True, self._flight
            self._return()
            if flight is not None:
                flight.stir()

    def call_off(self) -> None:
        """Give it up, seen or not. One whose claim was lost while a loop works on it is waited for: it must not run beside itself."""
        if self.where is Where.WAITING or (self.where is Where.TAKEN and not self.run.claim_lost):
            self.called_off = True
            self._return()

    def _return(self) -> None:
        self.where = Where.BACK
        flight, self._flight = self._flight, None  # or both would wait for the garbage collector
        if flight is not None:
            flight.returned(self)


class Flight:
    """Messages that were handed over together."""

    def __init__(self, members: Sequence[InFlight]) -> None:
        self.members: list[InFlight] = []
        self._away = 0
        self._back: list[InFlight] = []
        self._waiter: asyncio.Future[None] | None = None
        self.join(members)

    def join(self, members: Sequence[InFlight]) -> None:
        """Let `members` be of it."""
        self.members += members
        self._away += len(members)
        for member in members:
            member._flight = self

    @property
    def is_over(self) -> bool:
        """Whether all of them are back, and were collected."""
        return self._away == 0 and not self._back

    def __len__(self) -> int:
        """How many of them hold a claim that could be given back."""
        return len(self._back) + sum(member.where is Where.WAITING for member in self.members)

    def returned(self, member: InFlight) -> None:
        """`member` is back."""
        self._away -= 1
        self._back.append(member)
        if self._away == 0:
            self.stir()

    def stir(self) -> None:
        """Let who waits for them look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def collect(self) -> list[InFlight]:
        """Those that came back since this was asked last."""
        back, self._back = self._back, []
        return back

    def recall(self) -> None:
        """Take back those that nobody has seen."""
        for member in self.members:
            member.recall()

    def taken(self) -> Iterable[InFlight]:
        """Those that a loop works on."""
        return (member for member in self.members if member.where is Where.TAKEN)

    async def wait(self, seconds: float) -> None:
        """Until all of them are back, or who waits is to look, for at most `seconds`."""
        if self._away == 0:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._waiter}, timeout=seconds)
