"""Streaming: the steps of a batch whose messages a loop, such as an agent of a stream processor, takes and decides in its own time.

    admit a batch → hand it over → settle what comes back, as it comes back

Admission and settlement are those of every pipeline: two exchanges with the store per batch, however fast the loop works. A batch that
takes longer is settled in slices, so that little is repeated if the worker dies.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Final, Protocol

from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import DONE, Disposition
from ackwise.middleware.message.message import Message
from ackwise.middleware.pipeline.execution import is_stuck
from ackwise.middleware.pipeline.pipeline import Phases, follow
from ackwise.middleware.pipeline.settlement import Assignment
from ackwise.middleware.runs.agent import HandlerCall
from ackwise.middleware.runs.redelivery import batch_limit, is_last, log_spared
from ackwise.middleware.runs.run import Run, Stage, apart, in_order
from ackwise.middleware.usercode import class_name, where_raised


class Where(enum.Enum):
    """How far a message came in the loop that it was handed to."""

    WAITING = "waiting"
    """Not handed out yet: it may be taken back."""
    TAKEN = "taken"
    """The loop works on it, and alone may say what becomes of it."""
    BACK = "back"
    """It is decided, or it was taken back."""


class InFlight(HandlerCall):
    """One message in a loop. The loop takes it and decides on it once; a later decision is ignored."""

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
        """`start` is asked when the loop takes it: `False` if it must not run any more. `assignment` is where it is from.

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
        self.disposition: Disposition | None = None  #: `None` once it is back: undecided
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
        """It will not be decided on: it comes up again after a while, and no attempt is counted."""
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
        """Return whether both were handed over together, and are still away."""
        return self._flight is not None and self._flight is other._flight

    def recall(self) -> None:
        """Take it back if it was not handed out: it comes up again, and no attempt is counted."""
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
        """Return whether all of them are back, and were collected."""
        return self._away == 0 and not self._back

    def __len__(self) -> int:
        """Return the number of messages whose claim could be given back."""
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
        """Take back those that were not handed out."""
        for member in self.members:
            member.recall()

    def taken(self) -> Iterable[InFlight]:
        """Those that a loop works on."""
        return (member for member in self.members if member.where is Where.TAKEN)

    async def wait(self, seconds: float) -> None:
        """Wait until all of them are back, or who waits is to look, for at most `seconds`."""
        if self._away == 0:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._waiter}, timeout=seconds)


log = Log()

#: Seconds between warnings about messages that do not come back.
HANG_WARNING: Final = 60.0


class Stretch(Assignment, Protocol):
    """What else these steps ask of the partition."""

    @property
    def turn(self) -> asyncio.Lock:
        """Held while a batch is admitted, so that batches are handed over in the order of their offsets."""
        ...


class _Away(HandlerCall):
    """A batch in the hands of a loop."""

    __slots__ = ("company", "flight")

    def __init__(self) -> None:
        super().__init__()
        self.flight = Flight(())
        self.company = AsyncExitStack()  #: beside other batches, until all of it is back

    def stir(self) -> None:
        super().stir()
        self.flight.stir()


class Streaming:
    """The steps for one loop.

    `hand_over` gives it messages, each of which it takes and decides on once. `flush` returns when everything that the
    loop has sent so far is acknowledged: nothing counts as done before what it led to.
    """

    fails_together = True

    def __init__(self, phases: Phases, *, hand_over: Callable[[Sequence[InFlight]], None], flush: Callable[[], Awaitable[None]]) -> None:
        self._agent, self._worker = phases.agent, phases.worker
        self._admission = phases.admission
        self._execution = phases.execution
        self._settle = phases.settlement
        self._give = hand_over
        self._flush = flush
        self._slice = phases.worker.settle_interval  #: seconds after which what has come back is settled, while the rest is still away

    def new_call(self) -> _Away:
        """A batch in the hands of the loop."""
        return _Away()

    def turn(self, stretch: Stretch) -> AbstractAsyncContextManager[object]:
        """Batches of a partition are handed over in the order of their offsets."""
        return stretch.turn

    async def execute(self, runs: list[Run], stretch: Stretch, call: _Away) -> None:
        """Claim and hand over; a partition that is stopping by then is handed nothing."""
        try:
            if await call.company.enter_async_context(self._execution.starts.turn(runs, stretch, call)):
                await self._hand_over(runs, stretch, call)
        except BaseException:
            await call.company.aclose()
            raise

    async def _hand_over(self, runs: list[Run], stretch: Stretch, call: _Away) -> None:
        await self._admission.claim(runs)
        admitted = in_order(runs, [single for run in [*runs] if run.stage is Stage.ADMITTED for single in apart(runs, run)])
        call.unstarted = call.flight
        if stretch.is_stopping or stretch.cut_off:
            self._execution.give_up_unstarted(runs, admitted)
            await self._execution.release()
        elif self._execution.mark(admitted):
            self._give_to(call, admitted, stretch)
        else:
            self._execution.give_up(runs, admitted, HandlerCall())
            await self._execution.release()

    async def settle(self, runs: list[Run], stretch: Stretch, call: _Away) -> None:
        """Settle what comes back, as it comes back, and the rest once all of it is."""
        async with call.company:
            await self._land(call, stretch)
        follow(runs)
        await self._flush()
        await self._settle(runs, stretch)
        if call.stopped is None:
            call.stopped = next((member.stopped for member in call.flight.members if member.stopped is not None), None)

    def _begin(self, call: _Away, member: InFlight) -> bool:
        assert member.assignment is not None
        if self._execution.starts.is_shut(member.assignment, member.run.place, call):
            member.called_off = True
            return False
        return bool(self._execution.begin([member.run], [member.run], member))

    def _due_in(self, member: InFlight) -> float:
        return self._worker.flow.start_after(self._agent.name, [member.run])

    def _give_to(self, call: _Away, runs: Sequence[Run], stretch: Stretch, *, again_until: float | None = None) -> None:
        """The loop may take `runs`, in no larger company than each of them bears."""
        members = []
        for run in runs:
            run.call = member = InFlight(
                run,
                run.message,
                self._company(run),
                again_until=again_until,
                begin=partial(self._begin, call),
                due_in=self._due_in,
                assignment=stretch,
            )
            members.append(member)
        call.flight.join(members)
        self._give(members)

    def _company(self, run: Run) -> int:
        limit = 1 if run.alone else batch_limit(run, self._agent.max_batch, self._worker.later_of(self._agent), self._agent.in_place)
        return limit if run.at_most is None else min(limit, run.at_most)

    async def _land(self, call: _Away, stretch: Stretch) -> None:
        """Rule on what comes back until all of it is; what takes long is settled meanwhile, slice by slice."""
        silent, warned_at, back, flight = 0.0, 0.0, list[Run](), call.flight
        try:
            while True:
                await flight.wait(self._slice)
                if flight.members and self._execution.starts.is_shut(stretch, flight.members[0].run.place, call):
                    flight.recall()
                landed = await self._spare(call, flight.collect(), stretch)
                if self._conclude_landed(landed):
                    await self._execution.release()
                self._worker.isolation.look()
                if flight.is_over:
                    return
                back += [member.run for member in landed if member.run.stage is not Stage.ADMITTED]  # those are unavailable again
                silent, warned_at = (0.0, 0.0) if landed else (silent + self._slice, warned_at)
                if silent >= warned_at + HANG_WARNING:
                    warned_at = silent
                    self._log_hanging(flight, round(silent, 3))
                now = self._worker.monotonic()
                if due := [run for run in back if run.not_before <= now]:
                    await self._flush()
                    await self._settle(due, stretch)
                    stretch.pass_settled(due)
                    if any(map(is_stuck, due)):  # nothing more starts before the event log and the store take it
                        flight.recall()
                    back = [run for run in back if Stage.FETCHED < run.stage < Stage.SETTLED]
        except asyncio.CancelledError:
            for member in flight.members:
                member.call_off()
            raise

    async def _spare(self, call: _Away, landed: Sequence[InFlight], stretch: Stretch) -> list[InFlight]:
        """Those of `landed` whose fate is known. The others would die together, and which one is the cause is unknown.

        They run again in halves, under the same claim and attempt, for at most one lease; what is left then comes up again, and no
        attempt is counted.
        """
        known, doomed = list[InFlight](), list[InFlight]()
        for member in landed:
            is_doomed = member.company > 1 and is_last(
                member.run, member.disposition or DONE, self._worker.later_of(self._agent), member.error
            )
            (doomed if is_doomed else known).append(member)
        if not doomed:
            return known
        now = self._worker.monotonic()
        until = min(member.again_until or now + self._execution.patience for member in doomed)
        for member in doomed:
            self._execution.end(member.run.claims.ids or (), member)
            self._execution.spare(member.run, at_most=max(1, member.company // 2), error=class_name(member.error))
        at = None if doomed[0].error is None else where_raised(doomed[0].error)
        log_spared(self._agent.name, [member.run for member in doomed], batch=doomed[0].company, at=at)
        if now < until and not stretch.is_stopping and self._execution.mark([member.run for member in doomed]):
            self._give_to(call, await self._execution.renew([member.run for member in doomed]), stretch, again_until=until)
            return [*known, *(member for member in doomed if member.run.stage is not Stage.ADMITTED)]
        for member in doomed:
            member.disposition = None
        return [*known, *doomed]

    def _conclude_landed(self, landed: Sequence[InFlight]) -> bool:
        """Return whether something is given back that did not start."""
        for member in landed:
            member.run.call = None
        landed = [member for member in landed if member.run.stage is Stage.ADMITTED]  # the others were not started
        self._execution.decisions.conclude(
            [(member.run, member.disposition, member.error) for member in landed if member.disposition is not None]
        )
        undecided = [member for member in landed if member.disposition is None]
        for of_a_kind in (
            [member for member in undecided if member.called_off],
            [member for member in undecided if member.stopped is not None],
            [member for member in undecided if not member.called_off and member.stopped is None],
        ):
            if of_a_kind:
                undecided_runs = [member.run for member in of_a_kind]
                self._execution.give_up([*undecided_runs], undecided_runs, of_a_kind[0])
        for member in landed:
            self._execution.end(member.run.claims.ids or (), member)
        return any(member.called_off for member in undecided)

    def _log_hanging(self, flight: Flight, seconds: float) -> None:
        taken = list(flight.taken())
        if taken:
            origin = taken[0].message
            log.warning(
                "handler hangs",
                handler=self._agent.name,
                seconds=seconds,
                messages=len(taken),
                topic=origin.topic,
                partition=origin.partition,
                offset=origin.offset,
            )
