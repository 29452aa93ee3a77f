"""What Ackwise costs on Faust: the same stock agents alone and with `app.use(...)`, without a store, in memory and in Redis.

    python -m benchmarks.streams [--messages 100000] [--rounds 5] [--only "NAME;NAME"] [--profile NAME] [--json]

One real Kafka on this machine, one topic of JSON that is full before the first worker starts, agents that do nothing but count: one
with `stream.take(500, within=1)`, one with a loop over messages. Each worker is its own process; in every round each has a turn,
the order rotates, and ratios are taken within a round. Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.consumers import Bench, Contender, Measurement, default_python, play, profiled, running_kafka, spread, table, versions
from rich.console import Console
from rich.table import Table
from tests.databases.redis import redis_server
from tests.databases.server import Missing

_SHAPES: Final = {"take": "take", "each": "loop"}
_REDIS: Final = "redis://"
_STORES: Final = {"Faust": "", "Ackwise": "none", "Ackwise + Dedup": "memory://", "Ackwise + Dedup in Redis": _REDIS}


class Entrant(NamedTuple):
    """An agent's shape, and what is under it."""

    shape: str
    under: str

    @property
    def name(self) -> str:
        """Such as `take, Ackwise`."""
        return f"{_SHAPES[self.shape]}, {self.under}"

    @property
    def stock(self) -> Entrant:
        """Whom it is compared with: the same agent on Faust alone."""
        return Entrant(self.shape, "Faust")

    @property
    def needs_redis(self) -> bool:
        """Can't run where no Redis is installed."""
        return _STORES[self.under] == _REDIS

    def contender(self, redis: str) -> Contender:
        """What is run, with the URL of a Redis."""
        return Contender(self.name, "faust_agent", f"{self.shape} {redis if self.needs_redis else _STORES[self.under]}".strip())


ENTRANTS: Final = tuple(Entrant(shape, under) for shape in _SHAPES for under in _STORES)
#: The share of stock Faust's throughput that is to be left.
AIMS: Final = {Entrant("take", "Ackwise"): 0.9, Entrant("take", "Ackwise + Dedup in Redis"): 1.5}


class JsonBench(Bench):
    """A topic of JSON objects."""

    def value(self, number: int) -> bytes:
        """An order of as many bytes as were asked for."""
        order = json.dumps({"order": number, "customer": f"c{number % 997}", "amount": number % 5000, "note": ""})
        return order.replace('""', f'"{"." * (self.size - len(order))}"').encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured, and under what conditions."""

    rounds: Mapping[Entrant, Sequence[Measurement]]
    conditions: str

    def times(self, entrant: Entrant) -> list[float]:
        """How many times the throughput of the stock agent it has, round by round; empty if that one had no turn."""
        if entrant.stock not in self.rounds:
            return []
        return [float(stock.wall / mine.wall) for stock, mine in zip(self.rounds[entrant.stock], self.rounds[entrant], strict=True)]

    def tables(self) -> list[Table]:
        """Costs with ratios, and the aims."""
        return [self._costs(), self._aims()]

    def _costs(self) -> Table:
        made = table(self.conditions, "agent", "µs/message", "min", "max", "CPU", "queued", "× Faust")
        for entrant, measurements in self.rounds.items():
            walls = [one.wall for one in measurements]
            costs = [
                statistics.median(walls), min(walls), max(walls),
                statistics.median(one.cpu for one in measurements), statistics.median(one.queued for one in measurements),
            ]  # fmt: skip
            made.add_row(entrant.name, *(f"{cost:.1f}" for cost in costs), spread(self.times(entrant)))
        return made

    def _aims(self) -> Table:
        made = table("aims", "agent", "× Faust, at least", "measured: median (min–max)", "")
        for entrant, aim in AIMS.items():
            if entrant in self.rounds and (times := self.times(entrant)):
                made.add_row(entrant.name, f"{aim:g}", spread(times), "reached" if statistics.median(times) >= aim else "missed")
        return made

    def as_json(self) -> dict[str, Any]:
        """The same for machines, each round by itself; microseconds per message."""
        return {
            "conditions": self.conditions,
            "agents": {
                entrant.name: {
                    "wall_us": [one.wall for one in measurements],
                    "cpu_us": [one.cpu for one in measurements],
                    "queued_us": [one.queued for one in measurements],
                    "times": self.times(entrant),
                }
                for entrant, measurements in self.rounds.items()
            },
        }


@contextmanager
def _redis(wanted: bool, folder: Path, console: Console) -> Iterator[str | None]:
    """The URL of a Redis while the block runs; `None`, with a sentence, where none is installed."""
    try:
        with redis_server(folder) if wanted else nullcontext() as server:
            yield None if server is None else f"{_REDIS}127.0.0.1:{server.port}/0"
    except Missing as error:
        console.print(f"Redis is left out: {error}")
        yield None


@contextmanager
def prepared(options: argparse.Namespace, console: Console) -> Iterator[tuple[JsonBench, dict[Entrant, Contender]]]:
    """A broker with a full topic, and those who can run, while the block runs."""
    needs_redis = any(entrant.needs_redis for entrant in options.entrants)
    with (
        tempfile.TemporaryDirectory() as made,
        running_kafka(options.brokers, Path(made)) as brokers,
        _redis(needs_redis, Path(made) / "redis", console) as redis,
    ):
        bench = JsonBench(
            brokers, options.python, Path(made),
            messages=options.messages, batch=options.batch, size=options.size, partitions=options.partitions,
        )  # fmt: skip
        with console.status("filling the topic"):
            asyncio.run(bench.fill())
        able = [entrant for entrant in options.entrants if redis is not None or not entrant.needs_redis]
        yield bench, {entrant: entrant.contender(redis or "") for entrant in able}


def run(options: argparse.Namespace, console: Console) -> Figures:
    """All rounds."""
    with prepared(options, console) as (bench, contenders):
        rounds = play(bench, list(contenders.values()), options.rounds, console)
    found = versions(options.python)
    peers = ", ".join(f"{name} {found[name]}" for name in ("faust-streaming", "aiokafka", "redis") if name in found)
    conditions = f"{options.messages} messages of JSON, batches of {options.batch}, {os.cpu_count()} cores, {peers}"
    return Figures({entrant: rounds[contender] for entrant, contender in contenders.items()}, conditions)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Agents: " + "; ".join(entrant.name for entrant in ENTRANTS) + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=100_000, help="in the topic (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each agent (%(default)s)")
    parser.add_argument("--batch", type=int, default=500, help="messages that `take` gives at most (%(default)s)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (%(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAMES", help="agents, with semicolons between")
    parser.add_argument("--profile", metavar="NAME", help="one turn of this agent under cProfile, and nothing else")
    parser.add_argument("--python", type=Path, default=default_python(), help="whose environment the agents run in (%(default)s)")
    parser.add_argument("--brokers", help="a Kafka that runs already; the topic orders-… stays on it")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in (options.profile or options.only).split(";") if name.strip()]
    if unknown := set(names) - {entrant.name for entrant in ENTRANTS}:
        parser.error(f"no agent is named {', '.join(sorted(unknown))}")
    options.entrants = [entrant for entrant in ENTRANTS if not names or entrant.name in names]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table of agents and one of the aims; or the profile of one agent."""
    options = read_options(arguments)
    console = Console(stderr=options.json)
    if options.profile:
        with prepared(options, console) as (bench, contenders), tempfile.TemporaryDirectory() as folder:
            for contender in contenders.values():
                profiled(bench, contender, Path(folder))
        return
    figures = run(options, console)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        console.print(*figures.tables())


if __name__ == "__main__":
    main()
