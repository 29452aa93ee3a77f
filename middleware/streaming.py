"""Streaming: the steps of a batch that a loop takes in its own time, message by message, such as an agent of a stream processor.

    admit a batch → hand it over → settle what comes back, as it comes back

Admission and settlement are those of every pipeline: two exchanges with the store for a batch, however slowly or quickly
the loop works. A batch that takes longer is settled in slices, so that little is repeated if the worker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Final, Protocol

from ackwise.middleware.disposition import DONE
from ackwise.middleware.execution import is_stuck
from ackwise.middleware.fate import batch_limit, is_last, log_spared
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.inflight import Flight, InFlight
from ackwise.middleware.log import Log
from ackwise.middleware.pipeline import Phases, follow
from ackwise.middleware.run import Run, Stage, apart, in_order
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.tracebacks import where_raised
from ackwise.middleware.usercode import class_name

__all__ = ["Streaming", "Stretch"]

log = Log()

#: Seconds between warnings about messages that do not come back.
HANG_WARNING: Final = 60.0


class Stretch(Assignment, Protocol):
    """What these steps ask of the partition besides."""

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
        else:
            self._give_to(call, admitted, stretch)

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
        limit = 1 if run.alone else batch_limit(run, self._agent.max_batch, self._worker.later, self._agent.in_place)
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
                back += [member.run for member in landed if member.run.stage is not Stage.ADMITTED]  # those are away again
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
        """Those of `landed` whose fate is known. The others would die together, and nobody knows of which of them.

        They run again in halves, under the same claim and attempt, for at most one lease; what is left then comes up again, and no
        attempt is counted.
        """
        known, doomed = list[InFlight](), list[InFlight]()
        for member in landed:
            is_doomed = member.company > 1 and is_last(member.run, member.disposition or DONE, self._worker.later, member.error)
            (doomed if is_doomed else known).append(member)
        if not doomed:
            return known
        now = self._worker.monotonic()
        until = min(member.again_until or now + self._execution.patience for member in doomed)
        for member in doomed:
            self._execution.end(member.run.ids or (), member)
            self._execution.spare(member.run, at_most=max(1, member.company // 2), error=class_name(member.error))
        at = None if doomed[0].error is None else where_raised(doomed[0].error)
        log_spared(self._agent.name, [member.run for member in doomed], batch=doomed[0].company, at=at)
        if now < until and not stretch.is_stopping:
            self._give_to(call, await self._execution.renew([member.run for member in doomed]), stretch, again_until=until)
            return [*known, *(member for member in doomed if member.run.stage is not Stage.ADMITTED)]
        for member in doomed:
            member.disposition = None
        return [*known, *doomed]

    def _conclude_landed(self, landed: Sequence[InFlight]) -> bool:
        """Return whether something is given back that did not start."""
        for member in landed:
            member.run.call = None
        landed = [member for member in landed if member.run.stage is Stage.ADMITTED]  # the others were not begun
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
            self._execution.end(member.run.ids or (), member)
        return any(member.called_off for member in undecided)

    def _log_hanging(self, flight: Flight, seconds: float) -> None:
        taken = list(flight.taken())
        if taken:
            origin = taken[0].message
            log.warning(
                "a handler does not come back, its partition waits and nothing is lost",
                handler=self._agent.name,
                seconds=seconds,
                messages=len(taken),
                topic=origin.topic,
                partition=origin.partition,
                offset=origin.offset,
            )
