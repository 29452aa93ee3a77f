"""Dropping: what fails is given up at once, where every instance gets everything and nothing is sent back.

Source: RocketMQ `ConsumeMessageConcurrentlyService.processConsumeResult`, case BROADCASTING, which only logs what it drops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ackwise.middleware.disposition import OUR_REASONS, Dead, Dropped, Failure, Later, Reason
from ackwise.middleware.log import Log
from ackwise.middleware.run import Run, Stage

__all__ = ["Dropping"]

log = Log()

#: What the retry policy says of a failure that it would send back; none is here.
_BY_POLICY = (Reason.MAX_RECONSUME_TIMES, Reason.NEGATIVE_DELAY_LEVEL)


class Dropping:
    """Turns what would be published into what is dropped, and counts it. One for all pipelines of a worker."""

    def __init__(self) -> None:
        self.messages = 0
        """How many were dropped since the worker began."""

    def drop(self, handler: str, ruled: Sequence[Run], text_of: Callable[[Failure | None], str | None]) -> None:
        """Drop those of `ruled` that would be sent back or to the dead letters. Each is counted once; one line for those of each reason.

        `text_of` says what the line may have of an exception.
        """
        by_reason: dict[str, list[tuple[Run, Failure | None]]] = {}
        for run in ruled:
            if run.stage is Stage.RULED and isinstance(run.disposition, Later | Dead):
                dropped = _dropped(run.disposition, in_place=run.in_place > 0)
                run.disposition, run.send_back = dropped, None
                self.messages += len(run)
                by_reason.setdefault(dropped.reason, []).append((run, dropped.failure))
        for reason, dropped_runs in by_reason.items():
            first, failure = dropped_runs[0]
            self._log(handler, reason, first, failure, messages=sum(len(run) for run, _ in dropped_runs), text=text_of(failure))

    def _log(self, handler: str, reason: str, first: Run, failure: Failure | None, *, messages: int, text: str | None) -> None:
        log.warning(
            "messages are dropped, in broadcasting nothing is sent back",
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


def _dropped(disposition: Later | Dead, *, in_place: bool) -> Dropped:
    """`in_place`: it was tried again where there is an order, and its limit is one that the user has set."""
    if isinstance(disposition, Later) or (disposition.reason in _BY_POLICY and not in_place):
        return Dropped(Reason.NOT_RETRIED, disposition.failure)
    return Dropped(disposition.reason, disposition.failure)
