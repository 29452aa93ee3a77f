"""What a piece of work costs: time, computing, and what it asks of Spark; in a separate process memory and disk, too."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a session must keep for a meter, as configuration of Spark.
KEPT: Final = {"spark.ui.retainedStages": "1000", "spark.ui.retainedJobs": "1000", "spark.sql.ui.retainedExecutions": "200"}

_SAMPLES: Final = 0.5  # seconds between two looks at a process


class Cost(NamedTuple):
    """What one piece of work cost."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds that this process and those that it started computed, together."""
    actions: int = 0
    """Queries of Spark."""
    jobs: int = 0
    """Of Spark; a query may be several."""
    shuffled: int = 0
    """Bytes that went through a shuffle, or from task to task in files."""
    memory: int = 0
    """Bytes at the peak, of a separate process and of those that it started."""
    scratch: int = 0
    """The same on disk, results left out."""


class Meter:
    """Measures in this process, one work at a time; on a Spark session that keeps `KEPT`, if there is one."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def measure(self, work: Callable[[], int], *, on_spark: bool) -> Cost:
        """Do the work once. It returns the bytes that its tasks sent each other, beside what Spark shuffled.

        What is not `on_spark` is done by this process and by children that end with the work: Spark's idle processes, which may end
        meanwhile, do not count.
        """
        computed: Callable[[], float] = partial(_computed, os.getpid()) if on_spark else _computed_here
        before, began, cpu = self._asked(), time.perf_counter(), computed()
        sent = work()
        wall, cpu = time.perf_counter() - began, computed() - cpu
        queries, jobs, shuffled = (after - each for after, each in zip(self._asked(), before, strict=True))
        return Cost(wall, cpu, queries, jobs, shuffled + sent)

    def _asked(self) -> tuple[int, int, int]:
        if self._spark is None:
            return 0, 0, 0
        jvm, session = cast(Any, self._spark._jvm), cast(Any, self._spark)._jsparkSession
        context = cast(Any, self._spark.sparkContext._jsc).sc()
        context.listenerBus().waitUntilEmpty()
        store, no_quantiles = context.statusStore(), cast(Any, self._spark.sparkContext)._gateway.new_array(jvm.double, 0)
        stages = store.stageList(None, False, False, no_quantiles, jvm.java.util.ArrayList())
        shuffled = sum(stages.apply(place).shuffleWriteBytes() for place in range(stages.size()))
        return session.sharedState().statusStore().executionsCount(), store.jobsList(None).size(), shuffled


def alone(
    command: Sequence[str | Path], scratch: Sequence[Path], files: Sequence[Path], log: Path, environment: Mapping[str, str]
) -> tuple[int, Cost]:
    """Run a command that reads `files`, of which no memory holds anything yet; its exit code and cost.

    `scratch` are the folders that it writes to, beside its results; the first is that for temporary files.
    """
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    scratch[0].mkdir()
    began, computed, memory, disk = time.perf_counter(), 0.0, 0, 0
    with log.open("wb") as output:
        settings = {**os.environ, **environment, "TMPDIR": str(scratch[0])}
        process = subprocess.Popen([str(each) for each in command], stdout=output, stderr=output, env=settings)
    while process.poll() is None:
        computed = max(computed, _computed(process.pid))
        memory = max(memory, sum(map(_memory, _tree(process.pid))))
        disk = max(disk, sum(map(_size, scratch)))
        time.sleep(_SAMPLES)
    return process.returncode, Cost(time.perf_counter() - began, computed, memory=memory, scratch=disk)


def of_process(command: Sequence[str | Path], log: Path) -> tuple[int, Cost]:
    """Run a command that takes seconds; its exit code and exact cost, with the start of Python."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("wb") as output:
        code = subprocess.run([str(each) for each in command], stdout=output, stderr=output, check=False).returncode
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _computed_here() -> float:
    """Seconds that this process and its children that have ended have computed."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _computed(pid: int) -> float:
    """Seconds that a process, those that it started, and those of them that have ended have computed."""
    ticks = sum(sum(map(int, fields[11:15])) for each in _tree(pid) if (fields := _stat(each)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    yield pid
    tasks: list[Path] = []
    with suppress(OSError):
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    for task in tasks:  # one that has ended meanwhile leaves out its children, not those of the others
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _stat(pid: int) -> list[str]:
    """The fields of its state that follow its name."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def _memory(pid: int) -> int:
    """Bytes; of what it shares with others, its part."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _size(folder: Path) -> int:
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(place, name)).st_blocks * 512
    return size
