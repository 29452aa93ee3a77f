"""Execution, the second phase: calls the handler. A failure becomes a disposition here and only here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import DONE, Dead, Disposition, Duplicate, Later, Reason
from ackwise.middleware.entry import Entry, HandlerRun, Stage
from ackwise.middleware.events import EventCode, EventSink
from ackwise.middleware.fate import decide, log_broken_policy, log_spared
from ackwise.middleware.leases import Leases
from ackwise.middleware.log import Log
from ackwise.middleware.message import Message
from ackwise.middleware.rulings import Raised, Returned, dispositions_of, stops
from ackwise.middleware.settlement import Assignment
from ackwise.middleware.transaction import Transaction
from ackwise.middleware.worker import Worker

__all__ = ["Execution", "Undecided", "check_cut_off", "current_assignment", "parts_of"]

log = Log()

#: Seconds between warnings about a handler that does not come back.
HANG_WARNING = 60.0

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


class Execution:
    """The second phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases

    async def run(
        self,
        entries: Sequence[Entry],
        assignment: Assignment,
        run: HandlerRun,
        *,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> HandlerRun:
        """Run what is ADMITTED in one task; `meanwhile` settles what is finished of it while the partition drains.

        In a transaction a failure of several messages rules on none of them: the caller rolls back and finds the
        culprit. What is left undecided there is the caller's as well.
        """
        ready = [entry for entry in entries if entry.stage is Stage.ADMITTED]
        if not ready:
            return run
        if not assignment.cut_off:
            for entry in ready:
                entry.run = run
            handle = self._handle_batches if self._agent.kind == "batch" else self._handle_messages
            run.task = asyncio.create_task(handle(ready, assignment, run), name=f"ackwise handler {self._agent.name}")
            await self._wait_for_handler(run, run.task, ready, meanwhile, assignment)
            for entry in ready:
                entry.run = None
        if run.transaction is None:
            self.give_up([entry for entry in ready if entry.stage is Stage.ADMITTED], run)
        return run

    def begin(self, ready: Sequence[Entry], transaction: Transaction | None = None) -> list[Entry]:
        """Return those of `ready` whose execution begins now.

        Left out: what succeeded here since it was granted, what runs here already, and what waited until its claim had run out.
        """
        beginning = list(ready) if self._leases is None else [entry for entry in ready if self._may_begin(entry, self._leases)]
        now = self._worker.monotonic()
        for entry in beginning:
            entry.began, entry.started_at, entry.exec_id = True, now, next(self._worker.exec_ids)
        if self._worker.sink is not None:
            self._record_claims(beginning, transaction, self._worker.sink)
        return beginning

    def _may_begin(self, entry: Entry, leases: Leases) -> bool:
        if entry.key is None:
            return True
        if leases.succeeded(entry.key.id):
            entry.rule(Duplicate())
        elif entry.token and not entry.unprotected and leases.expired(entry):  # it waited too long: another worker may run it by now
            leases.give_back(entry)
            entry.forget_claim()
            entry.postpone(self._worker.monotonic(), "its claim had run out before it began")
        elif leases.begin(entry):
            return True
        else:
            leases.give_back(entry)
            entry.forget_claim()
            self._worker.postpone([entry], "its key is running here")
        return False

    def end(self, entries: Sequence[Entry]) -> None:
        """The execution of each of `entries` is over, and what succeeded is remembered."""
        if self._leases is not None:
            for entry in entries:
                self._leases.end(entry)

    def conclude(self, decided: Sequence[tuple[Entry, Disposition, BaseException | None]]) -> None:
        """Rule on entries that were decided one by one, each with what was raised, if that is why."""
        raised = {entry: error for entry, _, error in decided if error is not None}
        broken = [decide(entry, disposition, self._worker.later, error) for entry, disposition, error in decided]
        ready = [entry for entry, _, _ in decided]
        self._log_outcomes(ready, raised, [error for error in broken if error is not None])
        self._remember(ready)

    def _record_claims(self, ready: Sequence[Entry], transaction: Transaction | None, sink: EventSink) -> None:
        for entry in ready:
            if (entry.token and not entry.unprotected) or (transaction is not None and entry.key is not None):
                sink.record(
                    self._worker.event(
                        EventCode.CLAIMED,
                        self._agent.name,
                        entry,
                        lost=entry.lost,
                        took_unreleased=entry.took_unreleased,
                        exec_id=entry.exec_id,
                    )
                )

    async def _handle_batches(self, ready: Sequence[Entry], assignment: Assignment, run: HandlerRun) -> None:
        current_assignment.set(assignment)
        waiting = deque(parts_of(ready))
        until: float | None = None
        while waiting and not assignment.cut_off:
            if not (part := self.begin(waiting.popleft(), run.transaction)):
                continue
            try:
                doomed = await self._handle_batch(part, run)
            finally:
                self.end(part)
            if doomed is None or run.called_off or run.stopped is not None:
                return
            if assignment.is_stopping:
                run.stir()
            if doomed:
                waiting.extendleft(reversed(self._halve(doomed, part)))
                until = until or self._worker.monotonic() + self.patience
            if until is not None and self._worker.monotonic() >= until:
                return  # what is left goes back, no attempt is counted, and it comes up again in parts as small

    async def _handle_batch(self, ready: Sequence[Entry], run: HandlerRun) -> list[Entry] | None:
        """Return what would be dead only because it was together with others; `None` if nobody decided."""
        messages = [cast(Message[Any], entry.message) for entry in ready]
        batch = self._agent.batch(messages)
        if run.transaction is not None:
            batch.connection = run.transaction.connection
            for message in messages:
                message.connection = batch.connection
        call = cast(Callable[[Batch[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(call, batch, run)
        if isinstance(result, Raised) and stops(result.error):
            run.stopped = result.error
        elif isinstance(result, Raised) and run.transaction is not None:
            self._fail(ready, run, result)
        elif result is not None:
            self._decide_and_log(ready, batch, result)
            doomed = [entry for index, entry in enumerate(ready) if batch.ruling(index) is None and self._is_doomed(entry)]
            return doomed if len(doomed) > 1 and run.transaction is None else []
        else:  # called off, or undecided: what it ruled on single messages stands
            for index, entry in enumerate(ready):
                if (ruling := batch.ruling(index)) is not None:
                    broken = decide(entry, ruling, self._worker.later)
                    log_broken_policy(self._agent.name, [] if broken is None else [broken])
            self._remember(ready)
        return None

    @property
    def patience(self) -> float:
        """Seconds that messages which failed together for the last time may run again: one lease."""
        return NO_LEASE if self._leases is None else self._leases.lease

    def _is_doomed(self, entry: Entry) -> bool:
        """Whether `entry` is a dead letter by the policy, which can't know who of a batch failed. With a limit of 0 nothing runs twice."""
        return (
            isinstance(entry.disposition, Dead)
            and entry.disposition.reason in (Reason.MAX_RECONSUME_TIMES, Reason.NOT_RETRIED)
            and self._worker.later.max_reconsume_times > 0
        )

    def _halve(self, doomed: Sequence[Entry], batch: Sequence[Entry]) -> list[list[Entry]]:
        failure = doomed[0].disposition.failure if isinstance(doomed[0].disposition, Dead) else None
        for entry in doomed:
            self.spare(entry, at_most=(len(doomed) + 1) // 2)
        log_spared(self._agent.name, doomed, batch=len(batch), at=None if failure is None else failure.at)
        return list(parts_of(doomed))

    def spare(self, entry: Entry, *, at_most: int, error: str | None = None) -> None:
        """Record that `entry` failed; it runs again in a batch of `at_most`, with the claim and the attempt that it has."""
        entry.error = error or entry.error
        duration = round((self._worker.monotonic() - entry.started_at) * 1e6)
        self._worker.record(
            self._worker.event(EventCode.FAILED, self._agent.name, entry, error=entry.error, exec_id=entry.exec_id, duration_us=duration)
        )
        entry.run_again(at_most=at_most)

    async def _handle_messages(self, ready: Sequence[Entry], assignment: Assignment, run: HandlerRun) -> None:
        current_assignment.set(assignment)
        raised: dict[Entry, BaseException] = {}
        broken: list[Exception] = []
        try:
            for entry in ready:
                if assignment.cut_off:
                    return
                if not self.begin([entry], run.transaction):
                    continue
                try:
                    goes_on = await self._handle_message(entry, ready, run, raised, broken)
                finally:
                    self.end([entry])
                if not goes_on:
                    return
                if assignment.is_stopping:
                    run.stir()
        finally:  # one line for the batch, however many of it failed
            self._log_outcomes(ready, raised, broken)

    async def _handle_message(
        self, entry: Entry, ready: Sequence[Entry], run: HandlerRun, raised: dict[Entry, BaseException], broken: list[Exception]
    ) -> bool:
        """Return whether those behind it may begin; adds what the handler and the retry policy raised."""
        message = cast(Message[Any], entry.message)
        if run.transaction is not None:
            message.connection = run.transaction.connection
        call = cast(Callable[[Message[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(call, message, run)
        if result is None:
            return False
        if isinstance(result, Raised):
            if stops(result.error):
                run.stopped = result.error
                return False
            if run.transaction is not None:
                self._fail(ready, run, result)
                return False
            raised[entry] = result.error
        broken += self._decide([entry], Batch([message]), result)
        return not run.called_off

    def _fail(self, ready: Sequence[Entry], run: HandlerRun, result: Raised) -> None:
        """Nothing that was written counts, so no ruling from before does either; only of one alone it is known who failed."""
        run.raised = result.error
        if len(ready) == 1:
            self._decide_and_log(ready, Batch([cast(Message[Any], ready[0].message)]), result)

    async def _outcome(self, call: Callable[[Any], Awaitable[object]], argument: object, run: HandlerRun) -> Returned | Raised | None:
        """What the handler did; `None` if it was called off before it came to an end."""
        try:
            return Returned(await call(argument))
        except asyncio.CancelledError as error:
            return None if run.called_off else Raised(error)
        except Undecided:
            return None
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is a ruling, or stops the app
            return Raised(error)

    def _decide_and_log(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> None:
        raised = dict.fromkeys(ready, result.error) if isinstance(result, Raised) else {}
        self._log_outcomes(ready, raised, self._decide(ready, batch, result))

    def _decide(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> list[Exception]:
        """Rule on all of `ready`; returns what the retry policy raised."""
        error = result.error if isinstance(result, Raised) else None
        dispositions = dispositions_of(batch, result, handler=self._agent.name, keep_ack_index_on_error=self._agent.keep_ack_index_on_error)
        broken: list[Exception] = []
        for index, (entry, disposition) in enumerate(zip(ready, dispositions, strict=True)):
            if disposition is DONE:  # what `decide` does with it, without the call
                entry.succeeded, entry.disposition, entry.stage = True, DONE, Stage.RULED
                continue
            raised = decide(entry, disposition, self._worker.later, None if batch.ruling(index) is not None else error)
            if raised is not None:
                broken.append(raised)
        self._remember(ready)
        return broken

    def _log_outcomes(self, ready: Sequence[Entry], raised: Mapping[Entry, BaseException], broken: Sequence[Exception]) -> None:
        """One line for what comes back, with the reason that a person needs; and what the first of them raised, for whoever debugs."""
        log_broken_policy(self._agent.name, broken)
        if raised:
            log.debug("what the handler raised", handler=self._agent.name, raised=next(iter(raised.values())))
        back = [entry for entry in ready if isinstance(entry.disposition, Later)]
        if not back:
            return
        first = back[0]
        failure = first.disposition.failure if isinstance(first.disposition, Later) else None
        # Where nothing was raised, the failure's text is ours: what was returned, and what should have been.
        text = f"{failure.error}: {failure.message}" if failure is not None and first not in raised else first.error
        log.warning(
            "messages come back later",
            handler=self._agent.name,
            messages=len(back),
            batch=len(ready),
            topic=first.delivery.origin.topic,
            partition=first.delivery.origin.partition,
            offset=first.delivery.origin.offset,
            attempt=first.delivery.attempt,
            delay=None if first.send_back is None else first.send_back.delay,
            error=text,
            at=None if failure is None else failure.at,
        )

    def _remember(self, ready: Sequence[Entry]) -> None:
        if self._leases is not None:
            self._leases.remember_successes(entry.key.id for entry in ready if entry.succeeded and entry.key is not None)

    def give_up(self, undecided: Sequence[Entry], run: HandlerRun) -> None:
        """The handler ended without a decision on them: they come up again, with claims of their own."""
        for entry in undecided:
            if self._leases is not None and entry.token:
                if entry.claim_lost:
                    self._worker.record(self._worker.event(EventCode.CLAIM_LOST, self._agent.name, entry, exec_id=entry.exec_id))
                if run.stopped is not None and entry.began:
                    self._leases.drop(entry)  # not released, so that it counts as lost
                else:
                    self._leases.give_back(entry)
            entry.forget_claim()
            entry.postpone(self._worker.monotonic(), "its handler was called off")
        if undecided and not run.called_off:
            self._worker.postpone(undecided, "nobody decided on them")

    async def _wait_for_handler(
        self,
        run: HandlerRun,
        task: asyncio.Task[None],
        ready: Sequence[Entry],
        meanwhile: Callable[[], Awaitable[None]] | None,
        assignment: Assignment,
    ) -> None:
        waited, loop = 0.0, asyncio.get_running_loop()
        try:
            while not task.done():
                run.moved = loop.create_future()  # before what is finished is settled: more may be finished meanwhile
                if assignment.is_stopping and meanwhile is not None:
                    await meanwhile()
                if task.done() or (await asyncio.wait({task, run.moved}, timeout=HANG_WARNING, return_when=asyncio.FIRST_COMPLETED))[0]:
                    continue
                waited += HANG_WARNING
                log.warning(
                    "a handler does not come back, its partition waits and nothing is lost",
                    handler=self._agent.name,
                    seconds=waited,
                    messages=len(ready),
                    topic=ready[0].delivery.origin.topic,
                    partition=ready[0].delivery.origin.partition,
                    offset=ready[0].delivery.origin.offset,
                )
        except asyncio.CancelledError:
            run.call_off()
            raise
        if not task.cancelled():
            task.result()


def parts_of(ready: Sequence[Entry]) -> Iterator[list[Entry]]:
    """`ready` in order, in parts that are as large as each message in them allows."""
    part: list[Entry] = []
    limit = len(ready)
    for entry in ready:
        limit = min(limit, entry.at_most or limit)
        if len(part) >= limit:
            yield part
            part, limit = [], entry.at_most or len(ready)
        part.append(entry)
    if part:
        yield part
