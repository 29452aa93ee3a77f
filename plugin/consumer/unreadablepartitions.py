"""Quarantine: partitions that the client can't read. Each is paused, alarmed and retried with a back-off, while all others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aiokafka import TopicPartition
from aiokafka.errors import UnsupportedCodecError

from ackwise.middleware.log import Log, said
from ackwise.plugin.consumer.lane import ALARM

log = Log()

#: Seconds until a partition is asked again, doubling from the first to the second.
_BACK_OFF = (1.0, 60.0)

#: Seconds that a partition which is asked again has to answer. Until then it is asked singly.
_PROBATION = 5.0


class Readable(Protocol):
    """What a partition is fetched for, a lane or a line of the relay."""

    unreadable: str | None  #: why the client can't read on at `position`, while it is left alone for that

    @property
    def position(self) -> int:
        """What is fetched next."""
        ...


@dataclass(slots=True)
class _Case:
    """A partition that can't be read, for as long as it has this lane."""

    lane: Readable
    wait: float  #: seconds until it is asked again
    next_step: float  #: when it is asked again; on probation, when that has lasted long enough
    next_alarm: float
    on_probation: bool = False
    was_asked: bool = False
    polled_at: int | None = None  #: when the broker last answered for it, as known when the probation started


class Quarantine:
    """The partitions of one member that can't be read. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cases: dict[TopicPartition, _Case] = {}

    def admit(self, partition: TopicPartition, lane: Readable, error: BaseException) -> None:
        """Leave `partition` alone for a while: asked by itself, it raised `error`."""
        now = self._clock()
        lane.unreadable = _why(error)
        case = self._cases.get(partition)
        if case is None or case.lane is not lane:
            case = self._cases[partition] = _Case(lane, _BACK_OFF[0], 0.0, now)
        else:
            case.wait = min(2 * case.wait, _BACK_OFF[1])
        case.next_step, case.on_probation = now + case.wait, False
        self._alarm()

    def holds(self, partition: TopicPartition, lane: Readable) -> bool:
        """Return whether `partition` must not be fetched now."""
        case = self._cases.get(partition)
        return case is not None and case.lane is lane and not case.on_probation

    def asked_again(self, lanes: Mapping[TopicPartition, tuple[Readable, ...]]) -> list[TopicPartition]:
        """Return the partitions that are to be asked now, singly, after the alarms. What has no lane any more is forgotten."""
        if not self._cases:
            return []
        now = self._clock()
        for partition, case in list(self._cases.items()):
            if lanes.get(partition, ())[:1] != (case.lane,):
                del self._cases[partition]
            elif now >= case.next_step:
                case.on_probation, case.was_asked = not case.on_probation, False
                case.next_step = now + (_PROBATION if case.on_probation else case.wait)
        self._alarm()
        return [partition for partition, case in self._cases.items() if case.on_probation]

    def answered(self, partition: TopicPartition, polled_at: int | None) -> None:
        """Asked by itself, `partition` raised nothing; `polled_at` is when the broker last answered for it."""
        case = self._cases.get(partition)
        if case is None or not case.on_probation:
            return
        if not case.was_asked:
            case.was_asked, case.polled_at = True, polled_at
        elif polled_at != case.polled_at:
            del self._cases[partition]
            case.lane.unreadable = None
            log.info("partition read again", topic=partition.topic, partition=partition.partition, offset=case.lane.position)

    def _alarm(self) -> None:
        """Log for each, once a minute, that the operator has to act."""
        now = self._clock()
        for partition, case in self._cases.items():
            if now >= case.next_alarm:
                case.next_alarm = now + ALARM
                log.error(
                    "partition unreadable",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=case.lane.position,
                    error=case.lane.unreadable,
                    retry_in=case.wait,
                )


def _why(error: BaseException) -> str:
    """The class alone: a parser's text may repeat what it could not parse. That of a codec names the codec."""
    return said(error) if isinstance(error, UnsupportedCodecError) else type(error).__name__
