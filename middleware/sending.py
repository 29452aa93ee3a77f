"""Sending what handlers publish, in the first step of settling: a message is done only once all that it publishes is acknowledged."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Failure, Later
from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.fate import decide
from ackwise.middleware.log import Log
from ackwise.middleware.missing import MissingTopics
from ackwise.middleware.outgoing import Acked, SendFailed
from ackwise.middleware.refusals import REFUSED_AFTER
from ackwise.middleware.run import Run, Stage
from ackwise.middleware.worker import Worker

__all__ = ["Sending"]

log = Log()

#: Seconds until what was not acknowledged is sent again, as a copy is.
_AGAIN = 5.0

#: Seconds that a topic may be missing until what is published to it has failed.
_PATIENCE = REFUSED_AFTER


class Sending:
    """Sends for the messages of `agent`."""

    def __init__(self, agent: Agent, worker: Worker) -> None:
        self._agent = agent
        self._worker = worker
        self._missing = MissingTopics(_PATIENCE, worker.monotonic)

    async def __call__(self, publishing: Sequence[Run]) -> None:
        """Send what each of `publishing` publishes, and leave it PUBLISHED if all is acknowledged, held if not.

        What is acknowledged is not sent again. One of which something is refused for good has failed, as if its handler had raised that;
        so has one that publishes to a topic that is missing for two minutes.
        """
        sender = self._worker.sender
        messages = [message for run in publishing for message in run.publishes]
        answers = iter([] if sender is None else await sender.send_many(messages))
        waiting: list[tuple[Run, SendFailed]] = []
        for run in publishing:
            failures: list[SendFailed] = []
            left = []
            for message in run.publishes:
                answer = self._missing.judge(message.topic, next(answers, _NO_SENDER))
                if isinstance(answer, Acked):
                    self._record(run, answer)
                else:
                    failures.append(answer)
                    left.append(message)
            run.publishes = left
            if not failures:
                self._succeed(run)
            elif refusal := next((failure for failure in failures if not failure.retriable), None):
                self._fail(run, refusal)
            else:
                waiting.append((run, failures[0]))
        if waiting:
            error = PublishUnavailable(waiting[0][1].cause)
            self._worker.postpone([run for run, _ in waiting], "what their handler published is not acknowledged", error, wait=_AGAIN)

    def _succeed(self, run: Run) -> None:
        """Only now: until then a repeated run is what sends the rest."""
        run.stage, run.tries, run.succeeded = Stage.PUBLISHED, 0, True
        if self._worker.leases is not None and run.ids is not None:
            self._worker.leases.remember_successes(run.ids)

    def _fail(self, run: Run, refusal: SendFailed) -> None:
        run.publishes = []
        error = PublishRefused(refusal.cause)
        broken = decide(run, Later(failure=Failure.of(error)), self._worker.later, error, in_place=self._agent.in_place)
        self._worker.report_broken(self._agent.name, [] if broken is None else [broken])
        log.warning(
            "what a handler published is refused for good, its message has failed",
            handler=self._agent.name,
            topic=run.origin.topic,
            partition=run.origin.partition,
            offset=run.origin.offset,
            attempt=run.reconsume_times + 1,
            error=refusal.cause,
        )

    def _record(self, run: Run, acked: Acked) -> None:
        if self._worker.sink is None:
            return
        topic, partition, offset, _ = run.origin
        self._worker.sink.record(
            Event(
                EventCode.PRODUCED,
                acked.topic,
                acked.partition,
                None if acked.offset < 0 else acked.offset,
                self._agent.name,
                record_ts_ms=acked.timestamp,
                dedup_key=acked.message_id,
                attrs=json.dumps({"origin": f"{topic}/{partition}/{offset}"}),
            )
        )


#: Never so in a worker of ours; if it were, nothing would be lost.
_NO_SENDER = SendFailed("this worker has nothing to send with", retriable=True)
