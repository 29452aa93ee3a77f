"""Execute: call the handler; a failure becomes a disposition here and only here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import DONE, Disposition, Later
from ackwise.middleware.entry import Entry, Run, Stage
from ackwise.middleware.events import EventCode, EventSink
from ackwise.middleware.fate import decide, tell_broken
from ackwise.middleware.log import Log
from ackwise.middleware.message import Message
from ackwise.middleware.rulings import STOPS, Raised, Returned, rule
from ackwise.middleware.transaction import Transaction
from ackwise.middleware.worker import Worker

__all__ = ["Execution", "Undecided"]

log = Log()

#: Seconds between warnings about a handler that does not come back.
HANG_WARNING = 60.0


class Undecided(BaseException):
    """Raised by a call that ended without a decision. Its messages are not ruled on, no attempt is counted, they come up again."""


class Execution:
    """The second phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases

    async def run(self, entries: Sequence[Entry], transaction: Transaction | None = None) -> Run:
        """Run what is ADMITTED in one task.

        In a `transaction` a failure of several messages rules on none of them: the caller rolls back and finds the
        culprit. What is left undecided there is the caller's as well.
        """
        run = Run(transaction)
        ready = [entry for entry in entries if entry.stage is Stage.ADMITTED]
        if not ready:
            return run
        for entry in ready:
            entry.run = run
        self.begin(ready, transaction)
        handle = self._handle_batch if self._agent.kind == "batch" else self._handle_messages
        run.task = asyncio.create_task(handle(ready, run), name=f"ackwise handler {self._agent.name}")
        await self._wait_for_handler(run, run.task, ready)
        for entry in ready:
            entry.run = None
        if transaction is None:
            self.give_up([entry for entry in ready if entry.stage is Stage.ADMITTED], run)
        return run

    def begin(self, ready: Sequence[Entry], transaction: Transaction | None = None) -> None:
        """An execution of each of `ready` begins."""
        now = self._worker.monotonic()
        for entry in ready:
            entry.started_at, entry.exec_id = now, next(self._worker.exec_ids)
        if self._worker.sink is not None:
            self._record_claims(ready, transaction, self._worker.sink)

    def conclude(self, decided: Sequence[tuple[Entry, Disposition, BaseException | None]]) -> None:
        """Rule on entries that were decided one by one, each with what was raised, if that is why."""
        raised = {entry: error for entry, _, error in decided if error is not None}
        broken = [decide(entry, disposition, self._worker.later, error) for entry, disposition, error in decided]
        ready = [entry for entry, _, _ in decided]
        self._tell(ready, raised, [error for error in broken if error is not None])
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

    async def _handle_batch(self, ready: Sequence[Entry], run: Run) -> None:
        messages = [cast(Message[Any], entry.message) for entry in ready]
        batch = self._agent.batch(messages)
        if run.transaction is not None:
            batch.connection = run.transaction.connection
            for message in messages:
                message.connection = batch.connection
        call = cast(Callable[[Batch[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(call, batch, run)
        if isinstance(result, Raised) and isinstance(result.error, STOPS):
            run.stopped = result.error
        elif isinstance(result, Raised) and run.transaction is not None:
            self._fail(ready, run, result)
        elif result is not None:
            self._rule(ready, batch, result)
        else:  # called off, or undecided: what it ruled on single messages stands
            for index, entry in enumerate(ready):
                if (ruling := batch.ruling(index)) is not None:
                    broken = decide(entry, ruling, self._worker.later)
                    tell_broken(self._agent.name, [] if broken is None else [broken])
            self._remember(ready)

    async def _handle_messages(self, ready: Sequence[Entry], run: Run) -> None:
        call = cast(Callable[[Message[Any]], Awaitable[object]], self._agent.call)
        raised: dict[Entry, BaseException] = {}
        broken: list[Exception] = []
        try:
            for entry in ready:
                message = cast(Message[Any], entry.message)
                if run.transaction is not None:
                    message.connection = run.transaction.connection
                entry.started_at = self._worker.monotonic()
                result = await self._outcome(call, message, run)
                if result is None:
                    return
                if isinstance(result, Raised):
                    if isinstance(result.error, STOPS):
                        run.stopped = result.error
                        return
                    if run.transaction is not None:
                        self._fail(ready, run, result)
                        return
                    raised[entry] = result.error
                broken += self._decide([entry], Batch([message]), result)
                if run.called_off:
                    return
        finally:  # one line for the batch, however many of it failed
            self._tell(ready, raised, broken)

    def _fail(self, ready: Sequence[Entry], run: Run, result: Raised) -> None:
        """Nothing that was written counts, so no ruling from before does either; only of one alone it is known who failed."""
        run.raised = result.error
        if len(ready) == 1:
            self._rule(ready, Batch([cast(Message[Any], ready[0].message)]), result)

    async def _outcome(self, call: Callable[[Any], Awaitable[object]], argument: object, run: Run) -> Returned | Raised | None:
        """What the handler did; `None` if it was called off before it came to an end."""
        try:
            return Returned(await call(argument))
        except asyncio.CancelledError as error:
            return None if run.called_off else Raised(error)
        except Undecided:
            return None
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is a ruling, or stops the app
            return Raised(error)

    def _rule(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> None:
        raised = dict.fromkeys(ready, result.error) if isinstance(result, Raised) else {}
        self._tell(ready, raised, self._decide(ready, batch, result))

    def _decide(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> list[Exception]:
        """Rule on all of `ready`; answers what the retry policy raised."""
        error = result.error if isinstance(result, Raised) else None
        dispositions = rule(batch, result, handler=self._agent.name, keep_ack_index_on_error=self._agent.keep_ack_index_on_error)
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

    def _tell(self, ready: Sequence[Entry], raised: Mapping[Entry, BaseException], broken: Sequence[Exception]) -> None:
        """One line for what comes back, with the reason that a person needs; and what the first of them raised, for whoever debugs."""
        tell_broken(self._agent.name, broken)
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

    def give_up(self, undecided: Sequence[Entry], run: Run) -> None:
        """The handler ended without a decision on them: they come up again, with claims of their own."""
        for entry in undecided:
            if self._leases is not None and entry.token:
                if entry.claim_lost:
                    self._worker.record(self._worker.event(EventCode.CLAIM_LOST, self._agent.name, entry, exec_id=entry.exec_id))
                if run.stopped is not None:
                    self._leases.drop(entry)  # not released, so that it counts as lost
                else:
                    self._leases.give_back(entry)
            entry.forget_claim()
            entry.hold(self._worker.monotonic(), "its handler was called off")
        if undecided and not run.called_off:
            self._worker.hold(undecided, "nobody decided on them")

    async def _wait_for_handler(self, run: Run, task: asyncio.Task[None], ready: Sequence[Entry]) -> None:
        waited = 0.0
        try:
            while not (await asyncio.wait({task}, timeout=HANG_WARNING))[0]:
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
