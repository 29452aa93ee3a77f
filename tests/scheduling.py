"""Which worker runs what: a file is handed out whole, and all tests that need Spark are, since its session takes 3 GB."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["ByServers"]

_SPARK = "all tests with Spark"


class ByServers(LoadFileScheduling):
    """The tests with Spark come first, then the files that took longest; those that nobody has measured are taken for long ones."""

    def __init__(
        self, config: pytest.Config, log: Producer | None, *, of_spark: Callable[[], Collection[str]], seconds: Mapping[str, float]
    ) -> None:
        super().__init__(config, log)
        self._of_spark = of_spark
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
        return scope != _SPARK, -self._seconds.get(scope, float("inf"))
