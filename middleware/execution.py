"""Execution, the second phase: calls the handler. A failure becomes a disposition here and only here."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import DONE, ConsumeStatus, Dead, Disposition, Duplicate, Later, Reason, Suspended
from ackwise.middleware.events import EventCode
from ackwise.middleware.fate import decide, log_broken_policy, log_spared
from ackwise.middleware.handlercall import HandlerCall
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log
from ackwise.middleware.message import Message, Messages, extending
from ackwise.middleware.ordering import RetryInPlace, nothing_done_behind
from ackwise.middleware.overtime import HANG_WARNING, Overtime
from ackwise.middleware.rulings import Raised, Returned, dispositions_of, is_success, stops
from ackwise.middleware.run import Run, Stage, apart, count, in_order, pick
from ackwise.middleware.sequence import hold_back
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.worker import Worker

__all__ = ["Execution", "Undecided", "check_cut_off", "current_assignment", "parts_of"]

log = Log()

#: Seconds that stand for a lease where there is none.
NO_LEASE: Final = 30.0

#: The partition whose messages the task that asks works on.
current_assignment: ContextVar[Assignment | None] = ContextVar("ackwise_assignment", default=None)


class Undecided(BaseException):
    """Raised by a call that ended without a decision. Its messages are not ruled on, no attempt is counted, they come up again."""


def check_cut_off() -> None:
    """Ask before user code is called once more for the same messages. Raises `Undecided` if their partition is no longer ours."""
    assignment = current_assignment.get()
    if assignment is not None and assignment.cut_off:
        raise Undecided("its partition was revoked, nothing more is begun")


class ManualPartition(Assignment, Protocol):
    """The partition of a handler with `commit="manual"`; `uncommitted` has what succeeded since it said `COMMIT`, in order."""

    uncommitted: list[Run]


@dataclass(slots=True)
class _Work:
    """The messages of one batch on their way through the handler."""

    runs: list[Run]
    ready: Sequence[Run]
    queue: deque[Any]
    """What has not begun: messages, or parts of the batch."""
    assignment: Assignment
    call: HandlerCall
    calls: list[HandlerCall] = field(default_factory=list)
    """Those that are waited for."""
    batch: Batch[Any] | None = None
    """What a handler of batches has now."""
    raised: dict[Run, BaseException] = field(default_factory=dict)
    broken: list[Exception] = field(default_factory=list)

    def goes_on(self, call: HandlerCall) -> bool:
        """Whether `call` may begin with something."""
        return not (self.assignment.cut_off or self.call.called_off or call.is_abandoned) and self.call.stopped is None


class Execution:
    """The second phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases
        self._slots = None if agent.concurrency is None else asyncio.Semaphore(agent.concurrency)
        self.overtime = Overtime(agent)

    async def run(
        self,
        runs: list[Run],
        assignment: Assignment,
        call: HandlerCall,
        *,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> HandlerCall:
        """Run what is ADMITTED in one task; `meanwhile` settles what is finished of it while the partition drains.

        In a transaction a failure of several messages rules on none of them: the caller rolls back and finds the
        culprit. What is left undecided there is the caller's as well.
        """
        admitted = [run for run in runs if run.stage is Stage.ADMITTED]
        if not admitted:
            return call
        if not assignment.cut_off:
            if self._agent.kind == "batch":
                ready = in_order(runs, admitted)
                work = _Work(runs, ready, deque(parts_of(ready)), assignment, call)
            else:
                ready = in_order(runs, [single for run in admitted for single in apart(runs, run)])
                work = _Work(runs, ready, deque(ready), assignment, call)
            for run in ready:
                run.call = call
            await self._work_off(work, meanwhile)
            for run in runs:
                run.call = None
        if self._agent.order == "partition":
            hold_back(runs, self._leases, self._worker.monotonic())
        if call.transaction is None:
            self.give_up(runs, [run for run in runs if run.stage is Stage.ADMITTED], call)
        return call

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the calls of the handler that this worker makes at a time."""
        if self._slots is None:
            yield
        else:
            async with self._slots:
                yield

    async def _work_off(self, work: _Work, meanwhile: Callable[[], Awaitable[None]] | None) -> None:
        """In one task; in several where messages may run side by side, each of which is settled as soon as it is finished."""
        beside = self._agent.kind == "message" and self._agent.overlaps and work.call.transaction is None
        for call in [work.call.part() for _ in range(min(self._agent.concurrency or 1, len(work.ready)))] if beside else [work.call]:
            self._start(work, call)
        try:
            await self._wait(work, meanwhile, settles=beside)
        finally:
            if self._agent.kind == "message":  # one line for the batch, however many of it failed
                self._log_outcomes(work.ready, work.raised, work.broken, batch=len(work.ready))

    def _start(self, work: _Work, call: HandlerCall) -> None:
        handle = self._handle_batches if self._agent.kind == "batch" else self._handle_messages
        call.task = asyncio.create_task(handle(work, call), name=f"ackwise handler {self._agent.name}")
        work.calls.append(call)

    def begin(self, runs: list[Run], ready: Sequence[Run], call: HandlerCall) -> list[Run]:
        """Return those of `ready` whose execution in `call` begins now.

        Left out: what succeeded here since it was granted, what runs here already, and what waited until its claim had run out.
        """
        beginning = list(ready) if self._leases is None else [run for run in ready if self._may_begin(runs, run, self._leases)]
        now = self._worker.monotonic()
        if self._agent.order == "partition":
            hold_back(runs, self._leases, now)
            beginning = [run for run in beginning if run.stage is Stage.ADMITTED]
        for run in beginning:
            run.began, run.started_at, run.exec_ids, run.call = True, now, self._worker.exec_ids.take(len(run)), call
            if self._leases is not None and run.ids is not None:
                self._leases.begin(run.ids, call)
            if (run.tokens and not run.unprotected) or (call.transaction is not None and run.ids is not None):
                self._worker.record(
                    EventCode.CLAIMED, self._agent.name, run, with_exec_id=True, lost=run.lost, took_unreleased=run.took_unreleased
                )
        return beginning

    def _may_begin(self, runs: list[Run], run: Run, leases: Leases) -> bool:
        """Let fall out of `run` what must not begin; returns whether something is left of it."""
        if run.ids is None:
            return True
        for single in pick(runs, run, leases.succeeded(run.ids)):
            single.rule(Duplicate())
        if _is_left(run) and run.tokens and not run.unprotected:
            for single in pick(runs, run, leases.lost(run)):  # it waited too long: another worker may run it by now
                leases.give_back(single)
                single.forget_claim()
                single.postpone(self._worker.monotonic(), "its claim had run out before it began")
        if _is_left(run):
            for single in pick(runs, run, leases.running(run.ids)):
                leases.give_back(single)
                single.forget_claim()
                self._worker.postpone([single], "its key is running here")
        return _is_left(run)

    def end(self, key_ids: Iterable[bytes], call: HandlerCall) -> None:
        """The execution in `call` of messages with these keys is over."""
        if self._leases is not None:
            self._leases.end(key_ids, call)

    def conclude(self, decided: Sequence[tuple[Run, Disposition, BaseException | None]]) -> None:
        """Rule on messages that were decided one by one, each with what was raised, if that is why."""
        raised = {run: error for run, _, error in decided if error is not None}
        broken = [self._rule(run, disposition, error) for run, disposition, error in decided]
        ruled = [run for run, _, _ in decided]
        self._log_outcomes(ruled, raised, [error for error in broken if error is not None], batch=len(ruled))
        self._remember(ruled)

    async def _handle_batches(self, work: _Work, call: HandlerCall) -> None:
        current_assignment.set(work.assignment)
        extending.set(partial(self._extend, call))
        until: float | None = None
        while work.queue and work.goes_on(call):
            part: list[Run] = []
            doomed: list[Run] | None = []
            async with self.slot() if call.transaction is None else nullcontext():
                if not (work.goes_on(call) and (part := self.begin(work.runs, work.queue.popleft(), call))):
                    continue
                key_ids, size = [key_id for run in part for key_id in run.ids or ()], count(part)
                try:
                    doomed = await self._handle_batch(work, part, call)
                finally:
                    self.end(key_ids, call)
            if doomed is None or not work.goes_on(call):
                return
            if work.assignment.is_stopping:
                call.stir()
            if doomed:
                work.queue.extendleft(reversed(self._halve(doomed, batch=size)))
                until = until or self._worker.monotonic() + self.patience
            if until is not None and self._worker.monotonic() >= until:
                return  # what is left goes back, no attempt is counted, and it comes up again in parts as small

    async def _handle_batch(self, work: _Work, ready: Sequence[Run], call: HandlerCall) -> list[Run] | None:
        """Return what would be dead only because it was together with others; `None` if nobody decided."""
        making = [run.making_messages() for run in ready]
        batch = work.batch = self._agent.batch(Messages(count(ready), lambda: chain.from_iterable(make() for make in making)))
        if call.transaction is not None:
            batch.connection = call.transaction.connection
            for message in batch:
                message.connection = batch.connection
        handler = cast(Callable[[Batch[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(handler, batch, ready, call)
        if call.is_abandoned:
            self._take_late(call, batch, result)
        elif isinstance(result, Raised) and stops(result.error):
            work.call.stopped = result.error
        elif isinstance(result, Raised) and call.transaction is not None:
            self._fail(work.runs, ready, call, result)
        elif result is not None:
            if self._conclude_earlier(work.runs, result):
                return None
            doomed = [run for run in self._decide_and_log(work.runs, ready, batch, result) if self._is_doomed(run)]
            return doomed if len(doomed) > 1 and call.transaction is None else []
        else:  # called off, or undecided: what it ruled on single messages stands
            self._let_stand(work.runs, ready, batch)
        return None

    def _let_stand(self, runs: list[Run], ready: Sequence[Run], batch: Batch[Any]) -> None:
        broken: list[Exception] = []
        start = 0
        for run in ready:
            size = len(run)
            ruled = {place: ruling for place in range(size) if (ruling := batch.ruling(start + place)) is not None}
            start += size
            for single, ruling in zip(pick(runs, run, ruled), ruled.values(), strict=True):
                if (raised := self._rule(single, ruling)) is not None:
                    broken.append(raised)
                self._remember([single])
        log_broken_policy(self._agent.name, broken)

    @property
    def patience(self) -> float:
        """Seconds that messages which failed together for the last time may run again: one lease."""
        return NO_LEASE if self._leases is None else self._leases.lease

    def _is_doomed(self, run: Run) -> bool:
        """Whether `run` is a dead letter by the policy, which can't know who of a batch failed. With a limit of 0 nothing runs twice."""
        return (
            isinstance(run.disposition, Dead)
            and run.disposition.reason in (Reason.MAX_RECONSUME_TIMES, Reason.NOT_RETRIED)
            and (self._agent.in_place or self._worker.later).max_reconsume_times > 0
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

    async def _handle_messages(self, work: _Work, call: HandlerCall) -> None:
        current_assignment.set(work.assignment)
        extending.set(partial(self._extend, call))
        slots = self._slots if call.transaction is None else None
        while work.queue and work.goes_on(call):
            if slots is not None:
                await slots.acquire()
            try:
                if not (work.queue and work.goes_on(call)) or self._worker.flow.is_paused(self._agent.name, work.queue[0].place):
                    return
                run = work.queue.popleft()
                if not self.begin(work.runs, [run], call):
                    continue
                try:
                    goes_on = await self._handle_message(work, run, call)
                finally:
                    run.call = None if run.stage is Stage.ADMITTED else work.call
                    self.end(run.ids or (), call)
            finally:
                if slots is not None:
                    slots.release()
            if not goes_on:
                return
            if call is not work.call or work.assignment.is_stopping:
                call.stir()

    async def _handle_message(self, work: _Work, run: Run, call: HandlerCall) -> bool:
        """Return whether `call` may go on with those behind it."""
        message = run.message
        if call.transaction is not None:
            message.connection = call.transaction.connection
        handler = cast(Callable[[Message[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(handler, message, [run], call)
        if call.is_abandoned:
            self._take_late(call, Batch([message]), result)
            return False
        if result is None:
            return call is not work.call and self._comes_to(call)
        if isinstance(result, Raised):
            if stops(result.error):
                work.call.stopped = result.error
                return False
            if call.transaction is not None:
                call.raised = result.error
                if len(work.ready) == 1:
                    self._decide_and_log(work.runs, [run], Batch([message]), result)
                return False
            work.raised[run] = result.error
        if self._conclude_earlier(work.runs, result):
            return False
        if is_success(result):
            self._succeed(work.runs, [run], result)
        else:
            self._decide(work.runs, [run], Batch([message]), result, work.broken)
        return True

    @staticmethod
    def _comes_to(call: HandlerCall) -> bool:
        """One message of several was called off, or ended without a decision; whether the task may go on with the next."""
        if call.whole is None or call.whole.called_off:
            return False
        if call.called_off:
            call.called_off = False
            _uncancel(call)
        return True

    def _fail(self, runs: list[Run], ready: Sequence[Run], call: HandlerCall, result: Raised) -> None:
        """Nothing that was written counts, so no ruling from before does either; only of one alone it is known who failed."""
        call.raised = result.error
        if count(ready) == 1:
            self._decide_and_log(runs, ready, Batch([ready[0].message]), result)

    async def _outcome(
        self, handler: Callable[[Any], Awaitable[object]], argument: object, ready: Sequence[Run], call: HandlerCall
    ) -> Returned | Raised | None:
        """What the handler did; `None` if it was called off before it came to an end, or did not decide."""
        call.working_on, call.timed_out = ready, False
        call.deadline = self.overtime.deadline(self._worker.monotonic())
        try:
            return Returned(await handler(argument))
        except asyncio.CancelledError as error:
            if call.called_off:
                return None
            return Raised(self.overtime.error() if call.timed_out else error)
        except Undecided:
            return None
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is a ruling, or stops the app
            return Raised(error)
        finally:
            call.deadline = None
            if call.timed_out:
                _uncancel(call)

    def _extend(self, call: HandlerCall, seconds: float) -> None:
        if call.deadline is not None and not call.timed_out:
            call.deadline = self._worker.monotonic() + seconds

    def _abandon(self, work: _Work, call: HandlerCall) -> bool:
        """Return whether its messages have failed, and others go on; in an order or a transaction all wait for its end."""
        if self._agent.order != "none" or call.transaction is not None:
            return False
        self.overtime.abandon(call)
        self.end([key_id for run in call.working_on for key_id in run.ids or ()], call)
        result = Raised(self.overtime.error())
        if self._agent.kind == "batch":
            batch = cast(Batch[Any], work.batch)
            call.working_on = self._decide_and_log(work.runs, call.working_on, batch, result)
        else:
            (run,) = call.working_on
            work.raised[run] = result.error
            self._decide(work.runs, [run], Batch([run.message]), result, work.broken)
        work.calls.remove(call)
        if work.queue:
            self._start(work, work.call.part())
        return True

    def _take_late(self, call: HandlerCall, batch: Batch[Any], result: Returned | Raised | None) -> None:
        """A call that was abandoned has ended. If it succeeded this process completes the copies, and does not run them."""
        if result is not None and is_success(result) and not batch.is_ruled:
            for run in call.working_on:
                self._worker.record(EventCode.LATE_SUCCESS, self._agent.name, run, with_exec_id=True)
                if self._leases is not None and run.ids is not None:
                    self._leases.remember_successes(run.ids)
        self.overtime.log_ended(call, result is not None and is_success(result))

    def _decide_and_log(self, runs: list[Run], ready: Sequence[Run], batch: Batch[Any], result: Returned | Raised) -> list[Run]:
        broken: list[Exception] = []
        fallen, unnamed = self._decide(runs, ready, batch, result, broken)
        raised = dict.fromkeys(fallen, result.error) if isinstance(result, Raised) else {}
        self._log_outcomes(fallen, raised, broken, batch=len(batch))
        return unnamed

    def _decide(
        self, runs: list[Run], ready: Sequence[Run], batch: Batch[Any], result: Returned | Raised, broken: list[Exception]
    ) -> tuple[list[Run], list[Run]]:
        """Rule on all of `ready`: what is done stays together, everything else falls out. Adds what the retry policy raised.

        Returns what fell out, and of that what the handler said nothing of by itself.
        """
        fallen: list[Run] = []
        unnamed: list[Run] = []
        if is_success(result) and not batch.is_ruled:
            self._succeed(runs, ready, result)
            return fallen, unnamed
        error = result.error if isinstance(result, Raised) else None
        dispositions = dispositions_of(batch, result, handler=self._agent.name, keep_ack_index_on_error=self._agent.keep_ack_index_on_error)
        if self._agent.order == "partition":
            dispositions, refused = nothing_done_behind(dispositions)
            self._log_refused(ready, refused)
        start = 0
        for run in ready:
            size = len(run)
            failed = [place for place in range(size) if dispositions[start + place] is not DONE]
            singles = pick(runs, run, failed)
            if len(failed) < size:
                self._succeed(runs, [run], result)
            for single, place in zip(singles, failed, strict=True):
                was_named = batch.ruling(start + place) is not None
                raised = self._rule(single, dispositions[start + place], None if was_named else error)
                if raised is not None:
                    broken.append(raised)
                if not was_named:
                    unnamed.append(single)
            fallen += singles
            start += size
        return fallen, unnamed

    def _rule(self, run: Run, disposition: Disposition, error: BaseException | None = None) -> Exception | None:
        return decide(run, disposition, self._worker.later, error, in_place=self._agent.in_place)

    def _log_refused(self, ready: Sequence[Run], refused: int) -> None:
        if refused:
            log.warning(
                "messages were done behind one that comes later, by the order of their partition they run again behind it",
                handler=self._agent.name,
                messages=refused,
                topic=ready[0].origin.topic,
                partition=ready[0].origin.partition,
                offset=ready[0].origin.offset,
            )

    def _succeed(self, runs: list[Run], done: Sequence[Run], result: Returned | Raised) -> None:
        """They are done; with `commit="manual"` not before the handler says so, which may be now."""
        if self._agent.commit == "manual" and not _has(result, ConsumeStatus.COMMIT):
            for run in done:
                runs.remove(run)
                run.call = None
            _uncommitted().extend(done)
            return
        for run in done:
            run.succeeded = True
            run.rule(DONE)
        self._remember(done)

    def _conclude_earlier(self, runs: list[Run], result: Returned | Raised) -> bool:
        """With `commit="manual"` the handler says of what succeeded before whether it is done, or comes again with this; then `True`.

        Source: RocketMQ `ProcessQueue.commit`, `ProcessQueue.rollback`.
        """
        if self._agent.commit != "manual" or not (_has(result, ConsumeStatus.COMMIT) or _has(result, ConsumeStatus.ROLLBACK)):
            return False
        earlier = _uncommitted()
        concluded = [*earlier]
        earlier.clear()
        runs += concluded
        if _has(result, ConsumeStatus.COMMIT):
            for run in concluded:
                run.succeeded = True
                run.rule(DONE)
            self._remember(concluded)
            return False
        self._roll_back([run for run in runs if run.stage is Stage.ADMITTED and run.began])
        return True

    def _roll_back(self, back: Sequence[Run]) -> None:
        """They come again, at no attempt, after the time of a suspension."""
        in_place = cast(RetryInPlace, self._agent.in_place)
        for run in back:
            run.error = ConsumeStatus.ROLLBACK.value
            self._worker.record(EventCode.FAILED, self._agent.name, run, with_exec_id=True, error=run.error)
            if self._leases is not None:
                self._leases.give_back(run)
            run.forget_claim()
            run.postpone(self._worker.monotonic() + float(in_place.delay), "its handler rolled back")

    def _log_outcomes(
        self, decided: Sequence[Run], raised: Mapping[Run, BaseException], broken: Sequence[Exception], *, batch: int
    ) -> None:
        """One line for what comes back, with the reason that a person needs; and what the first of them raised, for whoever debugs."""
        log_broken_policy(self._agent.name, broken)
        if raised:
            log.debug("what the handler raised", handler=self._agent.name, raised=next(iter(raised.values())))
        back = [run for run in decided if isinstance(run.disposition, Later | Suspended)]
        if not back:
            return
        first = back[0]
        failure = first.disposition.failure if isinstance(first.disposition, Later | Suspended) else None
        delay = None if first.send_back is None else first.send_back.delay
        if isinstance(first.disposition, Suspended):
            delay = first.disposition.delay
        # Where nothing was raised, the failure's text is ours: what was returned, and what should have been.
        text = f"{failure.error}: {failure.message}" if failure is not None and first not in raised else first.error
        log.warning(
            "messages come back later",
            handler=self._agent.name,
            messages=len(back),
            batch=batch,
            topic=first.origin.topic,
            partition=first.origin.partition,
            offset=first.origin.offset,
            attempt=first.reconsume_times + 1,
            delay=delay,
            error=text,
            at=None if failure is None else failure.at,
        )

    def _remember(self, ruled: Sequence[Run]) -> None:
        if self._leases is not None:
            for run in ruled:
                if run.succeeded and run.ids is not None:
                    self._leases.remember_successes(run.ids)

    def give_up(self, runs: list[Run], undecided: Sequence[Run], call: HandlerCall) -> None:
        """The handler ended without a decision on them: they come up again, with claims of their own."""
        given_up: list[Run] = []
        for run in undecided:
            lost = pick(runs, run, run.lost_places())
            for single in lost:
                self._worker.record(EventCode.CLAIM_LOST, self._agent.name, single, with_exec_id=True)
            for part in [*lost, *([run] if len(run) and run not in lost else [])]:
                if self._leases is not None and part.tokens:
                    if call.stopped is not None and part.began:
                        self._leases.drop(part)  # not released, so that it counts as lost
                    else:
                        self._leases.give_back(part)
                part.forget_claim()
                part.postpone(self._worker.monotonic(), "its handler was called off")
                given_up.append(part)
        if given_up and not call.called_off:
            self._worker.postpone(given_up, "nobody decided on them")

    async def _wait(self, work: _Work, meanwhile: Callable[[], Awaitable[None]] | None, *, settles: bool) -> None:
        """Until all of `work` has come to its end, or its calls are abandoned. `settles`: what is finished meanwhile is settled."""
        call, every, loop = work.call, self.overtime.every, asyncio.get_running_loop()
        waited = 0.0
        try:
            await asyncio.sleep(0)  # a handler that waits for nothing is over by then
            while tasks := _running(work.calls):
                call.moved = loop.create_future()  # before what is finished is settled: more may be finished meanwhile
                if meanwhile is not None and (settles or work.assignment.is_stopping):
                    await meanwhile()
                    if any(task.done() for task in tasks):
                        continue
                done, _ = await asyncio.wait({*tasks, call.moved}, timeout=every, return_when=asyncio.FIRST_COMPLETED)
                for gone in self.overtime.sweep([*work.calls], self._worker.monotonic()):
                    settles |= self._abandon(work, gone)
                if not done:
                    waited += every
                    self._log_hanging(work, waited)
        except asyncio.CancelledError:
            call.call_off()
            raise

    def _log_hanging(self, work: _Work, waited: float) -> None:
        if waited % HANG_WARNING < self.overtime.every and waited >= HANG_WARNING:
            first = work.ready[0].origin
            log.warning(
                "a handler does not come back, its partition waits and nothing is lost",
                handler=self._agent.name,
                seconds=round(waited, 3),
                messages=count(work.ready),
                topic=first.topic,
                partition=first.partition,
                offset=first.offset,
            )


def _running(calls: Sequence[HandlerCall]) -> list[asyncio.Task[None]]:
    """The tasks that have not ended. Raises what one raised that has: an error in our own machinery."""
    tasks = [call.task for call in calls if call.task is not None]
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
    return [task for task in tasks if not task.done()]


def _has(result: Returned | Raised, status: ConsumeStatus) -> bool:
    return isinstance(result, Returned) and result.value is status


def _uncommitted() -> list[Run]:
    """What succeeded in the partition that this task works on, and is not done."""
    return cast(ManualPartition, current_assignment.get()).uncommitted


def _uncancel(call: HandlerCall) -> None:
    """What its handler was cancelled for is over, and the task goes on."""
    if call.task is not None:
        while call.task.cancelling():
            call.task.uncancel()


def _is_left(run: Run) -> bool:
    """Whether something is left of `run` that may run."""
    return bool(len(run)) and run.stage is Stage.ADMITTED


def parts_of(ready: Sequence[Run]) -> Iterator[list[Run]]:
    """`ready` in order, in parts that are as large as each message in them allows."""
    part: list[Run] = []
    size, limit = 0, sys.maxsize
    for run in ready:
        limit = min(limit, run.at_most or limit)
        if part and size + len(run) > limit:
            yield part
            part, size, limit = [], 0, run.at_most or sys.maxsize
        part.append(run)
        size += len(run)
    if part:
        yield part
