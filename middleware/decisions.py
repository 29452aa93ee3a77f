"""Decisions: what a call of the handler means for each of its messages, and what is remembered and logged of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ackwise.middleware.agent import Agent
from ackwise.middleware.batch import Batch
from ackwise.middleware.disposition import DONE, Disposition, Later, Suspended
from ackwise.middleware.errors import InvalidHandlerResult
from ackwise.middleware.fate import decide
from ackwise.middleware.log import Log
from ackwise.middleware.message import Origin
from ackwise.middleware.ordering import nothing_done_behind
from ackwise.middleware.outgoing import Outgoing
from ackwise.middleware.publishing import Publication, Publications, apart_with_publishes, identified
from ackwise.middleware.rulings import dispositions_of
from ackwise.middleware.run import Run, pick
from ackwise.middleware.usercode import Raised, Returned, Stops
from ackwise.middleware.worker import Worker

__all__ = ["Decisions"]

log = Log()


class Decisions:
    """The decisions on the messages of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._leases = worker.leases

    def conclude(self, decided: Sequence[tuple[Run, Disposition, BaseException | None]]) -> None:
        """Rule on messages that were decided one by one, each with what was raised, if that is why."""
        raised = {run: error for run, _, error in decided if error is not None}
        broken = [self._rule(run, disposition, error) for run, disposition, error in decided]
        ruled = [run for run, _, _ in decided]
        self.log_outcomes(ruled, raised, [error for error in broken if error is not None], batch=len(ruled))
        self._remember(ruled)

    def let_stand(self, runs: list[Run], ready: Sequence[Run], batch: Batch[Any], publications: Publications | None = None) -> None:
        broken: list[Raised | Stops] = []
        start = 0
        for run in ready:
            size = len(run)
            ruled = {place: ruling for place in range(size) if (ruling := batch.ruling(start + place)) is not None}
            start += size
            for single, ruling in zip(pick(runs, run, ruled), ruled.values(), strict=True):
                if (raised := self._rule(single, ruling)) is not None:
                    broken.append(raised)
                if publications and ruling is DONE and single.first in publications:
                    single.publishes = self._identified(publications[single.first], single.origin)
                    single.succeeded = False  # not before they are acknowledged
                self._remember([single])
        self._worker.report_broken(self._agent.name, broken)

    def decide_and_log(
        self,
        runs: list[Run],
        ready: Sequence[Run],
        batch: Batch[Any],
        result: Returned[Any] | Raised,
        publications: Publications | None = None,
    ) -> list[Run]:
        broken: list[Raised | Stops] = []
        fallen, unnamed = self.decide(runs, ready, batch, result, broken, publications)
        raised = dict.fromkeys(fallen, result.error) if isinstance(result, Raised) else {}
        self.log_outcomes(fallen, raised, broken, batch=len(batch))
        return unnamed

    def decide(
        self,
        runs: list[Run],
        ready: Sequence[Run],
        batch: Batch[Any],
        result: Returned[Any] | Raised,
        broken: list[Raised | Stops],
        publications: Publications | None = None,
    ) -> tuple[list[Run], list[Run]]:
        """Rule on all of `ready`: what is done stays together, everything else falls out. Adds what the retry policy raised.

        What is done publishes what is in `publications` for it. Returns what fell out, and of that what the handler said nothing of by
        itself.
        """
        fallen: list[Run] = []
        unnamed: list[Run] = []
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
                self.succeed(runs, [run], publications)
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

    def _rule(self, run: Run, disposition: Disposition, error: BaseException | None = None) -> Raised | Stops | None:
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

    def succeed(self, runs: list[Run], done: Sequence[Run], publications: Publications | None = None) -> None:
        """They are done. What publishes something has not succeeded before that is acknowledged: settling says so."""
        if publications:
            done = apart_with_publishes(runs, done, publications, self._identified)
        for run in done:
            run.succeeded = not run.publishes
            run.rule(DONE)
            if run.succeeded and run.ids is not None and self._leases is not None:
                self._leases.remember_successes(run.ids)

    def _identified(self, publications: Sequence[Publication], origin: Origin) -> list[Outgoing]:
        worker = self._worker
        return identified(publications, origin, group=worker.group, handler=self._agent.name, delayed=worker.delayed)

    def log_outcomes(
        self, decided: Sequence[Run], raised: Mapping[Run, BaseException], broken: Sequence[Raised | Stops], *, batch: int
    ) -> None:
        """One line for what comes back, with the reason that a person needs; and what the first of them raised, for whoever debugs."""
        self._worker.report_broken(self._agent.name, broken)
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
        # The text is ours where nothing was raised, and where a handler answered wrongly: what it did, and what it should do.
        is_ours = failure is not None and (first not in raised or failure.error == InvalidHandlerResult.__name__)
        text = f"{failure.error}: {failure.message}" if failure is not None and is_ours else first.error
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
            text=self._worker.text_of(failure) if first in raised else None,
        )

    def _remember(self, ruled: Sequence[Run]) -> None:
        if self._leases is not None:
            for run in ruled:
                if run.succeeded and run.ids is not None:
                    self._leases.remember_successes(run.ids)
