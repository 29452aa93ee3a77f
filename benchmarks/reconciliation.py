"""What the reconciliation costs on both engines, beside a bare count by Spark and a program for DuckDB that was written by hand.

    python -m benchmarks.reconciliation [--events 1000000] [--set FOLDER] [--rounds 3] [--memory 2g] [--only "local;DuckDB"] [--json]

The jobs read the files that workers write, in run rows; the other two read the same events, a row each. The truth of a set is known, and
what is said of it is compared with that. Warm: in this process, in rounds in which each has a turn; the first round does not count, and
ratios are taken within a round; each question to `ackwise why` has a process of its own there, too. Cold: each in a process of its own,
from files that are not in memory. Sets of other kinds are made by
`python -m benchmarks.reconciling.generator --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet as pq
from benchmarks.reconciling import engine
from benchmarks.reconciling.comparison import differences
from benchmarks.reconciling.generator import generate
from benchmarks.reconciling.meter import KEPT, Cost, Meter, alone, of_process
from benchmarks.reconciling.shape import Shape
from rich.console import Console
from rich.table import Table

from ackwise.middleware.events import EventCode
from ackwise.spark.commands.engines import computing
from ackwise.spark.commands.options import EngineName
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.sources import gathered, refuse_nothing
from ackwise.spark.job import reconcile
from ackwise.spark.session.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, SPARK, LOCAL, DUCKDB, WHY = "bare count", "Spark", "local", "DuckDB", "why"
WAYS: Final = (COUNT, SPARK, LOCAL, DUCKDB, WHY)
#: Bytes of event files to a partition of the count.
_PARTITION: Final = 8 * 2**20
_MASTER: Final = "local[2]"


class Aim(NamedTuple):
    """What was aimed at: at most so much, or so many times another way."""

    name: str
    way: str
    beside: str | None
    what: str
    bound: float


AIMS: Final = (
    Aim("whole job on Spark, time", SPARK, COUNT, "wall", 3),
    Aim("whole job on Spark, CPU", SPARK, COUNT, "cpu", 3),
    Aim("whole job on Spark, actions", SPARK, None, "actions", 12),
    Aim("whole job on Spark, bytes shuffled", SPARK, None, "shuffled", 150e6),
    Aim("whole job locally, time", LOCAL, DUCKDB, "wall", 1),
    Aim("whole job locally, CPU", LOCAL, DUCKDB, "cpu", 1),
    Aim("why, CPU with the start of the process", WHY, None, "cpu", 2),
)


class Row(NamedTuple):
    """One aim and what was measured; `measured` is a median, `least` and `most` are of the rounds."""

    aim: str
    bound: str
    measured: float
    least: float
    most: float
    is_reached: bool


@dataclass(frozen=True)
class Figures:
    """Everything that was measured."""

    warm: Mapping[str, Sequence[Cost]]
    cold: Mapping[str, Cost]
    rows: Sequence[Row]
    about: str

    def tables(self) -> list[Table]:
        """What each way costs, and the aims."""
        warm = Table("warm", "s", "CPU s", "actions", "jobs", "MB shuffled", title=self.about)
        for name, each in self.warm.items():
            wall, cpu, actions, jobs, shuffled, *_ = (statistics.median(values) for values in zip(*each, strict=True))
            warm.add_row(name, f"{wall:.1f}", f"{cpu:.1f}", f"{actions:.0f}", f"{jobs:.0f}", f"{shuffled / 1e6:,.1f}")
        cold = Table("cold, with its start", "s", "CPU s", "MiB at the peak", "MB of scratch at the peak")
        for name, cost in self.cold.items():
            cold.add_row(name, f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.memory / 2**20:,.0f}", f"{cost.scratch / 1e6:,.0f}")
        aims = Table("aim", "bound", "measured: median (least–most)", "")
        for row in self.rows:
            measured = f"{row.measured:,.2f} ({row.least:,.2f}–{row.most:,.2f})"
            aims.add_row(row.aim, row.bound, measured, "reached" if row.is_reached else "missed")
        return [warm, cold, aims]

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "warm": {name: [cost._asdict() for cost in each] for name, each in self.warm.items()},
            "cold": {name: cost._asdict() for name, cost in self.cold.items()},
            "aims": [row._asdict() for row in self.rows],
        }


def run(options: argparse.Namespace, console: Console) -> Figures:
    """Measure, and compare what was said with the truth. Raises `AssertionError` if it is not so."""
    ways = [way for way in WAYS if not options.only or way in options.only]
    with tempfile.TemporaryDirectory(prefix="reconciliation-") as name:
        folder = Path(name)
        if options.set is None:
            console.print("making the set")
            generate(Shape(options.events), folder / "set")
        bench = _Bench(options.set or folder / "set", folder, options.memory)
        warm = _warm(bench, ways, options.rounds, console)
        cold = {way: _cold(bench, way, console) for way in ways}
        events, files = bench.size()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    about = f"{events:,} events in {files:,} files, {options.rounds} rounds; load of the machine at the end {load}"
    return Figures(warm, cold, _judged(warm), about)


@dataclass(frozen=True)
class _Bench:
    """What all ways have in common."""

    set: Path
    folder: Path
    memory: str

    def size(self) -> tuple[int, int]:
        """Events, some twice, and files."""
        files = list((self.set / "events").rglob("*.parquet"))
        spans = [path.stem.split("-")[2:] for path in files]
        return sum(int(last) - int(first) + 1 for first, last in spans), len(files)

    def files(self, name: str) -> list[Path]:
        return sorted((self.set / name).rglob("*.parquet"))

    def engine(self) -> Engine:
        return Engine(_MASTER, self.memory, KEPT)

    def work(self, way: str, spark: SparkSession | None) -> int:
        """Do it once, in this process, and return the bytes that tasks sent each other in files."""
        out = self.folder / way
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if way == DUCKDB:
            engine.judge(self.files("single"), out, memory=f"{self.memory}b")
        elif way == COUNT:
            assert spark is not None
            bare_count(spark, self.files("single"))
        else:
            return self._job(way, out)
        return 0

    def check(self, way: str) -> None:
        """Raise `AssertionError` if it said what is not so."""
        wrong = [] if way in (COUNT, WHY) else differences(self.folder / way, [self.set])
        if wrong:
            raise AssertionError(f"{way}: {wrong[0]}")

    def command(self, way: str) -> list[str | Path]:
        """What does it in a process of its own."""
        program = Path(sys.executable).with_name("ackwise")
        if way == WHY:
            return [program, "why", self.asked(), self.set]
        if way not in (SPARK, LOCAL):
            return [
                sys.executable,
                "-c",
                f"from benchmarks.reconciliation import once; once({way!r}, {str(self.set)!r}, {str(self.folder)!r}, {self.memory!r})",
            ]
        given = ["--master", _MASTER, "--driver-memory", self.memory] if way == SPARK else []
        name = EngineName.SPARK if way == SPARK else EngineName.LOCAL
        return [program, "reconcile", self.set, "--out", self.folder / way, "--engine", name, *given]

    def asked(self) -> str:
        """A message in the middle of the truth."""
        messages = pq.read_table(self.set / "truth" / "messages.parquet", columns=["topic", "partition", "offset"])
        return "{topic}/{partition}/{offset}".format(**messages.slice(len(messages) // 2, 1).to_pylist()[0])

    def _job(self, way: str, out: Path) -> int:
        chosen = computing(EngineName.SPARK if way == SPARK else EngineName.LOCAL, self.engine())
        with gathered([self.set], out / ".live") as evidence, chosen.begin(evidence, out) as session:
            refuse_nothing(evidence)
            reconcile(session, evidence, out=out, run_id="benchmark", config=ReconcileConfig(), engine=chosen.name)
            return sum(path.stat().st_size for path in (out / ".live").rglob("from-*.arrow"))


def bare_count(spark: SparkSession, files: Sequence[Path]) -> None:
    """The yardstick: messages, and how many events each has."""
    events = spark.read.option("__globPaths__", "false").parquet(*map(str, files))
    messages = events.where(events.event_type < int(EventCode.COMMITTED))
    messages.groupBy("group_id", "topic", "partition", "offset").count().write.format("noop").mode("overwrite").save()


def once(way: str, made: str, folder: str, memory: str) -> None:
    """Do it once, with the start of what it needs."""
    bench = _Bench(Path(made), Path(folder), memory)
    with _session(bench, [way]) as spark:
        bench.work(way, spark)


@contextmanager
def _session(bench: _Bench, ways: Sequence[str]) -> Iterator[SparkSession | None]:
    if not {COUNT, SPARK} & {*ways}:
        yield None
        return
    from ackwise.spark.session.spark import local_session

    # The count has Java's own compilers, and the partitions that suit it; tasks of an audit use neither.
    partitions = max(2 * (os.cpu_count() or 1), sum(path.stat().st_size for path in bench.files("events")) // _PARTITION)
    conf = {**KEPT, "spark.driver.extraJavaOptions": "-XX:+UseG1GC", "spark.sql.shuffle.partitions": str(partitions)}
    with local_session(master=_MASTER, driver_memory=bench.memory, conf=conf) as spark:
        yield spark


def _warm(bench: _Bench, ways: Sequence[str], rounds: int, console: Console) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {}
    if not rounds:
        return found
    with _session(bench, ways) as spark:
        meter = Meter(spark)
        for number in range(rounds + 1):
            for way in ways:
                cost = _ask(bench) if way == WHY else meter.measure(partial(bench.work, way, spark), on_spark=way in (COUNT, SPARK))
                console.print(f"[dim]round {number}: {way}: {cost.wall:.1f} s, CPU {cost.cpu:.1f} s[/]")
                if number:
                    found.setdefault(way, []).append(cost)
                else:
                    bench.check(way)
    return found


def _ask(bench: _Bench) -> Cost:
    """What one question costs, with the start of its process: it keeps nothing from one to the next."""
    log = bench.folder / "log"
    code, cost = of_process(bench.command(WHY), log)
    if code not in (0, 1, 3):
        raise SystemExit(f"why ended with {code}: {log.read_text()[-500:]}")
    return cost


def _cold(bench: _Bench, way: str, console: Console) -> Cost:
    shutil.rmtree(bench.folder / way, ignore_errors=True)
    scratch, log = bench.folder / "scratch", bench.folder / "log"
    shutil.rmtree(scratch, ignore_errors=True)
    folders = [scratch, bench.folder / way / ".live"]
    code, cost = alone(bench.command(way), folders, [*bench.files("events"), *bench.files("single")], log, {"PYTHONHASHSEED": "0"})
    if code not in {SPARK: (1,), LOCAL: (1,), WHY: (0, 1, 3)}.get(way, (0,)):  # the set has anomalies
        raise SystemExit(f"{way} ended with {code}: {log.read_text()[-500:]}")
    bench.check(way)
    console.print(f"[dim]cold: {way}: {cost.wall:.1f} s, CPU {cost.cpu:.1f} s, {cost.memory / 2**20:,.0f} MiB[/]")
    return cost


def _judged(costs: Mapping[str, Sequence[Cost]]) -> list[Row]:
    """What each round measured, beside what was aimed at."""
    rows = []
    for aim in (aim for aim in AIMS if {aim.way, aim.beside or aim.way} <= costs.keys()):
        values = [getattr(cost, aim.what) for cost in costs[aim.way]]
        if aim.beside is not None:
            values = [value / getattr(beside, aim.what) for value, beside in zip(values, costs[aim.beside], strict=True)]
        median = statistics.median(values)
        bound = f"at most {aim.bound:,g}" + (f" × {aim.beside}" if aim.beside else "")
        rows.append(Row(aim.name, bound, median, min(values), max(values), median <= aim.bound))
    return rows


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="about so many; some are added for what must be there")
    parser.add_argument("--set", type=Path, help="a folder that the generator filled, instead of a new set")
    parser.add_argument("--rounds", type=int, default=3, help="that are warm; 0 measures only cold")
    parser.add_argument("--memory", default="2g", help="the heap of Spark, and what DuckDB's program may use")
    parser.add_argument("--only", type=lambda text: text.split(";"), default=[], help=f"some of these: {'; '.join(WAYS)}")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    console = Console(stderr=True)
    found = run(options, console)
    if options.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        Console().print(*found.tables())


if __name__ == "__main__":
    main()
