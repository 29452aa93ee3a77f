"""Execute: call the handler; a failure becomes a disposition here and only here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import Disposition, Later
from ackwise.middleware.entry import Entry, Run, Stage
from ackwise.middleware.events import EventCode
from ackwise.middleware.fate import decide
from ackwise.middleware.message import Message
from ackwise.middleware.rulings import STOPS, Raised, Returned, rule
from ackwise.middleware.worker import Worker

__all__ = ["Execution"]

log = logging.getLogger("ackwise")

#: Seconds between warnings about a handler that does not come back.
HANG_WARNING = 60.0


class Execution:
    """The second phase of the pipeline of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases

    async def run(self, entries: Sequence[Entry]) -> BaseException | None:
        """Run what is ADMITTED in one task; answers what the handler raised if that stops the app."""
        ready = [entry for entry in entries if entry.stage is Stage.ADMITTED]
        if not ready:
            return None
        run, now = Run(), self._worker.monotonic()
        for entry in ready:
            entry.run, entry.started_at, entry.exec_id = run, now, next(self._worker.exec_ids)
            if entry.token:
                self._worker.record(
                    self._worker.event(
                        EventCode.CLAIMED,
                        self._agent.name,
                        entry,
                        lost=entry.lost,
                        took_unreleased=entry.took_unreleased,
                        exec_id=entry.exec_id,
                    )
                )
        stops: list[BaseException] = []
        handle = self._handle_batch if self._agent.kind == "batch" else self._handle_messages
        run.task = asyncio.create_task(handle(ready, run, stops), name=f"ackwise handler {self._agent.name}")
        await self._wait_for_handler(run, run.task, ready)
        for entry in ready:
            entry.run = None
            if entry.stage is Stage.ADMITTED:
                self._give_up(entry, stopped=bool(stops))
        return stops[0] if stops else None

    async def _handle_batch(self, ready: Sequence[Entry], run: Run, stops: list[BaseException]) -> None:
        batch: Batch[Any] = Batch([cast(Message[Any], entry.message) for entry in ready])
        call = cast(Callable[[Batch[Any]], Awaitable[object]], self._agent.call)
        result = await self._outcome(call, batch, run)
        if isinstance(result, Raised) and isinstance(result.error, STOPS):
            stops.append(result.error)
        elif result is not None:
            self._rule(ready, batch, result)
        else:  # called off: what it ruled on single messages stands
            for index, entry in enumerate(ready):
                if (ruling := batch.ruling(index)) is not None:
                    self._decide(entry, ruling)

    async def _handle_messages(self, ready: Sequence[Entry], run: Run, stops: list[BaseException]) -> None:
        call = cast(Callable[[Message[Any]], Awaitable[object]], self._agent.call)
        for entry in ready:
            message = cast(Message[Any], entry.message)
            entry.started_at = self._worker.monotonic()
            result = await self._outcome(call, message, run)
            if result is None:
                return
            if isinstance(result, Raised) and isinstance(result.error, STOPS):
                stops.append(result.error)
                return
            self._rule([entry], Batch([message]), result)
            if run.called_off:
                return

    async def _outcome(self, call: Callable[[Any], Awaitable[object]], argument: object, run: Run) -> Returned | Raised | None:
        """What the handler did; `None` if it was called off before it came to an end."""
        try:
            return Returned(await call(argument))
        except asyncio.CancelledError as error:
            return None if run.called_off else Raised(error)
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is a ruling, or stops the app
            return Raised(error)

    def _rule(self, ready: Sequence[Entry], batch: Batch[Any], result: Returned | Raised) -> None:
        error = result.error if isinstance(result, Raised) else None
        dispositions = rule(batch, result, handler=self._agent.name, keep_ack_index_on_error=self._agent.keep_ack_index_on_error)
        for index, (entry, disposition) in enumerate(zip(ready, dispositions, strict=True)):
            self._decide(entry, disposition, None if batch.ruling(index) is not None else error)
        self._tell(ready, error)

    def _tell(self, ready: Sequence[Entry], error: BaseException | None) -> None:
        """One line for what comes back, with the reason that a person needs; the traceback where debugging is on."""
        back = [entry for entry in ready if isinstance(entry.disposition, Later)]
        if not back:
            return
        first = back[0]
        failure = first.disposition.failure if isinstance(first.disposition, Later) else None
        log.warning(
            "handler %s: %d of %d messages come back later, from %s on (attempt %d, in %g s): %s",
            self._agent.name,
            len(back),
            len(ready),
            first.delivery.origin,
            first.delivery.attempt,
            first.send_back.delay if first.send_back is not None else 0.0,
            first.error if failure is None else f"{failure.error}: {failure.message}",
            exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
        )

    def _decide(self, entry: Entry, disposition: Disposition, error: BaseException | None = None) -> None:
        decide(entry, disposition, self._worker.later, error)
        if entry.succeeded and entry.key is not None and self._leases is not None:
            self._leases.remember_success(entry.key.id)

    def _give_up(self, entry: Entry, *, stopped: bool) -> None:
        """The handler ended without a decision on `entry`: it comes up again, with a claim of its own."""
        if self._leases is not None and entry.token:
            if entry.claim_lost:
                self._worker.record(self._worker.event(EventCode.CLAIM_LOST, self._agent.name, entry, exec_id=entry.exec_id))
            if stopped:
                self._leases.drop(entry)  # not released, so that it counts as lost
            else:
                self._leases.give_back(entry)
        entry.forget_claim()
        entry.hold(self._worker.monotonic(), "its handler was called off")

    async def _wait_for_handler(self, run: Run, task: asyncio.Task[None], ready: Sequence[Entry]) -> None:
        waited = 0.0
        try:
            while not (await asyncio.wait({task}, timeout=HANG_WARNING))[0]:
                waited += HANG_WARNING
                log.warning(
                    "handler %s has been running for %.0f s on %d messages from %s; its partition waits, nothing is lost",
                    self._agent.name, waited, len(ready), ready[0].delivery.origin,
                )  # fmt: skip
        except asyncio.CancelledError:
            run.call_off()
            raise
        if not task.cancelled():
            task.result()
