"""Clocks of writers that are wrong: compared with the records' own times, and with a clock that nobody sets. Plain Python.

The newest event decides who has been silent for too long. Where one clock is an hour fast, that would be everybody else, so the
time of a writer counts for nothing where something else contradicts it:

absurd   it says a year in which there was no Kafka, or that is yet to come
fast     it is ahead of all others, and by as much behind the records that it consumed, all the time: they came at an hour of theirs
slow     it reported records before they were written
set      it was set while the writer ran
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

__all__ = ["FAR_AHEAD", "FIRST_TIME", "LAST_TIME", "Clocks", "Reading", "compare"]

#: 1 January 2011, when there was no Kafka, and 2100; microseconds.
FIRST_TIME: Final = 1_293_840_000_000_000
LAST_TIME: Final = 4_102_444_800_000_000
#: A record that is further ahead of its event, microseconds, was given its time by a producer: a worker's clock is hardly so slow.
FAR_AHEAD: Final = 86_400_000_000
#: Of the time for which a writer reported messages, the part by which the times of their records may span less or more.
_DRIFT: Final = 4


class Reading(NamedTuple):
    """The times of one writer, microseconds. `None`: no such event."""

    writer_id: int
    group: tuple[str, str]
    first_ts: int
    last_ts: int
    least_lag: int | None
    """The least time from a record to an event about it; below 0 by its clock or the producer's."""
    message_span: int
    """From its first event about a message to its last one."""
    record_span: int
    """From the oldest of their records to the newest."""
    was_set: int
    """How far its clock was set in all, by the clock that nobody sets."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The writers whose clocks are wrong, each with by how much, microseconds."""

    absurd: Mapping[int, int] = field(default_factory=dict)
    """With the time that it says."""
    fast: Mapping[int, int] = field(default_factory=dict)
    slow: Mapping[int, int] = field(default_factory=dict)
    was_set: Mapping[int, int] = field(default_factory=dict)
    now: int = 0
    """The newest time of a clock that is believed."""

    @property
    def wrong(self) -> frozenset[int]:
        """Those whose times prove nothing about others."""
        return frozenset({*self.absurd, *self.fast, *self.slow, *self.was_set})

    def late(self, writer_id: int) -> int:
        """Return by how much a writer's last event may be newer than it says."""
        return self.slow.get(writer_id, 0) + self.was_set.get(writer_id, 0)


def compare(readings: Sequence[Reading], timeout: int, grace: int, *, with_fast: bool = True) -> Clocks:
    """Return whose clocks are wrong by more than `grace`; one that is fast matters beyond `timeout`, if its time is to be now.

    What can't be compared with others of its group is believed. Times are microseconds.
    """
    groups = [[each for each in readings if each.group == group] for group in {each.group: None for each in readings}]
    absurd = {writer_id: ts for mates in groups for writer_id, ts in _absurd(mates).items()}
    sane = [each for each in readings if each.writer_id not in absurd]
    slow = {writer_id: by for mates in groups for writer_id, by in _slow([each for each in mates if each in sane], grace).items()}
    fast = _fast(sane, timeout, grace) if with_fast else {}
    was_set = {each.writer_id: each.was_set for each in sane if each.was_set > grace and each.writer_id not in fast}
    now = max((each.last_ts for each in sane if each.writer_id not in fast), default=0)
    return Clocks(absurd, fast, slow, was_set, now)


def _absurd(readings: Sequence[Reading]) -> dict[int, int]:
    found = {each.writer_id: ts for each in readings for ts in (each.first_ts, each.last_ts) if not FIRST_TIME <= ts <= LAST_TIME}
    return {} if len(found) == len(readings) else found


def _slow(readings: Sequence[Reading], grace: int) -> dict[int, int]:
    """Return those that reported records before they were written, if others did not: else it may be the producers' clocks."""
    lags = sorted((each.least_lag, each.writer_id) for each in readings if each.least_lag is not None)
    found = {}
    for place, (lag, writer_id) in enumerate(lags):
        usual = min((other for other, _ in lags[place + 1 :] if other - lag > grace), default=lag)
        if min(0, usual) - lag > grace:
            found[writer_id] = min(0, usual) - lag
    return found


def _fast(readings: Sequence[Reading], timeout: int, grace: int) -> dict[int, int]:
    """Return those at the head that are ahead of all others by more than `timeout`, if each of them is so by its clock alone."""
    found: dict[int, int] = {}
    ordered = sorted(readings, key=lambda each: -each.last_ts)
    for place, (one, other) in enumerate(pairwise(ordered), 1):
        if one.last_ts - other.last_ts > timeout:
            rest, head = ordered[place:], ordered[:place]
            usual = max(0, min((each.least_lag for each in rest if each.least_lag is not None), default=0))
            ahead = {each.writer_id: each.last_ts - other.last_ts for each in head}
            if all(_is_ahead(each, ahead[each.writer_id], usual, grace) for each in head):
                found = ahead
    return found


def _is_ahead(reading: Reading, by: int, usual: int, grace: int) -> bool:
    if reading.was_set >= by // 2:
        return True
    if reading.least_lag is None or reading.message_span < grace:
        return False  # who only waits, or brings back a backlog, may well be the last one there
    keeps_up = abs(reading.record_span - reading.message_span) <= max(grace, reading.message_span // _DRIFT)
    return keeps_up and reading.least_lag - usual >= by // 2  # the others may have been quiet for a while before
