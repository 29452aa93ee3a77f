"""What waits in place in the lanes of one worker, and the commands for single messages there: retry it, bury it.

Nothing is decided here: a message that is retried or to be buried comes up at once, and its pipeline does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator

from ackwise.middleware.flow.controlrecords import Burials, MessageAt, MessageCommand, WaitingAnswer, WaitingMessage, key_text
from ackwise.middleware.flow.flowcontrol import is_withheld_letter
from ackwise.middleware.flow.pausing import By
from ackwise.middleware.log import Log
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.lane import Lane

log = Log()


class Waiting:
    """The messages that wait in place in `lanes` of a worker of `group`. `clock` is monotonic, `wall` in epoch seconds."""

    def __init__(
        self,
        group: str,
        lanes: Callable[[], Iterable[Lane]],
        burials: Burials,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._group = group
        self._lanes = lanes
        self._burials = burials
        self._clock = clock
        self._wall = wall

    def messages(self) -> list[WaitingMessage]:
        """Each of them, by partition and offset; what is tried at this moment does not wait."""
        found = [message for lane in self._lanes() for message in self._of(lane)]
        return sorted(found, key=lambda message: (message.topic, message.partition, message.offset))

    def _of(self, lane: Lane) -> Iterator[WaitingMessage]:
        held, queued = lane.held, lane.queued
        waiting = [run for run in (*held, *queued) if _waits(run)]
        if not waiting:
            return
        now, wall = self._clock(), self._wall()
        by_key: dict[Hashable, list[int]] = {}
        for run in queued:
            by_key.setdefault(run.order_key, []).append(run.first)
        for run in waiting:
            assert run.pipeline is not None
            if is_keyed := run.pipeline.agent.order == "key":
                depth = 0 if run.order_key is None else sum(offset > run.first for offset in by_key.get(run.order_key, ()))
            else:
                depth = sum(len(other) for other in (*held, *queued) if other.first > run.first)
            yield WaitingMessage(
                topic=lane.topic,
                partition=lane.partition,
                offset=run.first,
                handler=run.pipeline.agent.name,
                key=key_text(run.order_key if is_keyed else run.delivery.key),
                attempts=run.in_place,
                age=max(0.0, round(wall - run.times()[0] / 1000, 3)),
                due_in=max(0.0, round(run.not_before - now, 3)),
                depth=depth,
                error=run.error,
                at=None if run.failure is None else run.failure.at,
                is_buried=bool(self._burials.places(run)),
            )

    def find(self, at: MessageAt) -> tuple[WaitingAnswer, int]:
        """Return where the message at `at` is, and the timestamp of its record, epoch milliseconds; 0 if it is not here."""
        answer, run, _ = self._find(at)
        return answer, 0 if run is None else run.times()[0]

    def _find(self, at: MessageAt) -> tuple[WaitingAnswer, Run | None, Lane | None]:
        for lane in self._lanes():
            if (lane.topic, lane.partition) == at[:2]:
                for run in (*lane.held, *lane.queued):
                    if run.first == at.offset and _waits(run):
                        return "accepted", run, lane
                for run in lane.running:
                    if run.first == at.offset and run.in_place and run.disposition is None:
                        return "running", run, lane
        return "unknown", None, None

    def retry(self, at: MessageAt, by: By) -> WaitingAnswer:
        """Let the message at `at` be tried as soon as nothing stands in front of it."""
        answer, run, lane = self._find(at)
        if answer == "accepted" and run is not None and lane is not None:
            self._bring_up(run, lane)
            topic, partition, offset = at
            log.info(
                "message in place retried", group=self._group, by=by, topic=topic, partition=partition, offset=offset
            )  # fmt: skip
        return answer

    def bury(self, at: MessageAt, timestamp_ms: int, by: By) -> WaitingAnswer:
        """Let the message at `at` be dead before its handler is called again, if its record has this timestamp; at once if it waits."""
        is_news = not self._burials.has(at, timestamp_ms)
        self._burials.add(at, timestamp_ms)
        answer, run, lane = self._find(at)
        if run is None or lane is None or run.times()[0] != timestamp_ms:
            return "unknown"
        if answer == "accepted":
            self._bring_up(run, lane)
        if is_news:
            topic, partition, offset = at
            log.info(
                "burial of a message in place requested", group=self._group, by=by, topic=topic, partition=partition, offset=offset
            )  # fmt: skip
        return answer

    def _bring_up(self, run: Run, lane: Lane) -> None:
        run.not_before = min(run.not_before, self._clock())
        run.due_ms = min(run.due_ms, round(self._wall() * 1000))
        lane.look_again()

    def obey(self, command: MessageCommand, is_new: bool) -> None:
        """Do what a command says; `is_new`: it came while this worker ran. What was to be retried before is due by itself."""
        match command.do:
            case "bury":
                self.bury(command.at, command.timestamp_ms, "command")
            case _:
                self._burials.discard(command.at)
                if command.do == "retry" and is_new:
                    self.retry(command.at, "command")


def _waits(run: Run) -> bool:
    """Return whether it failed in place and is not decided."""
    is_undecided = run.stage is Stage.FETCHED or (run.stage is Stage.WITHHELD and not is_withheld_letter(run))
    return run.in_place > 0 and is_undecided and run.pipeline is not None
