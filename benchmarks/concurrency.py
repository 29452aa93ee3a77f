"""What handlers that wait gain from running side by side: Ackwise beside bare loops, FastStream, Faust and pyrallel-consumer.

    python -m benchmarks.concurrency [--width 16] [--rounds 3] [--waits 1,20] [--partitions 1,16] [--only "NAME;NAME"] [--json]

One real Kafka on this machine; for each number of partitions a topic that is full before the first contender starts. A handler waits,
as for a service, and counts. Each contender is its own process; in every round each has a turn, and the order rotates. Ratios are
taken within a round, to the bare loop that handles one message after the other. Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.consumers import Bench, Contender, Measurement, default_python, play, running_kafka, spread, table, versions
from rich.console import Console
from rich.table import Table

#: Messages of a turn by the milliseconds that a handler waits: a turn of the slowest takes some twenty seconds.
_MESSAGES: Final = {1: 8_000, 20: 1_000}

#: Different keys of a topic.
_KEYS: Final = 997


class Shape(NamedTuple):
    """One who is measured. `how` is its module's word for its shape, `needs` the distribution that it is about."""

    name: str
    module: str
    how: str
    needs: str | None = None

    def contender(self, wait_ms: int, width: int) -> Contender:
        """Its turn with handlers that wait so long, so many at a time."""
        return Contender(self.name, self.module, f"{self.how} {wait_ms} {width}", self.needs)


#: Distributions whose versions are said.
_PEERS: Final = ("aiokafka", "faststream", "faust-streaming", "pyrallel-consumer")

_BARE: Final = Shape("bare loop, one by one", "bare_at_once", "one")
SHAPES: Final = (
    _BARE,
    Shape("bare loop, gather", "bare_at_once", "gather"),
    Shape("FastStream, ack first", "faststream_workers", "first", "faststream"),
    Shape("FastStream, ack after", "faststream_workers", "after", "faststream"),
    Shape("Faust", "faust_concurrency", "agent", "faust-streaming"),
    Shape("pyrallel-consumer", "pyrallel", "key", "pyrallel-consumer"),
    Shape("Ackwise", "ackwise_at_once", "none"),
    Shape("Ackwise, order key", "ackwise_at_once", "key"),
)


class KeyedBench(Bench):
    """A topic whose keys come again."""

    def key(self, number: int) -> bytes:
        """One of some keys."""
        return b"%04d" % (number % _KEYS)


class Setting(NamedTuple):
    """Partitions of the topic, and milliseconds that a handler waits."""

    partitions: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured, and under what conditions."""

    found: Mapping[Setting, Mapping[Contender, Sequence[Measurement]]]
    conditions: str

    def tables(self) -> list[Table]:
        """A table for each setting."""
        return [self._table(setting, rounds) for setting, rounds in self.found.items()]

    def _table(self, setting: Setting, rounds: Mapping[Contender, Sequence[Measurement]]) -> Table:
        title = f"{setting.partitions} partitions, handlers wait {setting.wait_ms} ms; {self.conditions}"
        made = table(title, "contender", "messages/s", "min", "max", "CPU µs", "× one by one")
        for contender, measurements in rounds.items():
            rates = [1e6 / one.wall for one in measurements]
            made.add_row(
                contender.name, *(f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))),
                f"{statistics.median(one.cpu for one in measurements):.0f}", spread(times(rounds, contender)),
            )  # fmt: skip
        return made

    def as_json(self) -> dict[str, Any]:
        """The same for machines, each round by itself; microseconds per message."""
        return {
            "conditions": self.conditions,
            "settings": [
                {
                    **setting._asdict(),
                    "contenders": {
                        contender.name: {
                            "wall_us": [one.wall for one in measurements],
                            "cpu_us": [one.cpu for one in measurements],
                            "times": times(rounds, contender),
                        }
                        for contender, measurements in rounds.items()
                    },
                }
                for setting, rounds in self.found.items()
            ],
        }


def times(rounds: Mapping[Contender, Sequence[Measurement]], contender: Contender) -> list[float]:
    """How many times the throughput of the bare loop that goes one by one; empty if that had no turn."""
    base = next((measurements for other, measurements in rounds.items() if other.name == _BARE.name), ())
    return [float(floor.wall / mine.wall) for floor, mine in zip(base, rounds[contender], strict=False)]


def able(python: Path, names: Sequence[str], console: Console) -> list[Shape]:
    """Those of `names` (all, if there are none) that can run; a line for each that can't."""
    found, chosen = versions(python), [shape for shape in SHAPES if not names or shape.name in names]
    for shape in chosen:
        if shape.needs is not None and shape.needs not in found:
            console.print(f"{shape.name} is left out: {python} has no {shape.needs}; `make bench` installs it where this Python allows")
    return [shape for shape in chosen if shape.needs is None or shape.needs in found]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Contenders: " + "; ".join(shape.name for shape in SHAPES) + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--width", type=int, default=16, help="handlers at a time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (%(default)s)")
    parser.add_argument("--waits", default="1,20", help="milliseconds that a handler waits (%(default)s)")
    parser.add_argument("--partitions", default="1,16", help="of the topics (%(default)s)")
    parser.add_argument("--messages", type=int, help="of a turn; 8,000 at 1 ms and 1,000 at 20 ms unless given")
    parser.add_argument("--only", default="", metavar="NAMES", help="contenders, with semicolons between")
    parser.add_argument("--python", type=Path, default=default_python(), help="whose environment the contenders run in (%(default)s)")
    parser.add_argument("--brokers", help="a Kafka that runs already; the topics orders-… stay on it")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    options = parser.parse_args(arguments)
    options.names = [name.strip() for name in options.only.split(";") if name.strip()]
    if unknown := set(options.names) - {shape.name for shape in SHAPES}:
        parser.error(f"no contender is named {', '.join(sorted(unknown))}")
    options.settings = [
        Setting(int(partitions), int(wait)) for partitions in options.partitions.split(",") for wait in options.waits.split(",")
    ]
    return options


def run(options: argparse.Namespace, console: Console) -> Figures:
    """All rounds of all settings."""
    shapes, found = able(options.python, options.names, console), {}
    for setting in options.settings:
        messages = options.messages or _MESSAGES.get(setting.wait_ms, 1_000)
        with tempfile.TemporaryDirectory() as made, running_kafka(options.brokers, Path(made)) as brokers:
            bench = KeyedBench(brokers, options.python, Path(made), messages=messages, partitions=setting.partitions)
            asyncio.run(bench.fill())
            contenders = [shape.contender(setting.wait_ms, options.width) for shape in shapes]
            found[setting] = play(bench, contenders, options.rounds, console)
    known = versions(options.python)
    peers = ", ".join(f"{name} {known[name]}" for name in _PEERS if name in known)
    return Figures(found, f"{options.width} at a time, {os.cpu_count()} cores, {peers}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each setting."""
    options = read_options(arguments)
    console = Console(stderr=options.json)
    figures = run(options, console)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        console.print(*figures.tables())


if __name__ == "__main__":
    main()
