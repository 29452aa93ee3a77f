"""What the reconciliation costs, beside what one would write first and beside DuckDB.

    python -m benchmarks.reconciliation [--events 2000000] [--rounds 3] [--large 0] [--only "fold;bare count"] [--json]

Sets are made first, with their truth, and what is said of them is compared with it. Everything is measured in one process on one Spark
session with two threads, in rounds in which each has a turn; the first round warms up and does not count. Ratios are taken within a round.
Only the large set (`--large`, in events) is judged by its own processes, in heaps of 1 and 4 GiB, and by DuckDB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.dataset as ds
from benchmarks.reconciling import engine
from benchmarks.reconciling.comparison import differences
from benchmarks.reconciling.formulations import (
    anti_join,
    bare_count,
    drop_duplicates,
    folded,
    gaps_by_lag,
    gaps_by_words,
    windows,
    words_join,
)
from benchmarks.reconciling.generator import generate
from benchmarks.reconciling.meter import KEPT, Cost, Meter, exhaust
from benchmarks.reconciling.shape import Shape
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.schema import EVENT_SCHEMA
from ackwise.spark.events.sources import Evidence, gathered
from ackwise.spark.job import reconcile
from ackwise.spark.session.spark import local_session

_HEAPS: Final = ("1g", "4g")


class Aim(NamedTuple):
    """What was aimed at: at most, or at least, so many times another way."""

    name: str
    way: str
    beside: str
    what: str
    bound: float
    is_least: bool = False


AIMS: Final = (
    Aim("P1 fold, time", "fold", "bare count", "wall", 1.7),
    Aim("P1 fold, CPU", "fold", "bare count", "cpu", 1.4),
    Aim("P3 drop duplicates and count", "drop duplicates", "fold", "wall", 4, is_least=True),
    Aim("P3 windows", "windows", "fold", "wall", 4, is_least=True),
    Aim("P4 whole job, time", "whole job", "bare count", "wall", 6),
    Aim("P4 whole job, CPU", "whole job", "bare count", "cpu", 4.2),
    Aim("P5 produced beside consumed, CPU", "words join", "anti join", "cpu", 0.35),
    Aim("P5 produced beside consumed, shuffle", "words join", "anti join", "bytes", 0.15),
    Aim("P6 offsets without events, shuffle", "gaps by words", "gaps by lag", "bytes", 0.2),
    Aim("P11 ten thousand small files, CPU", "fold, small files", "fold", "cpu", 3),
    Aim("P12 whole job, time", "whole job", "DuckDB", "wall", 4),
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

    costs: Mapping[str, Sequence[Cost]]
    rows: Sequence[Row]
    about: str

    def tables(self) -> list[Table]:
        """One of what each way costs, one of the aims."""
        costs = Table("way", "s", "CPU s", "rows shuffled", "MB shuffled", "slowest ÷ median task", title=self.about)
        for name, each in self.costs.items():
            of = [statistics.median(values) for values in zip(*each, strict=True)]
            costs.add_row(name, f"{of[0]:.1f}", f"{of[1]:.1f}", f"{of[2]:,.0f}", f"{of[3] / 1e6:,.1f}", f"{of[4]:.1f}")
        aims = Table("aim", "bound", "measured: median (least–most)", "")
        for row in self.rows:
            aims.add_row(
                row.aim, row.bound, f"{row.measured:.2f} ({row.least:.2f}–{row.most:.2f})", "reached" if row.is_reached else "missed"
            )
        return [costs, aims]

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "costs": {name: [cost._asdict() for cost in each] for name, each in self.costs.items()},
            "aims": [row._asdict() for row in self.rows],
        }


def run(options: argparse.Namespace, console: Console) -> Figures:
    """Make the sets, measure, and compare what was said with the truth."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="reconciliation-") as name:
        folder = Path(name)
        console.print("making the sets")
        sets = _make(folder, options.events)
        with (
            gathered([folder / "all"], folder / ".live") as evidence,
            local_session(evidence.size, master="local[2]", conf=KEPT) as spark,
        ):
            costs = _rounds(_Bench(spark, folder, evidence), options.rounds, options.only, console)
            rows = [*_judged(costs), *_of_one(costs, sets)]
        if options.large:
            rows += _large(folder / "large", options.large, console)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return Figures(costs, rows, f"{options.events:,} events, {options.rounds} rounds; load of the machine at the end {load}")


def _make(folder: Path, events: int) -> int:
    """The set, the same in small files, and one with a hot partition; how many messages the set has."""
    made = generate(Shape(events), folder / "all")
    generate(Shape(events // 2, 8, topics=1, hot=0.6), folder / "hot")
    rows = ds.dataset(folder / "all" / "events", format="parquet", partitioning=None)
    ds.write_dataset(rows, folder / "small", format="parquet", max_rows_per_file=960, max_rows_per_group=960)
    return made.messages


@dataclass(frozen=True)
class _Bench:
    """What all ways have in common."""

    spark: SparkSession
    folder: Path
    evidence: Evidence

    def ways(self) -> dict[str, Callable[[], object]]:
        """Each by its name; every one reads its files again."""
        events, small, hot = self._read("all/events"), self._read("small"), self._read("hot/events")
        produced = self.spark.read.parquet(str(self.folder / "all" / "produced"))
        mine = events.where("group_id = 'billing'")
        return {
            "bare count": lambda: exhaust(bare_count(events)),
            "fold": lambda: exhaust(folded(events)),
            "drop duplicates": lambda: exhaust(drop_duplicates(events)),
            "windows": lambda: exhaust(windows(events)),
            "words join": lambda: words_join(mine, produced).collect(),
            "anti join": lambda: anti_join(mine, produced).collect(),
            "gaps by words": lambda: exhaust(gaps_by_words(hot)),
            "gaps by lag": lambda: exhaust(gaps_by_lag(hot)),
            "fold, small files": lambda: exhaust(folded(small)),
            "whole job": self._job,
            "DuckDB": self._duckdb,
        }

    def check(self) -> None:
        """Raise `AssertionError` if the job or DuckDB said what is not so."""
        for run_folder in filter(lambda name: (self.folder / name).exists(), ("run", "duckdb")):
            wrong = differences(self.folder / run_folder, [self.folder / "all"])
            if wrong:
                raise AssertionError(f"{run_folder}: {wrong[0]}")

    def _read(self, name: str) -> DataFrame:
        paths = sorted(map(str, (self.folder / name).rglob("*.parquet")))
        return self.spark.read.option("__globPaths__", "false").schema(EVENT_SCHEMA).parquet(*paths)

    def _job(self) -> None:
        out = self.folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        reconcile(self.spark, self.evidence, out=out, run_id="benchmark", config=ReconcileConfig())

    def _duckdb(self) -> None:
        shutil.rmtree(self.folder / "duckdb", ignore_errors=True)
        engine.judge(self.evidence.files, self.folder / "duckdb")


def _rounds(bench: _Bench, rounds: int, only: Sequence[str], console: Console) -> dict[str, list[Cost]]:
    meter, found = Meter(bench.spark), dict[str, list[Cost]]()
    ways = {name: work for name, work in bench.ways().items() if not only or name in only}
    for number in range(rounds + 1):
        for name, work in ways.items():
            cost = meter.measure(work)
            console.print(f"[dim]round {number}: {name}: {cost.wall:.1f} s, CPU {cost.cpu:.1f} s[/]")
            if number:
                found.setdefault(name, []).append(cost)
        if not number:
            bench.check()
    return found


def _judged(costs: Mapping[str, Sequence[Cost]]) -> list[Row]:
    """The ratios of each round beside what was aimed at."""
    rows = []
    for aim in (aim for aim in AIMS if {aim.way, aim.beside} <= costs.keys()):
        pairs = zip(costs[aim.way], costs[aim.beside], strict=True)
        ratios = [getattr(way, aim.what) / getattr(beside, aim.what) for way, beside in pairs]
        median = statistics.median(ratios)
        bound = f"at {'least' if aim.is_least else 'most'} {aim.bound:g} × {aim.beside}"
        reached = median >= aim.bound if aim.is_least else median <= aim.bound
        rows.append(Row(f"{aim.name}: {aim.way}", bound, median, min(ratios), max(ratios), reached))
    return rows


def _of_one(costs: Mapping[str, Sequence[Cost]], messages: int) -> list[Row]:
    """What is no ratio of two ways."""
    shuffled = [cost.rows / messages for cost in costs.get("fold", ())]
    skew = [cost.skew for cost in costs.get("gaps by words", ())]
    rows = {"P2 fold: rows shuffled per message": (1.1, shuffled), "P6 gaps by words, a hot partition: slowest ÷ median task": (2, skew)}
    return [_row(name, bound, values) for name, (bound, values) in rows.items() if values]


def _row(name: str, bound: float, values: Sequence[float]) -> Row:
    median = statistics.median(values)
    return Row(name, f"at most {bound:g}", median, min(values), max(values), median <= bound)


def _large(folder: Path, events: int, console: Console) -> list[Row]:
    """The large set in their own processes."""
    console.print(f"making {events:,} events")
    generate(Shape(events), folder)
    found = {heap: _process(folder, heap, console) for heap in _HEAPS}
    began = time.perf_counter()
    files = sorted((folder / "events").rglob("*.parquet"))
    engine.judge(files, folder / "duckdb")
    duckdb = time.perf_counter() - began
    console.print(f"[dim]DuckDB: {duckdb:.1f} s[/]")
    small, ample = found[_HEAPS[0]], found[_HEAPS[1]]
    return [
        _row(f"P8 {events:,} events in a heap of 1 GiB: CPU ÷ that in 4 GiB", 1.5, [small.cpu / ample.cpu]),
        _row(f"P12 {events:,} events, time with the start ÷ DuckDB", 4, [ample.wall / duckdb]),
    ]


def _process(folder: Path, heap: str, console: Console) -> Cost:
    """Judge it by the command, and compare what it says with the truth."""
    out = folder / f"run-{heap}"
    command = [
        Path(sys.executable).with_name("ackwise"),
        "reconcile",
        folder,
        "--out",
        out,
        "--driver-memory",
        heap,
        "--master",
        "local[2]",
    ]
    began, log = time.perf_counter(), folder / f"run-{heap}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
    used: dict[str, float] = {}
    while process.poll() is None:
        used |= _computed_in(process.pid)
        time.sleep(0.5)
    wall = time.perf_counter() - began
    if process.returncode != 1:  # the set has anomalies
        raise SystemExit(f"ackwise reconcile in a heap of {heap} ended with {process.returncode}: {log.read_text()[-500:]}")
    wrong = differences(out, [folder])
    if wrong:
        raise AssertionError(wrong[0])
    shutil.rmtree(out)
    cpu = sum(used.values())
    console.print(f"[dim]heap of {heap}: {wall:.1f} s, CPU {cpu:.1f} s[/]")
    return Cost(wall, cpu, 0, 0, 0.0)


def _computed_in(session: int) -> dict[str, float]:
    """Seconds that each process of a session has computed. Who waits for nobody, such as a JVM, is in nobody's `getrusage`."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session:
                found[stat.parent.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000, help="about so many; some are added for what must be there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(";"), default=[], help="these ways, separated by semicolons")
    parser.add_argument("--large", type=int, default=0, help="events of the set for their own processes; 0 leaves it out")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder. Some 60 bytes an event")
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
