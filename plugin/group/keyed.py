"""The new messages of a lane whose handler has the order `key`: of each key the first may be in a batch, the others wait behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain

from ackwise.middleware.run import Run, Taker, apart, count
from ackwise.plugin.group.backlog import MAX_MESSAGES, limit_of

__all__ = ["ByKey"]


class ByKey:
    """Runs of one. A key is taken while one of its messages is ready, in a batch or held; once that is settled the next one is ready.

    What has no key is ready at once, and what is decided already: it never runs.
    """

    def __init__(self, find_order: Callable[[list[Run]], None]) -> None:
        """`find_order` finds the keys of runs; what falls out of one is added to the list."""
        self._find_order = find_order
        self._ready: list[tuple[int, Run]] = []  #: a heap, by offset
        self._behind: dict[Hashable, deque[Run]] = {}  #: of each key that is taken, what waits behind
        self._taken: dict[int, Hashable] = {}  #: by the offset of the message that has taken it
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Run]:
        return chain((run for _, run in self._ready), *self._behind.values())

    def add(self, runs: Iterable[Run]) -> None:
        """Take what was fetched, in order."""
        singles = list(runs)
        self._find_order(singles)
        for run in [*singles]:
            apart(singles, run)
        self._number += len(singles)
        for run in sorted(singles, key=lambda run: run.first):
            if (key := run.order_key) is None:
                heappush(self._ready, (run.first, run))
            elif key in self._behind:
                self._behind[key].append(run)
            else:
                self._behind[key] = deque()
                self._let_run(key, run)

    def come_up(self, runs: Iterable[Run]) -> list[Run]:
        """Find the keys of `runs` anew. Take those that have another one now, and return them: they run at its turn, and not before.

        Others of that key may have run meanwhile, so these are out of order. Where a key can't be found again, all stays as it was.
        """
        unknown = list(runs)
        self._find_order(unknown)
        moved = [run for run in unknown if run.prepared and run.order_key != self._taken.get(run.first)]
        self.finished(moved)
        for run in moved:
            run.out_of_order = run.out_of_order or run.order_key is not None
            self._queue(run)
        return moved

    def _queue(self, run: Run) -> None:
        if (behind := self._behind.get(run.order_key)) is None:
            self.add([run])
            return
        behind.insert(sum(other.first < run.first for other in behind), run)
        self._number += 1

    def _let_run(self, key: Hashable, run: Run) -> None:
        self._taken[run.first] = key
        heappush(self._ready, (run.first, run))

    def head(self) -> Run | None:
        """The first that may be in a batch now."""
        return self._ready[0][1] if self._ready else None

    @property
    def ripe(self) -> int:
        """How many may be in a batch now."""
        return len(self._ready)

    def fill(self, pipeline: Taker | None, batch: list[Run]) -> None:
        """Add messages of `pipeline` to `batch`, as far as each of those in it allows; no two of them have the same key."""
        size, limit = count(batch), min(map(limit_of, batch), default=MAX_MESSAGES)
        while self._ready and self._ready[0][1].pipeline is pipeline:
            limit = min(limit, limit_of(self._ready[0][1]))
            if size >= limit:
                break
            batch.append(heappop(self._ready)[1])
            size += 1
            self._number -= 1

    def finished(self, runs: Iterable[Run]) -> bool:
        """These are finished. Return whether that lets others be taken."""
        lets_others = False
        for run in runs:
            for offset in run.offsets:
                if (key := self._taken.pop(offset, None)) is None:
                    continue
                if behind := self._behind[key]:
                    self._let_run(key, behind.popleft())
                    lets_others = True
                else:
                    del self._behind[key]
        return lets_others

    def waiting(self) -> Iterator[tuple[Hashable, int, int]]:
        """Of each key that others wait for: the key, the offset of the message that has taken it, and how many wait."""
        for offset, key in self._taken.items():
            if behind := self._behind[key]:
                yield key, offset, len(behind)
