"""Consequences of a disposition: when a message is redelivered, when it is a dead letter, how its claim ends.

In a broadcast a failed message is dropped at once, since every instance gets every message and nothing is sent back. Source: RocketMQ
`ConsumeMessageConcurrentlyService.processConsumeResult`, case BROADCASTING, which only logs the drop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ackwise.middleware.log import Log
from ackwise.middleware.message.disposition import (
    OUR_REASONS,
    Dead,
    Delayed,
    Disposition,
    Done,
    Dropped,
    Duplicate,
    Failure,
    Reason,
    Suspended,
)
from ackwise.middleware.policies.retry import ConsumeLater, DelayRefused, RetryInPlace, SendBack
from ackwise.middleware.runs.expiry import has_expired
from ackwise.middleware.runs.run import Run, Stage, count
from ackwise.middleware.storage.claimstore import Outcome
from ackwise.middleware.usercode import Raised, Returned, Stops, called, class_name, is_a, looked, shown, where_raised

log = Log()

#: Bits by which the batches of each further attempt are smaller: 200, 25, 3, 1.
_SHRINK: Final = 3


def decide(
    run: Run, disposition: Disposition, policy: ConsumeLater, error: BaseException | None = None, *, in_place: RetryInPlace | None = None
) -> Raised | Stops | None:
    """Rule on `run`, which is one message: what shall come later is sent back as `policy` says, or is a dead letter if it came too often.

    With `in_place` it is suspended as that says. A policy may be the user's: what it raised is returned, and the delay levels stand
    in for it.
    """
    broken = None
    match disposition:
        case Done():
            run.succeeded = True
        case Delayed(failure=failure) if in_place is not None:
            run.error = failure.error if failure is not None else "SUSPEND_CURRENT_QUEUE_A_MOMENT"
            disposition, broken = _suspension(disposition, in_place, policy, run, error)
        case Delayed(failure=failure):
            run.error = failure.error if failure is not None else "CONSUME_LATER"
            decision, broken = _decision(disposition, policy, run, error)
            if isinstance(decision, SendBack):
                run.send_back = decision
            else:
                disposition = decision
        case Dead(reason, failure):
            run.error = failure.error if failure is not None else reason
        case _:
            pass
    run.rule(disposition)
    return broken


def outcome_of(run: Run) -> Outcome | None:
    """Return the outcome that completes the claims of `run`, once it is decided; `None` if they are released.

    Only what ran completes a claim, or a key that succeeded in this process. A message that expired has not run, and another record of
    its key may be in time.
    """
    match run.disposition:
        case Done() | Duplicate(stale=False, leader=None, dead=False):
            return Outcome.OK  # what is a duplicate elsewhere holds no claim: this one was granted it
        case Dead() if not has_expired(run):
            return Outcome.DEAD
        case _:
            return None


def sent_back_of(run: Run) -> int | None:
    """The attempt of the copy that is on its way, if it is parked and was charged one: every earlier attempt is stale from then on."""
    is_charged = run.send_back is None or run.send_back.charged
    return run.attempt + 1 if isinstance(run.disposition, Delayed) and is_charged else None


def batch_limit(run: Run, whole: int, policy: ConsumeLater, in_place: RetryInPlace | None) -> int:
    """Return the largest batch for `run`, in messages, itself included, for a handler that takes `whole` of them.

    Which message of a batch made the handler raise is unknown, so all of them come back. They do so in ever smaller
    batches, and for the last time alone: one that always fails takes no neighbour into the dead letters.
    """
    limit = policy.max_reconsume_times if in_place is None else in_place.max_reconsume_times
    if run.reconsume_times >= limit:
        return 1
    return max(1, whole >> (_SHRINK * run.reconsume_times))


def put_off(run: Run, policy: ConsumeLater) -> None:
    """Rule that `run`, a copy that was not tried, comes back as its delay level says, and is charged no attempt."""
    run.send_back = replace(policy.by_level(run.attempt - 1), charged=False)
    run.error = "PAUSED"
    run.rule(Delayed())


def is_last(run: Run, disposition: Disposition, policy: ConsumeLater, error: BaseException | None) -> bool:
    """Whether `run` would be a dead letter of `error`, which it may not be guilty of. With `ConsumeLater(0)` a batch is one delivery."""
    if error is None or not isinstance(disposition, Delayed) or disposition.delay_level < 0 or policy.max_reconsume_times == 0:
        return False
    return looked(policy.buries, error, otherwise=False) or run.attempt > policy.max_reconsume_times


def log_broken_policy(handler: str, failures: Sequence[Raised | Stops]) -> None:
    """One line for what a retry policy raised on the messages of a batch, and one for delays that are too long."""
    errors = [failure.error for failure in failures]
    refused = [error for error in errors if is_a(error, DelayRefused)]
    if refused:
        log.error(
            "delay above max_delay refused",
            handler=handler,
            messages=len(refused),
            error=shown(refused[0]),
        )
    broken = [error for error in errors if not is_a(error, DelayRefused)]
    if broken:
        log.error(
            "retry policy raised",
            handler=handler,
            messages=len(broken),
            error=class_name(broken[0]),
            at=where_raised(broken[0]),
        )
        log.debug("what the retry policy raised", handler=handler, raised=broken[0])


def _decision(later: Delayed, policy: ConsumeLater, run: Run, error: BaseException | None) -> tuple[SendBack | Dead, Raised | Stops | None]:
    """What `policy` says; the delay levels stand in for one that raises."""
    reconsume_times = run.attempt - 1
    found = called(policy.decide, later, reconsume_times, error)
    if isinstance(found, Returned) and is_a(found.value, SendBack, Dead):
        return found.value, None
    broken = Raised(TypeError(f"a retry policy decided {class_name(found.value)}")) if isinstance(found, Returned) else found
    return ConsumeLater.by_level(policy, reconsume_times), broken


def _suspension(
    later: Delayed, in_place: RetryInPlace, policy: ConsumeLater, run: Run, error: BaseException | None
) -> tuple[Suspended | Dead, Raised | Stops | None]:
    """What `in_place` says; what `no_retry` says of `error` does not count if asking for that raises."""
    found = called(in_place.decide, later, run.reconsume_times, policy, error)
    if isinstance(found, Returned):
        return found.value, None
    return in_place.decide(later, run.reconsume_times, policy), found


def log_spared(handler: str, doomed: Sequence[Run], *, batch: int, at: str | None) -> None:
    """One line for what would have died with others of a batch, and runs again in smaller ones."""
    first = doomed[0].origin
    log.warning(
        "failed batch split before it dies",
        handler=handler,
        messages=count(doomed),
        batch=batch,
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
        error=doomed[0].error,
        at=at,
    )


#: What the retry policy says of a failure that it would send back; none is here.
_BY_POLICY = (Reason.MAX_RECONSUME_TIMES, Reason.NEGATIVE_DELAY_LEVEL)


class Dropping:
    """Turns what would be published into what is dropped, and counts it. One for all pipelines of a worker."""

    def __init__(self) -> None:
        self.messages = 0
        """How many were dropped since the worker started."""

    def drop(self, handler: str, ruled: Sequence[Run], text_of: Callable[[Failure | None], str | None]) -> None:
        """Drop those of `ruled` that would be sent back or to the dead letters. Each is counted once; one line for those of each reason.

        `text_of` says what the line may have of an exception.
        """
        by_reason: dict[str, list[tuple[Run, Failure | None]]] = {}
        for run in ruled:
            if run.stage is Stage.RULED and isinstance(run.disposition, Delayed | Dead):
                dropped = _dropped(run.disposition, in_place=run.in_place > 0)
                run.disposition, run.send_back = dropped, None
                self.messages += len(run)
                by_reason.setdefault(dropped.reason, []).append((run, dropped.failure))
        for reason, dropped_runs in by_reason.items():
            first, failure = dropped_runs[0]
            self._log(handler, reason, first, failure, messages=sum(len(run) for run, _ in dropped_runs), text=text_of(failure))

    def _log(self, handler: str, reason: str, first: Run, failure: Failure | None, *, messages: int, text: str | None) -> None:
        log.warning(
            "messages dropped in broadcasting",
            handler=handler,
            reason=reason if reason in OUR_REASONS else "given by the handler",
            messages=messages,
            dropped=self.messages,
            topic=first.origin.topic,
            partition=first.origin.partition,
            offset=first.origin.offset,
            error=first.error if failure is None else failure.error,
            at=None if failure is None else failure.at,
            text=text,
        )


def _dropped(disposition: Delayed | Dead, *, in_place: bool) -> Dropped:
    """`in_place`: it was tried again where there is an order, and its limit is one that the user has set."""
    if isinstance(disposition, Delayed) or (disposition.reason in _BY_POLICY and not in_place):
        return Dropped(Reason.NOT_RETRIED, disposition.failure)
    return Dropped(disposition.reason, disposition.failure)
