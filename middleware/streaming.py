"""The spine around a loop that takes messages in its own time, such as the agent of a stream processor.

    admit a batch → hand it over → settle what comes back, as it comes back

Admission and settlement are those of every pipeline: two exchanges with the store for a batch, however slowly or quickly
the loop works. A batch that takes longer is settled in slices, so that little is repeated if the worker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import DONE
from ackwise.middleware.entry import Entry, Stage
from ackwise.middleware.events import EventCode
from ackwise.middleware.fate import is_last
from ackwise.middleware.inflight import Flight, InFlight
from ackwise.middleware.log import Log
from ackwise.middleware.message import Message
from ackwise.middleware.pipeline import HandlerStopped, Pipeline, follow
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.whereabouts import where_raised
from ackwise.middleware.worker import Worker

__all__ = ["StreamingPipeline", "Stretch"]

log = Log()

#: Seconds after which what has come back of a batch is settled, while the rest is still away.
SLICE: Final = 0.5

#: Seconds for which what would die together runs again, where there is no lease.
_LEASE: Final = 30.0

#: Seconds between warnings about messages that do not come back.
HANG_WARNING: Final = 60.0


class Stretch(Assignment, Protocol):
    """What the streaming pipeline asks of the partition besides."""

    @property
    def is_stopping(self) -> bool:
        """Nothing new may begin, and what has begun comes to its end."""
        ...

    @property
    def turn(self) -> asyncio.Lock:
        """Held while a batch is admitted, so that batches are handed over in the order of their offsets."""
        ...

    def finish(self, entries: Sequence[Entry]) -> None:
        """Those of `entries` that are SETTLED may move the watermark."""
        ...


class StreamingPipeline(Pipeline):
    """The spine for one loop.

    `hand_over` gives it messages, each of which it takes and decides on once. `flush` returns when everything that the
    loop has sent so far is acknowledged: nothing counts as done before what it led to.
    """

    def __init__(
        self,
        agent: Agent,
        worker: Worker,
        *,
        hand_over: Callable[[Sequence[InFlight]], None],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(agent, worker)
        self._give = hand_over
        self._flush = flush

    async def __call__(self, entries: Sequence[Entry], assignment: Assignment) -> None:
        stretch = cast(Stretch, assignment)
        async with AsyncExitStack() as company:
            async with stretch.turn:
                flight = Flight(())
                stopped = self._admission.prepare(entries)
                if stopped is None and await self._may_begin(entries) and await company.enter_async_context(self._turn(entries)):
                    await self._admission.claim(entries)
                    flight = self._hand_over([entry for entry in entries if entry.stage is Stage.ADMITTED])
            with self._worker.isolation.recallable(flight.recall):
                await self._land(flight, stretch)
        follow(entries)
        await self._flush()
        await self._settle(entries, stretch)
        stopped = stopped or next((member.stopped for member in flight.members if member.stopped is not None), None)
        if stopped is not None:
            raise HandlerStopped(stopped)

    def _hand_over(self, admitted: Sequence[Entry]) -> Flight:
        flight = Flight(())
        self._give_to(flight, admitted)
        return flight

    def _give_to(self, flight: Flight, entries: Sequence[Entry], *, again_until: float | None = None) -> None:
        """An execution of each of `entries` begins, in no larger company than each of them bears."""
        members = []
        for entry in entries:
            entry.run = member = InFlight(entry, cast(Message[object], entry.message), self._company(entry), again_until=again_until)
            members.append(member)
        self._execution.begin(entries)
        flight.join(members)
        self._give(members)

    def _company(self, entry: Entry) -> int:
        limit = 1 if entry.alone else self.batch_limit(entry)
        return limit if entry.at_most is None else min(limit, entry.at_most)

    async def _land(self, flight: Flight, stretch: Stretch) -> None:
        """Rule on what comes back until all of it is; what takes long is settled meanwhile, slice by slice."""
        silent, back = 0.0, list[Entry]()
        try:
            while True:
                await flight.wait(SLICE)
                landed = self._spare(flight, flight.collect(), stretch)
                self._rule(landed)
                if flight.is_over:
                    return
                back += [member.entry for member in landed]
                silent = 0.0 if landed else silent + SLICE
                if silent and silent % HANG_WARNING == 0:
                    self._tell_hanging(flight, silent)
                now = self._worker.monotonic()
                if due := [entry for entry in back if entry.not_before <= now]:
                    await self._flush()
                    await self._settle(due, stretch)
                    stretch.finish(due)
                    back = [entry for entry in back if Stage.FETCHED < entry.stage < Stage.SETTLED]
        except asyncio.CancelledError:
            for member in flight.members:
                member.call_off()
            raise

    def _spare(self, flight: Flight, landed: Sequence[InFlight], stretch: Stretch) -> list[InFlight]:
        """Those of `landed` whose fate is known. The others would die together, and nobody knows of which of them.

        They run again in halves, under the same claim and attempt, for at most one lease; what is left then comes up again, and no
        attempt is counted.
        """
        known, doomed = list[InFlight](), list[InFlight]()
        for member in landed:
            is_doomed = member.company > 1 and is_last(member.entry, member.disposition or DONE, self._worker.later, member.error)
            (doomed if is_doomed else known).append(member)
        if not doomed:
            return known
        now = self._worker.monotonic()
        until = min(member.again_until or now + self._patience for member in doomed)
        for member in doomed:
            member.entry.at_most = max(1, member.company // 2)
            error = type(member.error).__name__
            self._worker.record(
                self._worker.event(EventCode.FAILED, self.agent.name, member.entry, error=error, exec_id=member.entry.exec_id)
            )
        self._tell_spared(doomed)
        if now < until and not stretch.is_stopping:
            self._give_to(flight, [member.entry for member in doomed], again_until=until)
            return known
        for member in doomed:
            member.disposition = None
        return [*known, *doomed]

    @property
    def _patience(self) -> float:
        leases = self._worker.leases
        return _LEASE if leases is None else leases.lease

    def _rule(self, landed: Sequence[InFlight]) -> None:
        for member in landed:
            member.entry.run = None
        self._execution.conclude([(member.entry, member.disposition, member.error) for member in landed if member.disposition is not None])
        undecided = [member for member in landed if member.disposition is None]
        for of_a_kind in (
            [member for member in undecided if member.called_off],
            [member for member in undecided if member.stopped is not None],
            [member for member in undecided if not member.called_off and member.stopped is None],
        ):
            if of_a_kind:
                self._execution.give_up([member.entry for member in of_a_kind], of_a_kind[0])

    def _tell_spared(self, doomed: Sequence[InFlight]) -> None:
        first = doomed[0]
        log.warning(
            "a batch raised that would be dead letters, its messages run again in smaller batches",
            handler=self.agent.name,
            messages=len(doomed),
            batch=first.company,
            topic=first.message.topic,
            partition=first.message.partition,
            offset=first.message.offset,
            error=type(first.error).__name__,
            at=where_raised(first.error) if first.error is not None else None,
        )

    def _tell_hanging(self, flight: Flight, seconds: float) -> None:
        taken = list(flight.taken())
        if taken:
            origin = taken[0].message
            log.warning(
                "a handler does not come back, its partition waits and nothing is lost",
                handler=self.agent.name,
                seconds=seconds,
                messages=len(taken),
                topic=origin.topic,
                partition=origin.partition,
                offset=origin.offset,
            )
