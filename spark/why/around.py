"""Which events of a partition can change what is said of some of its offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from ackwise.middleware.events import EventCode as E
from ackwise.spark.events.numbers import Run
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, is_there
from ackwise.spark.why.columns import alike, has_any, ints, keys_of

__all__ = ["telling", "telling_looks"]

_JUMPS: Final = (E.GAP, E.SEEK, E.TX_SETTLED, E.ACCEPT_REFUSED)
_GROUP: Final = ("cluster", "group_id", "topic_id")


def telling(here: pa.Table, offsets: Sequence[int], holes: Mapping[int, Sequence[Run]]) -> pa.Table:
    """Return the events of a partition that matter to these offsets. `here` has events of the partition, as groups read it; of messages
    only those with the least and the largest offset of each writer are needed, and all of the writers with `holes`, by writer."""
    return here.filter(arrow(_Partition(here).telling(offsets, holes)))


def telling_looks(looks: pa.Table, since: int) -> pa.Table:
    """Return the looks at the ends of partitions after `since`, in microseconds, and each writer's last one at each."""
    kept = ints(looks["event_ts"]) > since
    keys = keys_of(looks, "writer_id", "topic", "partition", "role")
    for same in alike(keys):
        kept[same[np.argmax(ints(looks["seq"])[same])]] = True
    return looks.filter(arrow(kept))


class _Partition:
    """The events of a partition as arrays."""

    def __init__(self, here: pa.Table) -> None:
        self.here = here
        self.writer, self.seq, self.at, self.offset, self.end = (
            ints(here[name]) for name in ("writer_id", "seq", "event_ts", "offset", "range_end")
        )
        code = ints(here["event_type"])
        self.is_message, self.is_commit, self.is_received = code < E.COMMITTED, code == E.COMMITTED, code == E.RECEIVED_RANGE
        self.is_marked, self.is_assigned = code == E.MARKED, code == E.ASSIGNED
        self.is_looked_at = code == E.BROKER_OFFSETS
        self.is_read_on = self.is_received | self.is_assigned | (code == E.RECEIVED)
        #: How far it shows that its writer had read.
        self.reached = np.where(self.is_message, self.offset + 1, np.where(self.is_received, self.end, self.offset))
        self.has_reached = self.is_message | self.is_received | (self.is_assigned & is_there(here["offset"]))

    def telling(self, offsets: Sequence[int], holes: Mapping[int, Sequence[Run]]) -> Flags:
        kept = has_any(self.here, _JUMPS)
        ranges = self.is_received | self.is_marked
        for offset in offsets:
            kept |= ranges & (self.offset <= offset) & (self.end > offset)
        for mine in alike(self.writer):
            kept[[*self._of_writer(mine, offsets, holes.get(int(self.writer[mine[0]]), ()))]] = True
        for same in alike(keys_of(self.here, *_GROUP)):
            kept[[*self._of_commits(same[(self.is_commit | (self.is_assigned & is_there(self.here["from_commit"])))[same]])]] = True
        return kept

    def _of_writer(self, mine: Numbers, offsets: Sequence[int], holes: Sequence[Run]) -> Iterator[int]:
        """What is largest and smallest before, between and after holes."""
        between = np.searchsorted([after for _, after in holes], self.seq[mine], side="right")
        for part in (mine[place] for place in alike(between)):
            for which, values in (
                (self.is_message, self.offset), (self.is_received, self.offset), (self.is_received, self.end), (self.is_commit, self.end)
            ):  # fmt: skip
                some = part[which[part]]
                if len(some):
                    yield from (int(some[np.argmin(values[some])]), int(some[np.argmax(values[some])]))
        yield from self._after(mine, holes)
        commits = mine[self.is_commit[mine]]
        commits = commits[np.lexsort((self.seq[commits], self.at[commits]))]
        for offset in offsets:
            yield from map(int, commits[self.end[commits] > offset][:1])
        looks = mine[self.is_looked_at[mine]]
        for same in alike(keys_of(self.here.take(arrow(looks)), "role")):
            yield int(looks[same[np.argmax(self.seq[looks[same]])]])

    def _after(self, mine: Numbers, holes: Sequence[Run]) -> Iterator[int]:
        """Where it went on reading after each hole, beyond what it had reached before."""
        known, going_on = mine[self.has_reached[mine]], mine[self.is_read_on[mine]]
        for first, after in holes:
            reached = max(self.reached[known[self.seq[known] < first]], default=0)
            later = going_on[(self.seq[going_on] >= after) & (self.offset[going_on] >= reached)]
            if len(later):
                yield int(later[np.argmin(self.offset[later])])

    def _of_commits(self, told: Numbers) -> Iterator[int]:
        """What went back, from where, and what reports the commits that others found."""
        told = told[np.lexsort((self.seq[told], self.writer[told], self.at[told]))]
        told = told[np.where(self.is_commit[told], self.end[told], self.offset[told]) >= 0]
        position = np.where(self.is_commit[told], self.end[told], self.offset[told])
        largest = np.maximum.accumulate(position)
        back = np.flatnonzero(position < largest)
        for same in (back[place] for place in alike(largest[back])):
            yield int(told[np.argmax(position == largest[same[0]])])
            yield int(told[same[np.argmin(position[same])]])
        commits = told[self.is_commit[told]]
        commits = commits[np.argsort(self.end[commits], kind="stable")]
        for found in np.unique(self.offset[told[self.is_assigned[told]]]):
            begin, after = (int(np.searchsorted(self.end[commits], found, side=side)) for side in ("left", "right"))
            yield from map(int, commits[max(begin - 1, 0) : after])
