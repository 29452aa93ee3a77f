"""Which worker runs what: a file is handed out whole, and all tests that need Spark are, since its session takes 3 GB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_SPARK = "all tests with Spark"

#: About how many seconds a test takes that has this mark, the first that it has of these; others take next to nothing.
_USUAL: Final[Mapping[str, float]] = {"slow": 6.0, "kafka": 2.0, "servers": 0.5}


def guess(items: Iterable[pytest.Item]) -> dict[str, float]:
    """The seconds that each file takes, by the marks of its tests."""
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        seconds[item.nodeid.split("::", 1)[0]] += next((_USUAL[mark] for mark in _USUAL if item.get_closest_marker(mark)), 0.05)
    return dict(seconds)


class ByServers(LoadFileScheduling):
    """The tests with Spark come first, then the files that took longest; of those that nobody has measured their marks tell."""

    def __init__(
        self,
        config: pytest.Config,
        log: Producer | None,
        *,
        of_spark: Callable[[], Collection[str]],
        guessed: Callable[[], Mapping[str, float]],
        seconds: Mapping[str, float],
    ) -> None:
        super().__init__(config, log)
        self._of_spark = of_spark
        self._guessed = guessed
        self._seconds: dict[str, float] = {}
        for test, taken in seconds.items():
            file = super()._split_scope(test)
            self._seconds[file] = self._seconds.get(file, 0.0) + taken

    def _split_scope(self, nodeid: str) -> str:
        return _SPARK if nodeid in self._of_spark() else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=self._rank), last=False)
        super()._assign_work_unit(node)

    def _rank(self, scope: str) -> tuple[bool, float]:
        return scope != _SPARK, -self._seconds.get(scope, self._guessed().get(scope, float("inf")))
