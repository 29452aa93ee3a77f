"""What the events of a message cost, by the size of batches: to record, encode, write and roll, on disk, and for a start mark.

    python -m benchmarks.journal [--messages 100000] [--rounds 5] [--folder FOLDER] [--json]

The events are what messages leave behind when all goes well: CLAIMED with a random dedup hash and SUCCEEDED, of twelve partitions in turn,
from a made-up clock. Batches of 1 stand for handlers of single messages. 500 messages are flushed together, and a log file has
100,000 events, as in a worker. Recording, encoding, rolling and marks are in CPU time; writing is in wall time, since it waits for the
disk. Each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ackwise.middleware.eventlog import EventBuffer, EventLog, LogHeader, encoded, parse_log
from ackwise.middleware.events import Event, EventCode, RunEvents, explode, marks_of
from ackwise.stores.journal.log import LogFile, LogWriter
from ackwise.stores.journal.parquet import export

_SIZES: Final = (500, 50, 10, 1)
_FLUSH: Final = 500  # messages
_FILE: Final = 50_000  # messages of a log file, which has two events of each
_PARTITIONS: Final = 12
_START_NS: Final = 1_767_272_400_000_000_000
_HEADER: Final = LogHeader(2**62 + 1, 0, "main", "billing", "worker-1")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded at one moment."""

    at_ns: int
    events: RunEvents


class Clock:
    """Says what it was set to."""

    def __init__(self) -> None:
        self.now_ns = _START_NS

    def __call__(self) -> int:
        return self.now_ns


def make_events(messages: int, size: int) -> Iterator[Recorded]:
    """What a worker records for so many messages, `size` at a time: each partition starts a batch and then reports it."""
    chance, clock = random.Random(7), _START_NS
    open_batches: dict[int, RunEvents] = {}
    offsets = dict.fromkeys(range(_PARTITIONS), 0)
    for first in range(0, messages, size):
        partition = first // size % _PARTITIONS
        clock += chance.randrange(4_000, 40_000) * size
        if (started := open_batches.get(partition)) is not None:
            yield Recorded(clock, _success(started, chance))
        at = offsets[partition]
        offsets[partition] += size
        times = [(clock // 1_000_000) - 90 + place // 9 + chance.randrange(2) for place in range(size)]
        hashes = [chance.getrandbits(63) for _ in times]
        about = (
            "orders",
            partition,
            range(at, at + size),
            "bill",
            1,
            times,
            range(partition << 40 | at, (partition << 40 | at) + size),
            hashes,
            0,
        )
        open_batches[partition] = RunEvents(EventCode.CLAIMED, *about, lost=0, took_unreleased=False)
        clock += chance.randrange(2_000, 20_000)
        yield Recorded(clock, open_batches[partition])
    for started in open_batches.values():
        clock += 40_000 * size
        yield Recorded(clock, _success(started, chance))


def _success(started: RunEvents, chance: random.Random) -> RunEvents:
    place = started.topic, started.partition, started.offsets, started.handler, started.attempt
    each = started.record_ts_ms, started.exec_ids, started.dedup_hashes, started.dedup_epoch
    return RunEvents(EventCode.SUCCEEDED, *place, *each, duration_us=chance.randint(200, 5_000))


@dataclass(frozen=True, slots=True)
class Figures:
    """One round with one size of batches; microseconds and bytes are of a message, but those of a mark."""

    record: float
    encode: float
    write: float
    roll: float
    log_bytes: float
    parquet_bytes: float
    mark: float


_NAMES: Final = (
    "record, µs",
    "encode, µs",
    "write and fsync, µs of wall time",
    "roll, µs",
    "log, bytes",
    "Parquet, bytes",
    "a mark, µs each",
)


def measure(messages: int, size: int, folder: Path) -> Figures:
    clock = Clock()
    buffer = EventBuffer(now_ns=clock, mono_ns=clock)
    events = list(make_events(messages, size))
    record = encode = write = roll = 0.0
    log_bytes = 0
    for number, of_file in enumerate(_parts(events, 2 * _FILE // size)):
        first_seq = buffer.next_seq
        log = LogFile(folder / f"{number}.wal", replace(_HEADER, first_seq=first_seq).encode())
        for of_flush in _parts(of_file, max(1, 2 * _FLUSH // size)):
            record += _seconds_to_record(buffer, clock, of_flush)
            started = time.process_time()
            data = encoded(buffer.seal(), first_seq)
            encode += time.process_time() - started
            started = time.perf_counter()
            log.append(data)
            log.sync(log.end)
            write += time.perf_counter() - started
        log_bytes += log.size
        log.close()
        started = time.process_time()
        parsed = parse_log(log.path.read_bytes())
        assert isinstance(parsed, EventLog)
        export(parsed, folder)
        roll += time.process_time() - started
    parquet_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    each = 1e6 / messages
    costs = record * each, encode * each, write * each, roll * each
    return Figures(*costs, log_bytes / messages, parquet_bytes / messages, seconds_to_mark(events, size, folder) * 1e6)


def _parts(events: Sequence[Recorded], size: int) -> Iterator[Sequence[Recorded]]:
    return (events[first : first + size] for first in range(0, len(events), size))


def _seconds_to_record(buffer: EventBuffer, clock: Clock, events: Sequence[Recorded]) -> float:
    """As a worker does: what is about one message is one event."""
    singles = [(each.at_ns, explode(each.events)[0] if len(each.events) == 1 else None, each.events) for each in events]
    started = time.process_time()
    for at_ns, event, run in singles:
        clock.now_ns = at_ns
        if event is None:
            buffer.record_run(run)
        else:
            buffer.record(event)
    return time.process_time() - started


def seconds_to_mark(events: Sequence[Recorded], size: int, folder: Path) -> float:
    """What a mark takes: the start of a batch, or of single messages one event that covers those of a fetch."""
    buffer, writer = EventBuffer(), LogWriter(folder, _HEADER, roll_events=10**9, roll_seconds=10**9)
    writer.write()
    starts = [each.events for each in events if each.events.code is EventCode.CLAIMED][:200]
    taken = 0.0
    for start in starts:
        if size == 1:
            marked: list[Event] = [*marks_of(start.topic, start.partition, start.handler, range(_FLUSH))]
            buffer.record(marked[0])
        else:
            buffer.record_run(start)
        started = time.process_time()
        for block in buffer.seal():
            writer.put(block)
        writer.mark()
        taken += time.process_time() - started
    writer.finish()
    return taken / len(starts)


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


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no table")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> list[Rows]:
    """One table, with a column for each size of batches."""
    found: dict[int, list[Figures]] = {size: [] for size in _SIZES}
    for _ in range(options.rounds):
        for size in _SIZES:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                found[size].append(measure(options.messages, size, Path(folder)))
    medians = [[statistics.median(values) for values in zip(*map(astuple, rounds), strict=True)] for rounds in found.values()]
    assert len(_NAMES) == len(fields(Figures))
    values = {name: tuple(of_size[place] for of_size in medians) for place, name in enumerate(_NAMES)}
    return [Rows("what the events of a message cost", tuple(f"batches of {size}" for size in _SIZES), values)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    found = run(options)
    if options.json:
        print(json.dumps({rows.title: rows.as_json() for rows in found}, indent=2))
    else:
        Console().print(*(rows.table() for rows in found))


if __name__ == "__main__":
    main()
