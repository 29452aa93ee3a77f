"""A batch middleware around a handler function of single messages, which are called one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

from ackwise.middleware.log import Log
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Message
from ackwise.middleware.owntask import ended, in_a_task, outcome_of
from ackwise.middleware.pipeline.middlewarecall import Handout
from ackwise.middleware.pipeline.rulings import is_success
from ackwise.middleware.pipeline.settlement import Undecided, current_assignment
from ackwise.middleware.pipeline.streaming import InFlight, Where
from ackwise.middleware.runs.agent import Agent as Handler
from ackwise.middleware.usercode import Called, Raised, Returned, Stops, class_name, is_a, where_raised
from ackwise.plugin.faust.fauststream import Stream
from ackwise.plugin.faust.work import Work, current_work

log = Log()


class Around:
    """One call of the batch middleware of `declared`, around what was handed over together. A success stands; see `Handout`."""

    def __init__(self, declared: Handler, stream: Stream, members: Sequence[InFlight]) -> None:
        self._declared = declared
        self._stream = stream
        self._members = members
        self._handout = Handout([cast(Message[Any], member.message) for member in members], declared.name)
        self._work = Work(members, declared.name)  #: of the middleware: what that sends
        self._work.rule(self._handout.batch)
        self._failed: dict[int, Work] = {}
        self._concluded: set[InFlight] = set()

    async def run(self) -> None:
        """Call the middleware, and decide what the handler did not. Raises what stops the app, or `CancelledError`."""
        assert self._declared.around is not None
        current_assignment.set(self._members[0].assignment)  # what was handed over together is of one partition
        current_work.set(self._work)
        task, found = in_a_task(self._declared.around(self._call_next), self._handout.batch)
        current_work.set(None)
        try:
            is_cancelled = await ended(task)
            self._handout.is_over = True
            result: Called | None = outcome_of(found)
            if isinstance(result, Raised) and is_a(result.error, Undecided, *([asyncio.CancelledError] if is_cancelled else [])):
                result = None
            self._decide_failures()
            self._decide_rest(result)
        finally:
            for member in self._members:
                if member not in self._concluded:
                    member.leave_undecided()
        if is_cancelled:
            raise asyncio.CancelledError

    async def _call_next(self, given: Batch[Any]) -> object:
        """Call the handler with each message of `given`, one after the other."""
        with self._handout.handling(given) as places:
            try:
                for place in places:
                    await self._handle(place)
            except BaseException:  # the middleware was cancelled, or does not wait any more
                self._handout.forget(places)
                raise
        return self._handout.status(given)

    async def _handle(self, place: int) -> None:
        try:
            async with self._stream.work_on(self._members[place]) as work:
                if work is not None:
                    await self._call(place, work)
        finally:
            current_work.set(self._work)

    async def _call(self, place: int, work: Work) -> None:
        work.waits_for(self._work)
        task, found = in_a_task(self._declared.call, work.batch[0])
        is_cancelled = await ended(task)
        result = outcome_of(found)
        if is_cancelled and isinstance(result, Raised) and is_a(result.error, asyncio.CancelledError):
            raise result.error
        if isinstance(result, Stops):
            work.stop(result.error)
        elif isinstance(result, Raised) and is_a(result.error, Undecided):
            work.forsake()
        elif is_success(result):
            self._handout.succeed(place)
            self._conclude(work, result)
        else:
            self._handout.failed[place], self._failed[place] = result, work
        if is_cancelled:
            raise asyncio.CancelledError

    def _decide_failures(self) -> None:
        """Each by itself: its error says what becomes of it, unless the middleware did."""
        handout = self._handout
        for place, result in handout.failed.items():
            work = self._failed[place]
            work.rule(handout.batch.part([place]) if handout.is_overruled(place) else handout.alone(place))
            self._conclude(work, result)

    def _decide_rest(self, result: Called | None) -> None:
        """What the handler has not had takes the result of the middleware, as a handler of batches would have made it."""
        batch, given = self._handout.batch, self._handout.given
        rest = [place for place, member in enumerate(self._members) if place not in given and member.where is not Where.BACK]
        if isinstance(result, Raised) and not rest:
            self._log_without_effect(result.error)
        result = self._handout.result_of_rest(result)
        if result is None:
            rest = [place for place in rest if batch.ruling(place) is not None]
        rest = [place for place in rest if self._has_begun(self._members[place])]
        work = Work([self._members[place] for place in rest], self._declared.name)
        if isinstance(result, Stops):
            work.stop(result.error)
            if not rest:
                raise result.error
        elif rest:
            work.waits_for(self._work)
            work.rule(batch.part(rest))
            self._conclude(work, Returned(None) if result is None else result)

    @staticmethod
    def _has_begun(member: InFlight) -> bool:
        return member.where is Where.TAKEN or (member.where is Where.WAITING and member.take(time.monotonic()))

    def _conclude(self, work: Work, result: Returned[Any] | Raised) -> None:
        self._concluded.update(work.members)
        work.conclude(result, keep_ack_index_on_error=self._declared.keep_ack_index_on_error)

    def _log_without_effect(self, error: BaseException) -> None:
        first = self._members[0].message
        log.warning(
            "middleware failed after its messages were handled",
            handler=self._declared.name,
            error=class_name(error),
            at=where_raised(error),
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
        )
