"""Rulings: one disposition per message, from what a handler returned, raised or ruled; and how it is logged. Pure.

This is the only place where a failure of user code becomes a decision. Source: RocketMQ
`ConsumeMessageConcurrentlyService.processConsumeResult`; `docs/semantics.md` says where it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.errors import InvalidHandlerResult
from ackwise.middleware.log import Log
from ackwise.middleware.message import raising
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import (
    CONSUME_LATER,
    CONSUME_SUCCESS,
    DONE,
    Dead,
    Delayed,
    Disposition,
    Failure,
    Reason,
    Suspended,
)
from ackwise.middleware.message.message import Origin
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.pipeline.publishing import Publication, Publications, apart_with_publishes, identified
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.retry import ConsumeLater, nothing_done_behind
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.redelivery import decide
from ackwise.middleware.runs.run import Run, pick
from ackwise.middleware.usercode import Raised, Returned, Stops, class_name, close_coroutine, is_a, leaves, looked

_POLICY: Final = 'which is a policy for app.use; raise Later("30s"), Later(level=3) or Reject("why")'


def is_success(result: Returned[Any] | Raised) -> bool:
    """Return whether the handler succeeded."""
    return isinstance(result, Returned) and (result.value is None or result.value is CONSUME_SUCCESS)


def dispositions_of(
    batch: Batch[Any], result: Returned[Any] | Raised, *, handler: str, keep_ack_index_on_error: bool = False
) -> list[Disposition]:
    """One disposition for each message of `batch`, in order.

    A ruling on a single message wins; then the prefix up to `ack_index`, if the handler succeeded (or raised, with
    `keep_ack_index_on_error`); everything else takes the disposition that the result stands for.
    """
    prefix = -1
    if isinstance(result, Raised):
        rest = _raised(batch, result.error, handler)
        if keep_ack_index_on_error and batch.ack_index_was_set:
            prefix = batch.ack_index
    elif is_success(result):
        rest, prefix = _later(batch), batch.ack_index
    elif result.value is CONSUME_LATER:
        rest = _later(batch)
    else:
        rest = _later(batch, InvalidHandlerResult(f"handler {handler!r} returned a {_returned(result.value)}"))
    dispositions: list[Disposition] = [DONE] * (prefix + 1) + [rest] * (len(batch) - prefix - 1)
    for index, ruling in batch.rulings.items():
        dispositions[index] = ruling
    return dispositions


def _returned(value: object) -> str:
    close_coroutine(value)
    if is_a(value, raising.Later, raising.Reject):
        return f"{class_name(value)}; raise it"
    return f"{class_name(value)}; it must return None, CONSUME_SUCCESS or CONSUME_LATER"


def _later(batch: Batch[Any], error: BaseException | None = None) -> Disposition:
    return Delayed(batch.delay_level, failure=None if error is None else Failure.of(error))


def _raised(batch: Batch[Any], error: BaseException, handler: str) -> Disposition:
    """What `error` says. A group says what all in it say, if that is the same; otherwise it has failed, as any other exception."""
    if any(is_a(leaf, ConsumeLater) for leaf in leaves(error)):
        return _later(batch, InvalidHandlerResult(f"handler {handler!r} raised ConsumeLater, {_POLICY}"))
    said = {_said(leaf) for leaf in leaves(error)}
    match said.pop() if len(said) == 1 else None:
        case "reject":
            return Dead(Reason.REJECTED, Failure.of(error))
        case (None, None):
            return Delayed(batch.delay_level, failure=Failure("Later", "the handler asked for it"))
        case (level, delay):
            return Delayed(level or 0, delay, Failure.of(error))
        case _:
            return _later(batch, error)


def _said(error: BaseException) -> tuple[int | None, float | None] | str | None:
    if is_a(error, raising.Reject):
        return "reject"
    if is_a(error, raising.Later):
        return looked(_asked, error, otherwise=(None, None))  # a class of the user's has its own attributes, or none
    return None


def _asked(error: raising.Later) -> tuple[int | None, float | None]:
    asked = raising.Later(error.delay, level=error.level)
    return asked.level, asked.delay


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
        return decide(run, disposition, self._worker.later_of(self._agent), error, in_place=self._agent.in_place)

    def _log_refused(self, ready: Sequence[Run], refused: int) -> None:
        if refused:
            log.warning(
                "done messages run again behind a later one",
                handler=self._agent.name,
                messages=refused,
                topic=ready[0].origin.topic,
                partition=ready[0].origin.partition,
                offset=ready[0].origin.offset,
            )

    def succeed(self, runs: list[Run], done: Sequence[Run], publications: Publications | None = None) -> None:
        """They are done. What publishes something has not succeeded before that is acknowledged: settling decides that."""
        if publications:
            done = apart_with_publishes(runs, done, publications, self._identified)
        for run in done:
            run.succeeded = not run.publishes
            run.rule(DONE)
            if run.succeeded and self._leases is not None:
                self._leases.remember_successes(run)

    def _identified(self, publications: Sequence[Publication], origin: Origin) -> list[Outgoing]:
        worker = self._worker
        return identified(publications, origin, group=worker.group, handler=self._agent.name, delayed=worker.delayed)

    def log_outcomes(
        self, decided: Sequence[Run], raised: Mapping[Run, BaseException], broken: Sequence[Raised | Stops], *, batch: int
    ) -> None:
        """One line for what comes back, with the reason that a person needs; and what the first of them raised, at debug level."""
        self._worker.report_broken(self._agent.name, broken)
        if raised:
            log.debug("what the handler raised", handler=self._agent.name, raised=next(iter(raised.values())))
        back = [run for run in decided if isinstance(run.disposition, Delayed | Suspended)]
        if not back:
            return
        first = back[0]
        failure = first.disposition.failure if isinstance(first.disposition, Delayed | Suspended) else None
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
                if run.succeeded:
                    self._leases.remember_successes(run)
