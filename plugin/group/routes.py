"""Routes from a delivery to its pipeline: that of its topic's agent, or that of the handler that a copy names."""

from __future__ import annotations

from collections.abc import Mapping

from ackwise.middleware.agent import Agent
from ackwise.middleware.disposition import Dead, Failure, Reason
from ackwise.middleware.entry import Entry
from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.message import Delivery
from ackwise.middleware.pipeline import Pipeline
from ackwise.middleware.wire import ForeignCopy, NewerWire, parse_copy
from ackwise.middleware.worker import Worker
from ackwise.plugin.group.lane import LaneEntry

__all__ = ["Routes"]


class Routes:
    """The pipelines of one worker, by the name of their agent: those for records of sources, and those for copies."""

    def __init__(self, worker: Worker, pipelines: Mapping[str, Pipeline], of_copies: Mapping[str, Pipeline]) -> None:
        self._worker = worker
        self._of_copies = of_copies
        self._by_topic = {topic: pipeline for pipeline in pipelines.values() for topic in pipeline.agent.topics}

    def from_source(self, delivery: Delivery) -> LaneEntry:
        """A record goes to the agent of its topic."""
        return LaneEntry(Entry(delivery), self._by_topic[delivery.topic])

    def from_retry(self, delivery: Delivery) -> LaneEntry:
        """A copy goes to the handler that it names; what can't be delivered is a dead letter, what can't be read yet waits."""
        try:
            copy = parse_copy(delivery, self._worker.group)
        except NewerWire as error:
            entry = Entry(delivery)
            entry.why = str(error)
            return LaneEntry(entry, None)
        except ForeignCopy as error:
            return self._undeliverable(delivery, Reason.FOREIGN_COPY, error)
        pipeline = self._of_copies.get(copy.handler or "")
        if pipeline is None:
            known = ", ".join(sorted(self._of_copies))
            return self._undeliverable(
                copy, Reason.NO_HANDLER, ConfigurationError(f"no handler {copy.handler!r} in this app; it has {known}")
            )
        entry = Entry(copy)
        return LaneEntry(entry, pipeline, pipeline.batch_limit(entry))

    def _undeliverable(self, delivery: Delivery, reason: str, error: AckwiseError) -> LaneEntry:
        entry = Entry(delivery)
        entry.error = type(error).__name__
        entry.rule(Dead(reason, Failure.of(error)))
        return LaneEntry(entry, Pipeline(Agent(delivery.handler or "-", (), "message", _never, _never), self._worker))


async def _never(_: object) -> None:
    raise AckwiseError("this handler does not exist and can't be called")
