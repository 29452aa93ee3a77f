"""Routes from records to their pipeline: that of its topic's agent, or that of the handler that a copy names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.log import Log, LogThrottle
from ackwise.middleware.message.disposition import Dead, Delayed, Failure, Reason
from ackwise.middleware.message.message import Delivery, TopicPartition, delivery_of
from ackwise.middleware.message.wire import ForeignCopy, OtherWire, parse_copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.retry import SendBack
from ackwise.middleware.runs.agent import Agent, readers_of
from ackwise.middleware.runs.run import Run

log = Log()

#: Seconds since its first failure for which a copy waits for a worker that has its handler, and for how long each time.
HANDLER_MISSING_FOR: Final = 3600.0
_HANDLER_AGAIN: Final = 60.0


class Routes:
    """The pipelines of one worker, by the name of their agent: those for records of sources, and those for copies."""

    def __init__(self, worker: Worker, pipelines: Mapping[str, Pipeline], of_copies: Mapping[str, Pipeline]) -> None:
        self._worker = worker
        self._of_copies = of_copies
        self._throttle = LogThrottle()
        self.out_of_order: Counter[str] = Counter()  #: copies that came for handlers with an order, by their names
        self._pipelines = pipelines
        self._by_topic = {topic: pipeline for pipeline in pipelines.values() for topic in pipeline.agent.topics}

    def from_source(self, place: TopicPartition, records: Sequence[Any]) -> list[Run]:
        """Records go to the agent of their topic."""
        return [Run(place, records, self._by_topic.get(place.topic) or self._by_pattern(place.topic))]

    def _by_pattern(self, topic: str) -> Pipeline:
        """That of the one agent whose pattern has found `topic`; remembered, since it does not change."""
        (agent,) = readers_of([pipeline.agent for pipeline in self._pipelines.values()], topic)
        return self._by_topic.setdefault(topic, self._pipelines[agent.name])

    def from_retry(self, place: TopicPartition, records: Sequence[Any]) -> list[Run]:
        """Each copy goes to the handler that it names; what can't be delivered is a dead letter, what can't be read yet waits."""
        return [self._copy(delivery_of(place, record)) for record in records]

    def _copy(self, delivery: Delivery) -> Run:
        try:
            copy = parse_copy(delivery, self._worker.group)
        except OtherWire as error:
            run = Run.of(delivery)
            run.why = str(error)
            return run
        except ForeignCopy as error:
            return self._undeliverable(delivery, Reason.FOREIGN_COPY, error)
        pipeline = self._of_copies.get(copy.handler or "")
        if pipeline is None:
            return self._without_handler(copy)
        run = Run.of(copy, pipeline)
        run.batch_limit = pipeline.batch_limit(run)
        if pipeline.agent.order is not None:
            run.out_of_order = True
            self._tell_out_of_order(copy, pipeline.agent)
        return run

    def _without_handler(self, copy: Delivery) -> Run:
        """Another worker may have the handler, since a deployment goes on: the copy waits once more, until it is an hour old."""
        known = ", ".join(sorted(self._of_copies))
        error = ConfigurationError(f"no handler {copy.handler!r} in this app; it has {known}")
        now_ms = round(self._worker.wall() * 1000)
        if now_ms - (now_ms if copy.first_seen_ms is None else copy.first_seen_ms) >= HANDLER_MISSING_FOR * 1000:
            return self._undeliverable(copy, Reason.NO_HANDLER, error)
        if self._throttle.is_due(copy.handler):
            log.warning(
                "copy for an unknown handler delayed again",
                handler=copy.handler,
                topic=copy.origin.topic,
                partition=copy.origin.partition,
                offset=copy.origin.offset,
                at_most=HANDLER_MISSING_FOR,
            )
        run = self._unhandled(copy, error)
        levels = self._worker.later.levels
        level = levels.fitting(_HANDLER_AGAIN) or 1
        run.send_back = SendBack(levels.delay(level), level, charged=False)
        run.rule(Delayed())
        return run

    def _tell_out_of_order(self, copy: Delivery, agent: Agent) -> None:
        """One line for the first of each handler: its start was refused while it waited, unless it was sent since."""
        self.out_of_order[agent.name] += 1
        if self.out_of_order[agent.name] == 1:
            log.warning(
                "copy runs out of order",
                handler=agent.name,
                order=agent.order,
                topic=copy.origin.topic,
                partition=copy.origin.partition,
                offset=copy.origin.offset,
                attempt=copy.attempt,
            )

    def _undeliverable(self, delivery: Delivery, reason: str, error: AckwiseError) -> Run:
        run = self._unhandled(delivery, error)
        run.rule(Dead(reason, Failure.of(error)))
        return run

    def _unhandled(self, delivery: Delivery, error: AckwiseError) -> Run:
        """A run that no handler of this worker gets."""
        run = Run.of(delivery, Pipeline(Agent(delivery.handler or "-", (), "message", _never, _never), self._worker))
        run.error = type(error).__name__
        return run


async def _never(_: object) -> None:
    raise AckwiseError("this handler does not exist and can't be called")
