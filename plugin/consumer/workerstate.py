"""State of a worker, written to the control topic for `ackwise status`; and the counts that it is made of. A failed write is no error."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from ackwise.middleware.flow.controlrecords import HELD_AT_MOST, PartitionInHand, WorkerRecord, encode_letters, encode_worker, worker_key
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.storage.outbox import OutboxStore

if TYPE_CHECKING:
    from ackwise.middleware.flow.pausing import By, Target
    from ackwise.plugin.consumer.lane import Lane


@dataclass(slots=True)
class OutboxCounts:
    """Rows since the start of the process, and how its relay stands."""

    relaying: bool = False  #: it owns shards, or asks for some
    shards: int = 0  #: that it owns now
    sent: int = 0  #: acknowledged and deleted
    failed: int = 0  #: failures that are tried again
    parked: int = 0  #: rows that became MESSAGE_ERROR here
    expired: int = 0  #: rows that became EXPIRED here
    taken_over: int = 0  #: acknowledged here, after another relay had taken over their shard: it sends them again
    lag: float = 0.0  #: seconds: age of the oldest row when rows were last read, 0 once none waited
    brokers_away: bool = False  #: no broker answered when rows were last sent


@dataclass(slots=True)
class ShareCounts:
    """What a worker has of a share group. All but the first two are messages since its start."""

    consumers: int = 0
    in_hand: int = 0  #: messages that are locked for this worker
    accepted: int = 0  #: those whose acknowledgement the broker has taken
    refused: int = 0  #: those whose lock had ended by then; they are delivered again
    copied: int = 0  #: those that went to the retry topic without a charge
    released: int = 0  #: those that were given back when the worker stopped


@dataclass(slots=True)
class CheckCounts:
    """Half messages since the start, by what became of their checks."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0  #: answered checks that left them as they are
    unanswered: int = 0  #: the outcome was unknown, or the check raised
    waiting: int = 0  #: answered with `Wait`, which uses up no check
    parked: int = 0

    @property
    def answered(self) -> int:
        """Checks that count."""
        return self.committed + self.rolled_back + self.unknown + self.parked


class DelayStanding(NamedTuple):
    """How one partition of a delay topic stands."""

    topic: str
    waiting: int
    """Copies that are not moved, as far as the log was fetched from."""
    late: float
    """Seconds for which the oldest copy that is due has waited to be moved; 0 if none is due."""


@dataclass(slots=True)
class DelayCounts:
    """Copies since the start of the worker, and how the partitions stand that its relay has now."""

    cut: int = 0  #: those that were due later than `max_delay` allows
    cancelled: int = 0  #: those that were dropped since their message was cancelled
    is_halted: bool = False  #: cancellations can't be read, and no copy moves until they can
    standing: Callable[[], Sequence[DelayStanding]] = tuple

    def waiting(self) -> dict[str, int]:
        """Copies that are not moved, by delay topic."""
        waiting: Counter[str] = Counter()
        for each in self.standing():
            waiting[each.topic] += each.waiting
        return dict(waiting)

    def late(self) -> float:
        """Seconds for which the oldest copy that is due has waited to be moved; 0 if none is due."""
        return max((each.late for each in self.standing()), default=0.0)


@dataclass(slots=True)
class RelayCounts:
    """What is relayed in a process without handlers, as far as it is: `ackwise relay`."""

    delay_counts: DelayCounts | None = None
    outbox: OutboxStore | None = None
    outbox_counts: OutboxCounts = field(default_factory=OutboxCounts)
    check_counts: CheckCounts = field(default_factory=CheckCounts)


log = Log()

#: Seconds between two records of one worker.
EVERY: Final = 10.0

#: Seconds until it is looked for again whether there is a control topic, and for the record that a worker leaves last.
_LOOK_AGAIN, _TAKEN_BACK_WITHIN = 1.0, 1.0

#: Where commands are, with what the group remembers; and where workers say how they are.
_COMMANDS, _WORKERS = 0, 1


class WorkerState:
    """Writes to the control topic how `worker` is, which is open once it `has_joined`; `is_there` says whether there is such a topic."""

    def __init__(
        self,
        topic: str,
        client: str,
        worker: Callable[[], Worker],
        lanes: Callable[[], Iterable[Lane]],
        has_joined: asyncio.Event,
        is_there: Callable[[], bool],
        letters: str | None = None,
    ) -> None:
        """`letters` is the topic of dead letters, if its name does not show it: the group remembers it."""
        self._letters = letters
        self._topic = topic
        self._client = client
        self._worker = worker
        self._lanes = lanes
        self._has_joined = has_joined
        self._is_there = is_there
        self._id = os.urandom(8).hex()
        self._throttle = LogThrottle(3600.0)
        self._has_written = False

    async def tell(self) -> None:
        """Write a record every few seconds, from when it has its partitions on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY):
                await self._has_joined.wait()
        while True:
            if is_there := self._is_there():
                if self._letters is not None and await self._write(_COMMANDS, *encode_letters(self._letters)):
                    self._letters = None
                await self._write(_WORKERS, *encode_worker(record_of(self._id, self._client, self._worker(), [*self._lanes()])))
            await asyncio.sleep(EVERY if is_there else _LOOK_AGAIN)

    async def take_back(self) -> None:
        """At the end: this worker is no more. A broker that is unavailable learns of it by time alone."""
        if self._has_written:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TAKEN_BACK_WITHIN):
                    await self._write(_WORKERS, worker_key(self._id), None)

    async def _write(self, partition: int, key: bytes, value: bytes | None) -> bool:
        error: Exception | None
        try:
            (error,) = await self._worker().publisher.publish([Copy(self._topic, partition, key, value, ())])
        except Exception as raised:  # noqa: BLE001  # whatever it is, the worker must go on with its messages
            error = raised
        if error is None:
            self._has_written = True
        elif self._throttle.is_due():
            log.warning("worker state could not be published", topic=self._topic, error=said(error))
        return error is None


def record_of(id: str, client: str, worker: Worker, lanes: Sequence[Lane]) -> WorkerRecord:
    """How it is now."""
    waiting = Counter[str]()
    for run in (run for lane in lanes for run in lane.held):
        waiting[run.why or "it comes up again"] += len(run)
    return WorkerRecord(
        id,
        socket.gethostname(),
        os.getpid(),
        version("ackwise"),
        client,
        tuple(_in_hand(lanes))[:HELD_AT_MOST],
        tuple(waiting.most_common(HELD_AT_MOST)),
        tuple(map(_said, worker.flow.pausing.paused.items())),
        tuple(_troubles(worker, lanes))[:HELD_AT_MOST],
        worker.flow.expired,
    )


def _in_hand(lanes: Iterable[Lane]) -> Iterator[PartitionInHand]:
    """Several agents may have a lane of one partition."""
    in_hand, running = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for lane in lanes:
        in_hand[lane.topic, lane.partition] += lane.in_hand
        running[lane.topic, lane.partition] += sum(map(len, lane.running))
    for (topic, partition), number in sorted(in_hand.items()):
        yield PartitionInHand(topic, partition, number, running[topic, partition])


def _said(paused: tuple[Target, AbstractSet[By]]) -> str:
    target, by = paused
    return f"{target} by {' and '.join(sorted(by))}"


def _troubles(worker: Worker, lanes: Iterable[Lane]) -> Iterator[str]:
    if worker.leases is not None and worker.leases.has_failed:
        yield "its store does not answer"
    if worker.outage.is_on:
        yield "its event log can't be written, and it starts nothing"
    for handler in worker.flow.stopped:
        yield f"the breaker has stopped {handler}"
    for lane in lanes:
        if (why := lane.unreadable) is not None:
            yield f"{lane.topic}/{lane.partition} is stalled: {why}"
