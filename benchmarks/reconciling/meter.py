"""What a piece of work costs a Spark session: time, computing, and what goes through the shuffle, by Spark's own count."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from pyspark.sql import DataFrame, SparkSession

#: What a session must keep for a meter, as configuration of Spark.
KEPT: Final = {"spark.ui.retainedStages": "1000", "spark.ui.retainedTasks": "100000"}


class Cost(NamedTuple):
    """What one piece of work cost."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds that the JVM and this process computed, together."""
    rows: int
    """Rows that went through a shuffle."""
    bytes: int
    skew: float
    """The slowest task beside the median one, in the stage that computed most; 0 if none had several."""


class Meter:
    """Measures on one local session that keeps `KEPT`, one work at a time."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        context = cast(Any, spark.sparkContext._jsc)
        self._store: Any = context.sc().statusStore()
        gateway: Any = spark.sparkContext._gateway
        self._no_quantiles: Any = gateway.new_array(jvm.double, 0)
        self._nothing: Any = jvm.java.util.ArrayList()
        self._pid = int(jvm.java.lang.ProcessHandle.current().pid())
        self._tick = os.sysconf("SC_CLK_TCK")

    def measure(self, work: Callable[[], object]) -> Cost:
        """Do the work once."""
        known = {stage.stageId() for stage in self._stages()}
        began, computed = time.perf_counter(), self._computed()
        work()
        wall, cpu = time.perf_counter() - began, self._computed() - computed
        stages = [stage for stage in self._stages() if stage.stageId() not in known]
        rows, size = sum(stage.shuffleWriteRecords() for stage in stages), sum(stage.shuffleWriteBytes() for stage in stages)
        return Cost(wall, cpu, rows, size, self._skew(stages))

    def _stages(self) -> list[Any]:
        found = self._store.stageList(None, False, False, self._no_quantiles, self._nothing)
        return [found.apply(place) for place in range(found.size())]

    def _skew(self, stages: list[Any]) -> float:
        several = [stage for stage in stages if stage.numCompleteTasks() > 2]
        if not several:
            return 0.0
        heaviest = max(several, key=lambda stage: int(stage.executorCpuTime()))
        tasks = self._store.taskList(heaviest.stageId(), heaviest.attemptId(), 100_000)
        times = [int(tasks.apply(place).taskMetrics().get().executorCpuTime()) for place in range(tasks.size())]
        return max(times) / max(1.0, statistics.median(times))

    def _computed(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / self._tick + time.process_time()


def exhaust(frame: DataFrame) -> None:
    """Compute every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()
