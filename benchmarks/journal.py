"""What an event costs: to record, to make durable, to export, and what the event loop feels of it.

    python -m benchmarks.journal [--events 300000] [--block 10000] [--folder FOLDER] [--json]

The events are what messages leave behind when all goes well: CLAIMED with a random dedup hash, SUCCEEDED with random
durations, and a RECEIVED_RANGE for every hundred. Each figure is the median of five runs. JSON lines are the yardstick:
the same events, one object a line, written and fsynced block by block on the loop's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ackwise.middleware.eventlog import EventBuffer
from ackwise.middleware.events import Event, EventCode, RunEvents
from ackwise.stores.journal import Journal

_RUNS: Final = 5
_RATE: Final = 50_000  # events per second at which lateness is measured


def make_events(count: int) -> list[Event]:
    """What a worker records for `count` events of twelve partitions without a failure."""
    chance = random.Random(7)
    events: list[Event] = []
    offset = 0
    while len(events) < count:
        partition = offset // 100 % 12
        events.append(Event(EventCode.RECEIVED_RANGE, "orders", partition, offset, range_end=offset + 100))
        for exec_id in range(offset, offset + 100):
            taken = (offset // 1200) * 100 + exec_id % 100
            events += (
                Event(
                    EventCode.CLAIMED, "orders", partition, taken, "bill", 1, exec_id, chance.getrandbits(63), 0,
                    1_767_225_600_000 + exec_id * 2, lost=0, took_unreleased=False,
                ),
                Event(
                    EventCode.SUCCEEDED, "orders", partition, taken, "bill", 1, exec_id, record_ts_ms=1_767_225_600_000 + exec_id * 2,
                    duration_us=chance.randint(200, 5_000), queue_us=chance.randint(10, 900),
                ),
            )  # fmt: skip
        offset += 100
    return events[:count]


def seconds_to_record(events: list[Event]) -> float:
    """Packing alone."""
    record = EventBuffer().record
    started = time.perf_counter()
    for event in events:
        record(event)
    return time.perf_counter() - started


def make_runs(count: int, size: int = 500) -> list[RunEvents]:
    """The same of messages that went the same way `size` at a time."""
    chance = random.Random(7)
    runs: list[RunEvents] = []
    for first in range(0, count // 2, size):
        ids, times = range(first, first + size), [1_767_225_600_000 + place * 2 for place in range(first, first + size)]
        hashes = [chance.getrandbits(63) for _ in ids]
        about = "orders", first // size % 12, ids, "bill", 1, times, ids
        runs += (
            RunEvents(EventCode.CLAIMED, *about, hashes, 0, lost=0, took_unreleased=False),
            RunEvents(EventCode.SUCCEEDED, *about, hashes, 0, duration_us=chance.randint(200, 5_000)),
        )
    return runs


def seconds_to_record_runs(runs: list[RunEvents]) -> float:
    """Packing and encoding alone, of runs."""
    buffer = EventBuffer()
    started = time.perf_counter()
    for run in runs:
        buffer.record_run(run)
    for block in buffer.seal():
        block.encode()
    return time.perf_counter() - started


async def seconds_to_flush(events: list[Event], block: int, folder: Path) -> tuple[float, list[float]]:
    """Recording and making durable, block by block, with the rolls that fall due; and each flush alone."""
    journal = Journal(folder, cluster="main", group_id="billing", roll_events=block)
    await journal.open()
    flushes = []
    started = time.perf_counter()
    for first in range(0, len(events), block):
        for event in events[first : first + block]:
            journal.record(event)
        flush_started = time.perf_counter()
        await journal.flush()
        flushes.append(time.perf_counter() - flush_started)
    taken = time.perf_counter() - started
    await journal.close()
    return taken, flushes


def seconds_as_json(events: list[Event], block: int, folder: Path) -> tuple[float, int]:
    """The yardstick, and how many bytes it wrote."""
    path = folder / "events.jsonl"
    with path.open("wb") as file:
        started = time.perf_counter()
        for first in range(0, len(events), block):
            file.writelines(_line(event) for event in events[first : first + block])
            file.flush()
            os.fsync(file.fileno())
        taken = time.perf_counter() - started
    return taken, path.stat().st_size


def _line(event: Event) -> bytes:
    given = {name: value for name, value in event._asdict().items() if value is not None}
    return json.dumps({"ts": time.time_ns(), **given}).encode() + b"\n"


async def lateness(work: Callable[[], Awaitable[object]]) -> list[float]:
    """How late the loop wakes a timer of one millisecond while `work` goes on, in seconds."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    await work()
    ticking.cancel()
    return late


async def idle(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def record_at_rate(events: list[Event], folder: Path) -> None:
    """Record in bursts of a hundred at `_RATE` with a flush every tenth of a second, and the rolls that fall due."""
    journal = Journal(folder, cluster="main", group_id="billing")
    await journal.open()
    started = time.perf_counter()
    flush: asyncio.Task[None] | None = None
    for first in range(0, len(events), 100):
        for event in events[first : first + 100]:
            journal.record(event)
        if first % (_RATE // 10) == 0 and (flush is None or flush.done()):
            flush = asyncio.create_task(journal.flush())
        await asyncio.sleep(max(0.0, started + first / _RATE - time.perf_counter()))
    await journal.close()


def parquet_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, in microseconds and bytes per event."""

    record: float
    runs: float
    durable: float
    flush: float  # milliseconds for a block
    json: float
    parquet_bytes: float
    json_bytes: float


def measure(events: list[Event], block: int, folder: Path) -> Figures:
    recorded = seconds_to_record(events)
    runs = make_runs(len(events))
    in_runs = seconds_to_record_runs(runs) / sum(map(len, runs))
    durable, flushes = asyncio.run(seconds_to_flush(events, block, folder / "journal"))
    as_json, json_bytes = seconds_as_json(events, block, folder)
    per_event = 1e6 / len(events)
    return Figures(
        record=recorded * per_event,
        runs=in_runs * 1e6,
        durable=durable * per_event,
        flush=statistics.median(flushes) * 1e3,
        json=as_json * per_event,
        parquet_bytes=parquet_bytes(folder / "journal") / len(events),
        json_bytes=json_bytes / len(events),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of figures: under each name the values that its columns stand for."""

    title: str
    columns: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]

    def table(self) -> Table:
        made = Table(self.title, *self.columns)
        for name, values in self.values.items():
            made.add_row(name, *(f"{value:.2f}" for value in values))
        return made

    def as_json(self) -> dict[str, dict[str, float]]:
        return {name: dict(zip(self.columns, values, strict=True)) for name, values in self.values.items()}


def costs(runs: list[Figures]) -> Rows:
    rows = {
        "record, µs per event": [run.record for run in runs],
        "record and encode in runs of 500, µs per event": [run.runs for run in runs],
        "record and flush, µs per event": [run.durable for run in runs],
        "one flush of a block, ms": [run.flush for run in runs],
        "JSON lines and fsync, µs per event": [run.json for run in runs],
        "Parquet, bytes per event": [run.parquet_bytes for run in runs],
        "JSON lines, bytes per event": [run.json_bytes for run in runs],
    }
    spread = {name: (statistics.median(values), min(values), max(values)) for name, values in rows.items()}
    return Rows("what an event costs", ("median", "least", "most"), spread)


def latenesses(events: list[Event], folder: Path) -> Rows:
    found: dict[str, tuple[float, ...]] = {}
    for name, late in {
        "nothing else": asyncio.run(lateness(lambda: idle(len(events) / _RATE))),
        "journal": asyncio.run(lateness(lambda: record_at_rate(events, folder))),
    }.items():
        cuts = statistics.quantiles(late, n=100)
        found[name] = (cuts[49] * 1e3, cuts[98] * 1e3, max(late) * 1e3)
    return Rows(f"loop lateness at {_RATE} events/s, ms", ("p50", "p99", "most"), found)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--block", type=int, default=10_000, help="events in one flush")
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> list[Rows]:
    """Everything, each table by itself."""
    events = make_events(options.events)
    runs = []
    for _ in range(_RUNS):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            runs.append(measure(events, options.block, Path(folder)))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return [costs(runs), latenesses(events, Path(folder))]


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    found = run(options)
    if options.json:
        print(json.dumps({rows.title: rows.as_json() for rows in found}, indent=2))
    else:
        Console().print(*(rows.table() for rows in found))


if __name__ == "__main__":
    main()
