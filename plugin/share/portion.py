"""Portion: records of one partition that one poll has locked for this worker, until each is accepted or given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ackwise.middleware.message import TopicPartition
from ackwise.middleware.run import Run, Stage, count
from ackwise.plugin.share.client import Record

__all__ = ["Portion"]


class Portion:
    """What the pipeline asks of a partition, for records that nobody owns for longer than a lock.

    `accept` is called with the offsets that are settled, once each.
    """

    def __init__(
        self,
        place: TopicPartition,
        records: Sequence[Record],
        deadline: float,
        accept: Callable[[TopicPartition, Iterable[int]], None],
        *,
        again: bool,
    ) -> None:
        """`deadline`: monotonic seconds after which nothing of it may begin. `again`: it was delivered before."""
        self.place = place
        self.records = records
        self.deadline = deadline
        self.again = again
        self.cut_off = False
        self.is_stopping = False
        self.left = {record.offset for record in records}  #: offsets that are not accepted
        self.runs: list[Run] = []  #: those that the pipeline has now
        self.stirred = asyncio.Event()  #: it stops, or is cut off
        self._accept = accept

    def pass_settled(self, runs: Sequence[Run]) -> None:
        """Those of `runs` that are SETTLED are accepted, once."""
        settled = [run for run in runs if run.stage is Stage.SETTLED and not run.passed]
        offsets: list[int] = []
        for run in settled:
            run.passed = True
            offsets += run.offsets
        if offsets:
            self.left.difference_update(offsets)
            self._accept(self.place, offsets)

    @property
    def unsettled(self) -> list[Run]:
        """What the pipeline has of it and has not settled."""
        return [run for run in self.runs if run.stage is not Stage.SETTLED]

    @property
    def running(self) -> int:
        """How many messages a handler has."""
        return count(run for run in self.runs if run.call is not None)

    def stop(self) -> None:
        """Nothing more of it begins; what is running, and what is decided, is still settled."""
        self.is_stopping = True
        self.stirred.set()
        for run in self.runs:
            if run.call is not None:
                run.call.recall()

    def cut(self) -> None:
        """From now on nothing of it is published; its handler is cancelled."""
        self.cut_off = True
        self.stop()
        self.call_off()

    def call_off(self) -> None:
        """Cancel the handler that is running."""
        for run in self.runs:
            if run.call is not None:
                run.call.call_off()
