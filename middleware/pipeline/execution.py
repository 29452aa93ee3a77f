"""Execution, the second phase: calls the handler. A failure becomes a disposition here and only here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import chain
from typing import Any, cast
from weakref import WeakSet

from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import StoreUnavailable
from ackwise.middleware.events import EventCode
from ackwise.middleware.log import Log
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER, Dead, Duplicate, Reason
from ackwise.middleware.message.message import Message, Messages, extending
from ackwise.middleware.pipeline.decoding import decode_again
from ackwise.middleware.pipeline.middlewarecall import MiddlewareCall
from ackwise.middleware.pipeline.publishing import Publishing, publishing
from ackwise.middleware.pipeline.rulings import Decisions, is_success
from ackwise.middleware.pipeline.settlement import Assignment, Undecided, current_assignment
from ackwise.middleware.pipeline.start import NO_LEASE, StartControl, Work, hold_back, parts_of
from ackwise.middleware.pipeline.timeout import HANG_WARNING, Overtime
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.runs.agent import Agent, HandlerCall, HandlerTask
from ackwise.middleware.runs.expiry import Expiry
from ackwise.middleware.runs.redelivery import log_spared
from ackwise.middleware.runs.run import Run, Stage, apart, count, in_order, making_messages, pick
from ackwise.middleware.usercode import Called, Raised, Returned, Stops, awaited, class_name, is_a, where_raised

log = Log()

#: Settles what is finished of the runs of an assignment.
Meanwhile = Callable[[list[Run], Assignment], Awaitable[None]]


class Execution:
    """The second phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases
        self.starts = StartControl(agent, worker)
        self.decisions = Decisions(agent, worker)
        self.overtime = Overtime(agent)
        self._expiry = Expiry(agent, wall=worker.wall, monotonic=worker.monotonic)
        if self._expiry:
            worker.flow.expiries.setdefault(agent.name, []).append(self._expiry)
        #: In a transaction the commit settles; an instance that broadcasts has nothing but its offsets.
        self._settles_in_portions = agent.kind == "message" and worker.dropping is None
        self._calls: WeakSet[asyncio.Task[None]] = WeakSet()

    async def run(
        self,
        runs: list[Run],
        assignment: Assignment,
        call: HandlerCall,
        *,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        """Run what is ADMITTED in one task; `meanwhile` settles what is finished of it while the partition drains.

        In a transaction a failure of several messages rules on none of them: the caller rolls back and finds the
        culprit. What is left undecided there is the caller's as well.
        """
        admitted = [run for run in runs if run.stage is Stage.ADMITTED]
        if admitted and self._expiry and not self.starts.is_shut(assignment, admitted[0].place, call):
            admitted = self._expire(runs, admitted)
        if not admitted:
            return
        if not assignment.cut_off:
            if self._agent.kind == "batch":
                ready = in_order(runs, admitted) if len(admitted) > 1 else admitted
                work = Work(runs, ready, deque(parts_of(ready)), assignment, call)
            else:
                ready = in_order(runs, [single for run in admitted for single in apart(runs, run)])
                work = Work(runs, ready, deque(ready), assignment, call)
            call.unstarted = work.queue
            for run in ready:
                run.call = call
            if self._agent.around is not None:
                await self._work_off_around(work, meanwhile)
            elif self._agent.kind == "batch" or self.mark(ready):
                await self._work_off(work, meanwhile)
            for run in runs:
                run.call = None
        if self._agent.order == "partition":
            hold_back(runs, self._leases, self._worker.monotonic())
        if call.transaction is None:
            if call.stopped is None and self.starts.is_shut(assignment, admitted[0].place, call):
                self.give_up_unstarted(runs, [run for run in runs if run.stage is Stage.ADMITTED and not run.began])
                await self.release()
            if undecided := [run for run in runs if run.stage is Stage.ADMITTED]:
                self.give_up(runs, undecided, call)

    def _expire(self, runs: list[Run], admitted: Sequence[Run]) -> list[Run]:
        """Take what has expired out of `admitted` all at once; return the rest.

        `begin` would do so one by one, after a middleware had it, and in an order each dead letter would hold back all behind it.
        """
        for run in admitted:
            if self._leases is None or run.claims.ids is None or self._leases.may_begin(run):
                self._expiry.bury(runs, run)
        if self._agent.order == "partition":
            hold_back(runs, self._leases, self._worker.monotonic())
        return [run for run in runs if run.stage is Stage.ADMITTED]

    @property
    def running(self) -> int:
        """Return the number of calls of the handler that have not ended."""
        return sum(not task.done() for task in self._calls)

    async def _work_off(self, work: Work, meanwhile: Meanwhile | None) -> None:
        """In one task; in several where messages may run side by side, each of which is settled as soon as it is finished."""
        beside = self._agent.kind == "message" and self.starts.runs_beside(work.call)
        calls = [work.call.part() for _ in range(min(self._agent.concurrency or 1, len(work.ready)))] if beside else [work.call]
        if beside:
            for call in calls[: work.call.slots]:
                call.slots = 1
                work.call.slots -= 1
            self.starts.end(work.call)  # it has more than were granted
        for call in calls:
            work.calls.append(call)
            self._start(work, call)
        try:
            await self._wait(work, meanwhile, settles=beside)
        finally:
            if self._agent.kind == "message":  # one line for the batch, or for a portion, however many of it failed
                self._log_outcomes(work, [run for run in work.ready if run not in work.told])

    async def _work_off_around(self, work: Work, meanwhile: Meanwhile | None) -> None:
        """Within the batch middleware, one part after the other: its task calls `_call_next`, which starts those of the handler.

        What succeeds is settled as without a middleware. What fails is decided once the middleware has ended.
        """
        call = work.call
        work.queue.clear()
        work.parts, call.unstarted = deque(parts_of(work.ready)), work
        try:
            while work.parts and call.raised is None and work.goes_on():
                if self.starts.is_shut(work.assignment, work.ready[0].place, call):
                    return
                if not (part := await self.renew(work.parts.popleft())):
                    continue
                if not self.mark(part):
                    return
                work.around = around = MiddlewareCall(call, part, self._agent.name)
                work.calls[:] = [around]
                around.task = HandlerTask(self._call_middleware(work, around), name=f"ackwise middleware of {self._agent.name}")
                self._calls.add(around.task)
                try:
                    await self._wait(work, meanwhile, settles=self.starts.runs_beside(call))
                finally:
                    around.end()
                if doomed := self._conclude(work, around):
                    work.parts.extendleft(reversed(self._halve(doomed, batch=len(part))))
                    work.until = work.until or self._worker.monotonic() + self.patience
                if work.until is not None and self._worker.monotonic() >= work.until:
                    return  # what is left goes back, as in `_handle_batches`
        finally:
            self.starts.end(call)
            self._log_outcomes(work, [run for run in work.ready if run not in work.told])

    async def _call_middleware(self, work: Work, around: MiddlewareCall) -> None:
        current_assignment.set(work.assignment)
        extending.set(partial(self._extend, around))
        publishing.set(Publishing(self._worker, around))
        batch = around.handout.batch
        if around.transaction is not None:
            batch.connection = around.transaction.connection
        assert self._agent.around is not None
        result = await self._outcome(self._agent.around(partial(self._call_next, work, around)), batch, around.runs, around)
        if around.is_abandoned:
            self.overtime.log_ended(around, isinstance(result, Returned) and is_success(result))
        else:
            around.result = result

    async def _call_next(self, work: Work, around: MiddlewareCall, given: Batch[Any]) -> object:
        """Call the handler with each message of `given`; its time is not that of the middleware."""
        with around.handout.handling(given) as places:
            around.deadline = None
            try:
                await self._handle_given(work, around, around.take(places, in_order=self._agent.order == "partition"))
            finally:
                around.note(places)
                if self.overtime.timeout and not around.is_abandoned:
                    around.deadline = self._worker.monotonic() + self.overtime.timeout
        return around.handout.status(given)

    async def _handle_given(self, work: Work, around: MiddlewareCall, given: Sequence[Run]) -> None:
        again = [(run, before) for run in given if (before := around.run_again(run)) is not None]
        for run, before in again:
            error = class_name(before.error) if isinstance(before, Raised) else CONSUME_LATER.name
            self.spare(run, at_most=run.at_most or len(around.runs), error=error)
        if not self.mark([run for run, _ in again]):
            return
        if not (ready := await self.renew(given)) or work.call.raised is not None or not work.goes_on():
            return
        work.queue.extend(ready)
        around.context = copy_context()
        if beside := self.starts.runs_beside(work.call) or work.call.is_abandoned:
            self.starts.end(work.call)  # each call takes its own slot
        most = min(self._agent.concurrency or 1, len(ready)) if self.starts.runs_beside(work.call) else 1
        for call in [work.call.part() for _ in range(most)] if beside else [work.call]:
            work.calls.append(call)
            self._start(work, call)
        work.call.stir()
        await around.wait_until_handled(partial(self._cut, work))

    @staticmethod
    def _cut(work: Work) -> None:
        """The middleware has ended `call_next`: nothing more starts, and what runs has no result unless it comes to one all the same."""
        work.queue.clear()
        for call in work.calls:
            if call is not work.around and call.task is not None:
                call.task.cancel()

    def _conclude(self, work: Work, around: MiddlewareCall) -> list[Run]:
        """Decide what the handler failed with, or as the middleware ruled. Return what would be dead only since it was together."""
        if work.call.raised is not None:  # the transaction is rolled back
            if len(work.ready) == 1:
                self._decide_failures(work, around)
            return []
        self._decide_failures(work, around)
        doomed = self._decide_rest(work, around)
        if around.transaction is None and work.call.stopped is None:
            self.give_up_unstarted(work.runs, around.left_unstarted())
        return doomed

    def _decide_failures(self, work: Work, around: MiddlewareCall) -> None:
        """Each by itself: its error says what becomes of it, unless the middleware did."""
        handout = around.handout
        for place, run, result in around.failures():
            if handout.is_overruled(place) and work.call.raised is None:
                self.decisions.let_stand(work.runs, [run], handout.batch.part([place]), around.publications)
            else:
                self.decisions.decide(work.runs, [run], handout.alone(place), result, work.broken)

    def _decide_rest(self, work: Work, around: MiddlewareCall) -> list[Run]:
        """What the handler has not had takes the result of the middleware, as a handler of batches would have made it."""
        batch, result = around.handout.batch, around.result
        rest = {place: around.runs[place] for place in around.rest()}
        if isinstance(result, Raised) and not rest:
            self._log_without_effect(work, result.error)
        result = around.handout.result_of_rest(result)
        if isinstance(result, Stops):
            work.call.stopped = result.error
        elif result is None:
            rest = {place: run for place, run in rest.items() if batch.ruling(place) is not None}
        if not rest:
            return []
        key_ids = self._begin_rest(work, around, rest)
        try:
            rest = {place: run for place, run in rest.items() if run.began and run.stage is Stage.ADMITTED}
            part, ready = batch.part([*rest]), [*rest.values()]
            if not ready or isinstance(result, Stops):
                return []
            if isinstance(result, Raised) and around.transaction is not None:
                self._fail(work.runs, work.ready, work.call, result)
                work.told.update(ready)
                return []
            if result is None:
                self.decisions.let_stand(work.runs, ready, part, around.publications)
                return []
            _, unnamed = self.decisions.decide(work.runs, ready, part, result, work.broken, around.publications)
            doomed = [run for run in unnamed if self._is_doomed(run)]
            if len(doomed) < 2 or around.transaction is not None:
                doomed = []
            if isinstance(result, Raised):
                work.raised |= {run: result.error for run in unnamed if run not in doomed}
            return doomed
        finally:
            self.end(key_ids, around)

    def _begin_rest(self, work: Work, around: MiddlewareCall, rest: Mapping[int, Run]) -> list[bytes]:
        """Let start what the middleware alone had; after the cut-off nothing does. Return the keys."""
        unbegun = [run for run in rest.values() if not run.began]
        if not work.assignment.cut_off and not work.call.called_off:
            self.begin(work.runs, unbegun, around)
        return [key_id for run in rest.values() for key_id in run.claims.ids or ()]

    def _log_without_effect(self, work: Work, error: BaseException) -> None:
        first = work.ready[0].origin
        log.warning(
            "middleware failed after its messages were handled",
            handler=self._agent.name,
            error=class_name(error),
            at=where_raised(error),
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
        )

    def _log_outcomes(self, work: Work, decided: Sequence[Run]) -> None:
        self.decisions.log_outcomes(decided, work.raised, work.broken, batch=len(work.ready))
        work.told.update(decided)
        work.broken.clear()

    def _start(self, work: Work, call: HandlerCall) -> None:
        handle = self._handle_batches if self._agent.kind == "batch" else self._handle_messages
        context = None if work.around is None or work.around.context is None else work.around.context.copy()
        name = f"ackwise handler {self._agent.name}"
        call.task = HandlerTask(handle(work, call), loop=asyncio.get_running_loop(), name=name, context=context)
        self._calls.add(call.task)

    def _go_on(self, work: Work) -> list[asyncio.Task[None]]:
        """The tasks that have not ended; one that took no further message is followed by another one.

        Raises what one raised that has ended: an error in our own machinery.
        """
        for call in work.calls:
            if call.needs_task:
                call.needs_task = False
                if work.queue and work.goes_on(call):
                    self._start(work, call)
        tasks = [call.task for call in work.calls if call.task is not None]
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        running: list[asyncio.Task[None]] = [task for task in tasks if not task.done()]
        if work.around is not None:
            work.around.look(running)
        return running

    async def renew(self, ready: Sequence[Run]) -> list[Run]:
        """Decode again what a handler has had, which it may have changed; returns what may run.

        What can't be decoded now goes back: it is decided on when it comes up again.
        """
        renewed: list[Run] = []
        for run in ready:
            if not run.is_used or await decode_again(run, self._agent):
                renewed.append(run)
                continue
            if self._leases is not None:
                self._leases.give_back(run)
            run.forget_claim()
            self._worker.postpone([run], "it could not be decoded again")
        return renewed

    def begin(self, runs: list[Run], ready: Sequence[Run], call: HandlerCall) -> list[Run]:
        """Return those of `ready` whose execution in `call` starts now.

        Left out: what succeeded here since it was granted, what runs here already, what waited until its claim had run out, what
        somebody wants dead, and what has expired.
        """
        leases = self._leases
        beginning = [
            run
            for run in ready
            if leases is None or run.claims.ids is None or leases.may_begin(run) or self._leave_out(runs, run, leases, run.claims.ids)
        ]
        if burials := self._worker.flow.burials:
            beginning = [run for run in beginning if burials.bury(runs, run)]
        if self._expiry:
            beginning = [run for run in beginning if self._expiry.bury(runs, run)]
            self._expiry.log_unreadable(beginning)
        now = self._worker.monotonic()
        if self._agent.order == "partition":
            hold_back(runs, self._leases, now)
            beginning = [run for run in beginning if run.stage is Stage.ADMITTED]
        if self._worker.flow.rate_limit_of(self._agent.name) is not None:
            self._worker.flow.start(self._agent.name, beginning)
        for run in beginning:
            run.began, run.is_used, run.started_at, run.call = True, True, now, call
            run.exec_ids = self._worker.exec_ids.take((self._agent.name, *run.place), len(run))
            if leases is not None and run.claims.ids is not None:
                leases.begin(run.claims.ids, call)
            self._record_start(run, call)
        return beginning

    def mark(self, runs: Sequence[Run]) -> bool:
        """Write the start marks of `runs`, which may start one by one from now on. Return False if none of them may.

        A handler of batches has its mark in the event of its start, which `_handle_batches` writes.
        """
        return self._worker.mark_each(self._agent.name, runs)

    def _record_start(self, run: Run, call: HandlerCall) -> None:
        record, handler, grant = self._worker.record, self._agent.name, run.claims.grant
        if (run.claims.tokens and not run.claims.unprotected) or (call.transaction is not None and run.claims.ids is not None):
            record(EventCode.CLAIMED, handler, run, with_exec_id=True, lost=grant.lost, took_unreleased=grant.took_unreleased)
        else:
            record(EventCode.STARTED, handler, run, with_exec_id=True)

    def _leave_out(self, runs: list[Run], run: Run, leases: Leases, key_ids: Sequence[bytes]) -> bool:
        """Let fall out of `run` what must not start; returns whether something is left of it."""
        for single in pick(runs, run, leases.succeeded(key_ids)):
            single.rule(Duplicate())
        if _is_left(run) and run.claims.tokens and not run.claims.unprotected:
            for single in pick(runs, run, leases.lost(run)):  # it waited too long: another worker may run it by now
                leases.give_back(single)
                single.forget_claim()
                single.postpone(self._worker.monotonic(), "its claim had run out before it started")
        if _is_left(run):
            for single in pick(runs, run, leases.running(run.claims.ids or ())):
                leases.give_back(single)
                single.forget_claim()
                self._worker.postpone([single], "its key is running here")
        return _is_left(run)

    def end(self, key_ids: Iterable[bytes], call: HandlerCall) -> None:
        """The execution in `call` of messages with these keys is over."""
        if self._leases is not None:
            self._leases.end(key_ids, call)

    async def _handle_batches(self, work: Work, call: HandlerCall) -> None:
        """Call the handler with the next part. Each call has its own task: nothing that one leaves behind meets another."""
        current_assignment.set(work.assignment)
        extending.set(partial(self._extend, call))
        publishing.set(Publishing(self._worker, call))
        while (ready := await self.starts.next(work, call)) is not None:
            doomed: list[Run] | None = []
            size = 0
            try:
                if any(run.is_used for run in ready):
                    ready = await self.renew(ready)
                    if self.starts.is_shut(work.assignment, work.ready[0].place, work.call) or not work.goes_on(call):
                        return
                if not (part := self.begin(work.runs, ready, call)):
                    continue
                key_ids, size = [*chain.from_iterable(run.claims.ids or () for run in part)], count(part)
                try:
                    doomed = await self._handle_batch(work, part, call) if self._worker.has_marked(part) else None
                finally:
                    if self._leases is not None:
                        self._leases.end(key_ids, call)
            finally:
                self.starts.end(call)
            if doomed is None or not work.goes_on(call):
                return
            if work.assignment.is_stopping:
                call.stir()
            if doomed:
                work.queue.extendleft(reversed(self._halve(doomed, batch=size)))
                work.until = work.until or self._worker.monotonic() + self.patience
            if work.until is not None and self._worker.monotonic() >= work.until:
                return  # what is left goes back, no attempt is counted, and it comes up again in parts as small
            call.needs_task = True
            return

    async def _handle_batch(self, work: Work, ready: Sequence[Run], call: HandlerCall) -> list[Run] | None:
        """Return what would be dead only because it was together with others; `None` if it was not decided."""
        batch = work.batch = self._agent.batch(Messages(count(ready), making_messages(ready)))
        if call.transaction is not None:
            batch.connection = call.transaction.connection
            for message in batch:
                message.connection = batch.connection
        handler = cast(Callable[[Batch[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(handler, batch, ready, call)
        if call.is_abandoned:
            self._take_late(call, batch, result)
        elif isinstance(result, Stops):
            work.call.stopped = result.error
        elif isinstance(result, Raised) and call.transaction is not None:
            self._fail(work.runs, ready, call, result)
        elif isinstance(result, Returned) and is_success(result) and not batch.is_ruled:
            self.decisions.succeed(work.runs, ready, call.publications)
            return []
        elif result is not None:
            unnamed = self.decisions.decide_and_log(work.runs, ready, batch, result, call.publications)
            doomed = [run for run in unnamed if self._is_doomed(run)]
            return doomed if len(doomed) > 1 and call.transaction is None else []
        else:  # called off, or undecided: what it ruled on single messages stands
            self.decisions.let_stand(work.runs, ready, batch, call.publications)
        return None

    @property
    def patience(self) -> float:
        """Seconds that messages which failed together for the last time may run again: one lease."""
        return NO_LEASE if self._leases is None else self._leases.lease

    def _is_doomed(self, run: Run) -> bool:
        """Whether `run` is a dead letter by the policy, which can't know who of a batch failed. With a limit of 0 nothing runs twice."""
        return (
            isinstance(run.disposition, Dead)
            and run.disposition.reason in (Reason.MAX_RECONSUME_TIMES, Reason.NOT_RETRIED)
            and (self._agent.in_place or self._worker.later_of(self._agent)).max_reconsume_times > 0
        )

    def _halve(self, doomed: Sequence[Run], batch: int) -> list[list[Run]]:
        failure = doomed[0].disposition.failure if isinstance(doomed[0].disposition, Dead) else None
        for run in doomed:
            self.spare(run, at_most=(len(doomed) + 1) // 2)
        log_spared(self._agent.name, doomed, batch=batch, at=None if failure is None else failure.at)
        return list(parts_of(doomed))

    def spare(self, run: Run, *, at_most: int, error: str | None = None) -> None:
        """Record that `run` failed; it runs again in a batch of `at_most`, with the claim and the attempt that it has."""
        run.error = error or run.error
        duration = round((self._worker.monotonic() - run.started_at) * 1e6)
        self._worker.record(EventCode.FAILED, self._agent.name, run, with_exec_id=True, error=run.error, duration_us=duration)
        run.run_again(at_most=at_most)

    async def _handle_messages(self, work: Work, call: HandlerCall) -> None:
        """Call the handler with one message after the other. The task of one that was cancelled takes no other."""
        current_assignment.set(work.assignment)
        extending.set(partial(self._extend, call))
        publishing.set(Publishing(self._worker, call))
        while (run := await self.starts.next(work, call)) is not None:
            try:
                if not self.begin(work.runs, [run], call):
                    continue
                try:
                    goes_on = await self._handle_message(work, run, call)
                finally:
                    if not call.is_abandoned:  # else it may run in another call by now
                        run.call = work.around if run.stage is Stage.ADMITTED else work.call
                        self.end(run.claims.ids or (), call)
            finally:
                self.starts.end(call)
            if not goes_on:
                return
            if call is not work.call or work.assignment.is_stopping:
                call.stir()
            if call.task is not None and call.task.was_cancelled:
                call.needs_task = True
                return

    async def _handle_message(self, work: Work, run: Run, call: HandlerCall) -> bool:
        """Return whether `call` may go on with those behind it."""
        message = run.message
        if call.transaction is not None:
            message.connection = call.transaction.connection
        handler = cast(Callable[[Message[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(handler, message, [run], call)
        if call.is_abandoned:
            self._take_late(call, Batch([message]), result)
            return False
        if result is None or (work.around is not None and work.around.is_cut and _is_cancelled(result)):
            return call is not work.call and self._comes_to(call)
        if isinstance(result, Stops):
            work.call.stopped = result.error
            return False
        if isinstance(result, Raised):
            if call.transaction is not None:
                call.raised = result.error
                if len(work.ready) > 1:
                    return False
            work.raised[run] = result.error
        if is_success(result):
            kept = call.publications if work.around is None else work.around.publications_of(run, call.publications)
            self.decisions.succeed(work.runs, [run], kept)
        elif work.around is None:
            self.decisions.decide(work.runs, [run], Batch([message]), result, work.broken)
        else:
            work.around.fail(run, result)
            return call.raised is None and self._agent.order != "partition"
        return call.raised is None

    @staticmethod
    def _comes_to(call: HandlerCall) -> bool:
        """One message of several was called off, or ended without a decision; whether the task may go on with the next."""
        if call.whole is None or call.whole.called_off:
            return False
        call.called_off = False
        return True

    def _fail(self, runs: list[Run], ready: Sequence[Run], call: HandlerCall, result: Raised) -> None:
        """Nothing that was written counts, so no ruling from before does either; only of one alone it is known who failed."""
        call.raised = result.error
        if count(ready) == 1:
            self.decisions.decide_and_log(runs, ready, Batch([ready[0].message]), result)

    async def _outcome(
        self, handler: Callable[[Any], Awaitable[object]], argument: object, ready: Sequence[Run], call: HandlerCall
    ) -> Called | None:
        """What the handler did; `None` if it was called off before it came to an end, or did not decide."""
        call.working_on, call.timed_out, call.in_hand, call.publications = ready, False, argument, None
        call.deadline = self._worker.monotonic() + self.overtime.timeout if self.overtime.timeout else None
        try:
            result = await awaited(handler, argument)
        finally:
            call.deadline = call.in_hand = None
        if not isinstance(result, Raised):
            return result
        if is_a(result.error, asyncio.CancelledError):
            if call.called_off:
                return None
            return Raised(self.overtime.error()) if call.timed_out else result
        return None if is_a(result.error, Undecided) else result

    def _extend(self, call: HandlerCall, seconds: float) -> None:
        if call.deadline is not None and not call.timed_out:
            call.deadline = self._worker.monotonic() + seconds

    def _abandon(self, work: Work, call: HandlerCall) -> bool:
        """Return whether its messages have failed, and others go on; in an order or a transaction all wait for its end."""
        if self._agent.order is not None or call.transaction is not None:
            return False
        self.overtime.abandon(call)
        result = Raised(self.overtime.error())
        if isinstance(call, MiddlewareCall):
            call.result = result
            work.calls.remove(call)
            return True
        self.end([key_id for run in call.working_on for key_id in run.claims.ids or ()], call)
        if self._agent.kind == "batch":
            fallen = self.decisions.decide_and_log(work.runs, call.working_on, cast(Batch[Any], work.batch), result, call.publications)
        else:
            (run,) = fallen = list(call.working_on)
            work.raised[run] = result.error
            if work.around is None:
                self.decisions.decide(work.runs, fallen, Batch([run.message]), result, work.broken)
            else:
                work.around.fail(run, result)
        call.working_on = [run.snapshot() for run in fallen]  # by its end the message may run once more
        work.calls.remove(call)
        if work.queue:
            work.calls.append(part := work.call.part())
            self._start(work, part)
        return True

    def _take_late(self, call: HandlerCall, batch: Batch[Any], result: Called | None) -> None:
        """A call that was abandoned has ended. If it succeeded this process completes the copies, and does not run them.

        Unless it was to publish something, which the copies do when they run.
        """
        succeeded = isinstance(result, Returned) and is_success(result)
        if succeeded and not batch.is_ruled and not call.publications:
            for run in call.working_on:
                self._worker.record(EventCode.LATE_SUCCESS, self._agent.name, run, with_exec_id=True)
                if self._leases is not None:
                    self._leases.remember_successes(run)
        self.overtime.log_ended(call, succeeded)

    def give_up(self, runs: list[Run], undecided: Sequence[Run], call: HandlerCall) -> None:
        """The handler ended without a decision on them: they come up again, with their own claims."""
        given_up: list[Run] = []
        for run in undecided:
            lost = pick(runs, run, run.lost_places())
            for single in lost:
                self._worker.record(EventCode.CLAIM_LOST, self._agent.name, single, with_exec_id=True)
            for part in [*lost, *([run] if len(run) and run not in lost else [])]:
                if self._leases is not None and part.claims.tokens:
                    if call.stopped is not None and part.began:
                        self._leases.drop(part)  # not released, so that it counts as lost
                    else:
                        if part not in lost:
                            self._record_release(part)
                        self._leases.give_back(part)
                part.forget_claim()
                part.postpone(self._worker.monotonic(), "its handler was called off")
                given_up.append(part)
        if self._worker.flow.rate_limit_of(self._agent.name) is not None:
            self._worker.flow.forget(self._agent.name, given_up)
        if given_up and not call.called_off:
            self._worker.postpone(given_up, "messages were not decided on")

    def give_up_unstarted(self, runs: list[Run], unstarted: Sequence[Run]) -> None:
        """They may not start now: as `give_up`, without the failure."""
        call = HandlerCall()
        call.called_off = True
        self.give_up(runs, unstarted, call)
        for run in unstarted:
            run.why = "it may not start now"

    async def release(self) -> None:
        """Tell the store at once what was given back, since others may wait for it; while it is unavailable, that waits."""
        if self._leases is not None:
            with suppress(StoreUnavailable):
                await self._leases.flush()

    async def _empty(self, work: Work) -> None:
        """Start nothing more of `work`: give back the rest, and end the tasks that wait to start something."""
        for call in work.calls:
            if isinstance(call.in_hand, Batch):
                call.in_hand.take_back()
            if call.is_waiting and call.task is not None:
                call.task.cancel()
        if len(work) and work.call.transaction is None:
            self.give_up_unstarted(work.runs, [run for run in work.take_unstarted() if run.stage is Stage.ADMITTED])
            self._worker.isolation.look()
            await self.release()

    def _record_release(self, run: Run) -> None:
        """CLAIMED has an end: otherwise the events would show a claim that was never released."""
        if run.began and not run.claims.unprotected:
            self._worker.record(EventCode.RELEASED, self._agent.name, run, with_exec_id=True)

    async def _wait(self, work: Work, meanwhile: Meanwhile | None, *, settles: bool) -> None:
        """Wait until all of `work` has end, or its calls are abandoned. `settles`: what is finished meanwhile is settled."""
        call, loop = work.call, asyncio.get_running_loop()
        portions = self._settles_in_portions and call.transaction is None and meanwhile is not None
        every = min(self.overtime.every, self._worker.settle_interval) if portions else self.overtime.every
        settled_at, waited, warned_at = loop.time(), 0.0, 0.0
        try:
            await asyncio.sleep(0)  # a handler that waits for nothing is over by then
            while tasks := self._go_on(work):
                call.moved = loop.create_future()  # before what is finished is settled: more may be finished meanwhile
                if self.starts.is_shut(work.assignment, work.ready[0].place, call):
                    await self._empty(work)
                is_due = portions and loop.time() >= settled_at + self._worker.settle_interval
                if meanwhile is not None and (settles or is_due or work.assignment.is_stopping):
                    await self._settle_portion(work, meanwhile)
                    settled_at = loop.time()
                    if any(task.done() for task in tasks):
                        continue
                done, _ = await asyncio.wait({*tasks, call.moved}, timeout=every, return_when=asyncio.FIRST_COMPLETED)
                for gone in self.overtime.sweep([*work.calls], self._worker.monotonic()):
                    settles |= self._abandon(work, gone)
                self._worker.isolation.look()
                if not done:
                    waited += every
                if waited >= warned_at + HANG_WARNING:
                    warned_at = waited
                    self._log_hanging(work, waited)
        except asyncio.CancelledError:
            call.call_off()
            raise

    async def _settle_portion(self, work: Work, meanwhile: Meanwhile) -> None:
        """Settle what is finished. If that can't be done now nothing more starts, and it is repeated, as that of a whole batch is."""
        if self._agent.in_place is not None:  # what is suspended has no disposition after that
            self._log_outcomes(work, [run for run in work.ready if run.stage is Stage.RULED and run not in work.told])
        await meanwhile(work.runs, work.assignment)
        if not work.is_stuck and self._settles_in_portions and any(map(is_stuck, work.runs)):
            work.is_stuck = True
            await self._empty(work)

    def _log_hanging(self, work: Work, waited: float) -> None:
        first = work.ready[0].origin
        log.warning(
            "handler hangs",
            handler=self._agent.name,
            seconds=round(waited, 3),
            messages=count(work.ready),
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
        )


def is_stuck(run: Run) -> bool:
    """Return whether the event log or the store does not take its outcome now."""
    return run.stage in (Stage.PUBLISHED, Stage.RECORDED) and run.leader is None


def _is_cancelled(result: Called) -> bool:
    return isinstance(result, Raised) and is_a(result.error, asyncio.CancelledError)


def _is_left(run: Run) -> bool:
    """Return whether something is left of `run` that may run."""
    return bool(len(run)) and run.stage is Stage.ADMITTED
