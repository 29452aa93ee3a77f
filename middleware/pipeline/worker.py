"""`Worker`: what the pipelines of one worker share: names of topics, clocks, the store, the sink, the publisher."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ackwise.middleware.claims.isolation import Isolation
from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.events import (
    STARTS,
    Event,
    EventCode,
    EventSink,
    RunEvents,
    explode,
    mark_sink,
    marks_of,
    run_sink,
)
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.log import Log, said
from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.keys import order_hash
from ackwise.middleware.message.outgoing import MessageSender, Outgoing, Publisher
from ackwise.middleware.policies.policies import Dedup, Transactional
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.redelivery import Dropping, log_broken_policy
from ackwise.middleware.runs.run import Run, count
from ackwise.middleware.storage.outbox import Outbox
from ackwise.middleware.usercode import Raised, Stops

log = Log()

#: Back-off of a step that failed: seconds at first, doubling up to the second.
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0


#: Seconds after which what is finished of a batch of single messages is settled, while the rest goes on.
SETTLE_INTERVAL = 0.1


_IN_ADVANCE: Final = 4096  # ids, as many as a row of events has messages at most


class ExecIds:
    """Ids of executions: 23 random bits for this worker, then a counter. They are unique.

    Each lane has some in advance: its ids follow each other whatever other lanes start in between, so that the events of neighbours
    become one row.
    """

    __slots__ = ("_in_advance", "_next")

    def __init__(self) -> None:
        self._next = random.Random().getrandbits(23) << 40 | 1
        self._in_advance: dict[Hashable, range] = {}

    def take(self, lane: Hashable, number: int) -> range:
        """The next ones of this lane."""
        found = self._in_advance.get(lane, range(0))
        if len(found) < number:
            found = range(self._next, self._next + max(number, _IN_ADVANCE))
            self._next = found.stop
        self._in_advance[lane] = found[number:]
        return found[:number]


class Outage:
    """Whether the event log could not be made durable when it was last asked."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


class Stopping:
    """What a retry policy raised that stops the app: its message comes back by delay level, and is settled before."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: `group` and everything that its pipelines share. Its copies wait in `delay_topic`."""

    group: str
    later: ConsumeLater
    publisher: Publisher
    retry_topic: str
    dead_letter_topic: str
    delay_topic: str
    dedup: Dedup | Transactional | None = None
    leases: Leases | None = None
    sink: EventSink | None = None
    outbox: Outbox | None = None  #: in the database of `Transactional`: takes what handlers publish into their transaction
    outbox_name: str = ""  #: in events
    sender: MessageSender | None = None  #: of what handlers publish
    delayed: Callable[[Outgoing, int], Outgoing] | None = None  #: what is sent now of a message for later, due at epoch milliseconds
    dropping: Dropping | None = None  #: what fails is dropped; without it, it is published
    error_text: Literal["class", "message"] = "class"  #: what logs have of exceptions of user code
    clock_skew: float = 0.5  #: seconds added to due times, so that a copy is never early between clocks that differ by less
    settle_interval: float = SETTLE_INTERVAL  #: seconds
    isolation: Isolation = field(default_factory=Isolation)
    flow: FlowControl = field(default_factory=FlowControl)
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    exec_ids: ExecIds = field(default_factory=ExecIds)
    outage: Outage = field(default_factory=Outage)
    stopping: Stopping = field(default_factory=Stopping)
    _next_line_at: dict[tuple[str, int, str], float] = field(default_factory=dict)  #: by topic, partition and reason of a postponement

    def __post_init__(self) -> None:
        self.isolation.clock = self.monotonic

    def later_of(self, agent: Agent) -> ConsumeLater:
        """Return how failed messages of `agent` are retried."""
        return self.later if agent.later is None else agent.later

    def later_for(self, run: Run) -> ConsumeLater:
        """Return how `run` is retried if it fails."""
        return self.later if run.pipeline is None else self.later_of(run.pipeline.agent)

    def text_of(self, failure: Failure | None) -> str | None:
        """The text of what user code raised, for a log; `None` unless it may be seen there."""
        return None if failure is None or self.error_text == "class" else failure.message

    def report_broken(self, handler: str, broken: Sequence[Raised | Stops]) -> None:
        """Log what a retry policy raised on messages of `handler`; what stops the app is remembered for its pipelines."""
        if not broken:
            return
        log_broken_policy(handler, broken)
        self.stopping.error = next((failure.error for failure in broken if isinstance(failure, Stops)), self.stopping.error)

    async def make_durable(self) -> None:
        """Return once every event that was recorded is durable. Raises `EventLogUnavailable`, and remembers that there is an outage."""
        if self.sink is None:
            return
        try:
            await self.sink.flush()
        except EventLogUnavailable:
            self.outage.is_on = True
            raise
        self.outage.is_on = False

    def has_marked(self, runs: Sequence[Run]) -> bool:
        """Write everything recorded so far to the event log before a handler has `runs`. Return False if nothing may start now."""
        if (sink := mark_sink(self.sink)) is None:
            return True
        try:
            sink.mark()
        except EventLogUnavailable as error:
            self.outage.is_on = True
            self.postpone(runs, "the event log can't be written, nothing is started", error)
            return False
        return True

    def mark_each(self, handler: str, runs: Sequence[Run]) -> bool:
        """As `has_marked`, for `runs` of one partition that `handler` has one by one: one mark covers all of them."""
        if self.sink is None or mark_sink(self.sink) is None or not runs:
            return True
        for event in marks_of(*runs[0].place, handler, sorted(offset for run in runs for offset in run.offsets)):
            self.sink.record(event)
        return self.has_marked(runs)

    def record(
        self, code: EventCode, handler: str, run: Run, *, with_exec_id: bool = False, error: str | None = None, **fields: Any
    ) -> None:
        """Give the sink an event about each message of `run`."""
        if self.sink is None:
            return
        exec_ids = run.exec_ids if with_exec_id else None
        if code in STARTS and run.order_keys is not None:
            fields["order_hashes"] = [order_hash(key) for key in run.order_keys]
        if len(run) == 1:
            (fields["order_hash"],) = fields.pop("order_hashes", (None,))
            self.sink.record(self.event(code, handler, run, None if exec_ids is None else exec_ids[0], error=error, **fields))
            return
        epoch = None if self.dedup is None else self.dedup.epoch
        events = RunEvents(
            code, *run.place, run.offsets, handler, run.attempt, run.times(), exec_ids, run.dedup_hashes(), epoch, error=error, **fields
        )
        if (sink := run_sink(self.sink)) is not None:
            sink.record_run(events)
        else:
            for event in explode(events):
                self.sink.record(event)

    def event(self, code: EventCode, handler: str, run: Run, exec_id: int | None = None, **fields: Any) -> Event:
        """An event about a run of one, in the coordinates of its origin, with the physical ones where they differ."""
        delivery = run.delivery
        origin = delivery.origin
        epoch = None if self.dedup is None else self.dedup.epoch
        if not delivery.at_origin:
            fields |= {"phys_topic": delivery.topic, "phys_partition": delivery.partition, "phys_offset": delivery.offset}
        return Event(
            code, origin.topic, origin.partition, origin.offset, handler, run.attempt, exec_id, run.dedup_hash, epoch,
            origin.timestamp_ms, **fields,
        )  # fmt: skip

    def postpone(
        self, runs: Sequence[Run], why: str, error: Exception | None = None, *, at_most: float | None = None, wait: float | None = None
    ) -> None:
        """They come up again after a back-off, at most `at_most` seconds of it, or after exactly `wait` seconds."""
        now = self.monotonic()
        for run in runs:
            delay = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(run.tries, 10)) if wait is None else wait
            run.tries += 1
            run.postpone(now + (delay if at_most is None else min(delay, max(at_most, 0.001))), why)
        if error is not None and runs and self._is_news(runs[0], why, now):
            log.warning(
                "messages held",
                topic=runs[0].place.topic,
                partition=runs[0].place.partition,
                messages=count(runs),
                why=why,
                error=said(error),
                retry_in=round(runs[0].not_before - now, 3),
            )

    def _is_news(self, run: Run, why: str, now: float) -> bool:
        """Each batch of a partition is held by itself; one line for all of them is enough for a while."""
        place = run.place.topic, run.place.partition, why
        if now < self._next_line_at.get(place, now):
            return False
        self._next_line_at[place] = now + LONGEST_WAIT
        return True
