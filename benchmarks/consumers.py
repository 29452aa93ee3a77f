"""What a message costs: Ackwise beside the bare client, FastStream, Faust and a hand-written claim per message.

    python -m benchmarks.consumers [--messages 200000] [--rounds 5] [--only "NAME;NAME"] [--profile NAME] [--json]

One real Kafka on this machine, one topic that is full before the first contender starts, a handler that does nothing
but count. Each contender is its own process; in every round each has a turn, and the order rotates. What is
measured lies between the first batch handled and the last. Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from ackwise.plugin.local.localkafka import local_kafka

_CHECKOUT: Final = Path(__file__).resolve().parent.parent
_TIMEOUT: Final = 600.0  # seconds for one contender's turn


class Contender(NamedTuple):
    """One who is measured. `needs` is the distribution that it is about, where that is not Ackwise's own client."""

    name: str
    module: str
    variant: str = ""
    needs: str | None = None


CONTENDERS: Final = (
    Contender("bare aiokafka loop", "bare"),
    Contender("FastStream batch", "faststream_batch", needs="faststream"),
    Contender("FastStream batch, raw", "faststream_batch", "raw", needs="faststream"),
    Contender("Faust take", "faust_take", needs="faust-streaming"),
    Contender("claim per message", "claim_each"),
    Contender("Ackwise", "ackwise_agent", "plain"),
    Contender("Ackwise + Dedup", "ackwise_agent", "dedup"),
    Contender("Ackwise + Dedup + Events", "ackwise_agent", "dedup+events"),
)
#: Whom throughput is given as a multiple of.
_BASES: Final = {"bare": CONTENDERS[0], "FastStream": CONTENDERS[1], "FastStream raw": CONTENDERS[2], "Faust": CONTENDERS[3]}


class Aim(NamedTuple):
    """What is wanted of a contender, as a multiple of what a base has."""

    contender: str
    base: str
    of: Literal["CPU, at most", "throughput, at least"]
    bound: float

    def is_reached(self, median: float) -> bool:
        """Whether that is enough."""
        return median <= self.bound if self.of == "CPU, at most" else median >= self.bound


AIMS: Final = (
    Aim("Ackwise", "bare", "CPU, at most", 1.5),
    Aim("Ackwise + Dedup", "bare", "CPU, at most", 2.5),
    Aim("Ackwise + Dedup + Events", "bare", "CPU, at most", 4.0),
    Aim("Ackwise + Dedup", "bare", "throughput, at least", 0.4),
    Aim("Ackwise + Dedup + Events", "bare", "throughput, at least", 0.6),
    Aim("Ackwise + Dedup", "FastStream", "throughput, at least", 2.5),
    Aim("Ackwise + Dedup", "FastStream raw", "throughput, at least", 0.6),
    Aim("Ackwise + Dedup", "Faust", "throughput, at least", 12.0),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One turn, in microseconds per message."""

    wall: float
    cpu: float
    queued: float  #: ready to run while others had the cores
    phases: Mapping[str, float]

    @property
    def idle(self) -> float:
        """Waiting for the broker."""
        return max(0.0, self.wall - self.cpu - self.queued)


class Bench:
    """A topic full of messages on a running broker, and turns of contenders on it."""

    def __init__(
        self, brokers: str, python: Path, folder: Path, *, messages: int, batch: int = 500, size: int = 100, partitions: int = 4
    ) -> None:
        self._brokers = brokers
        self._python = python
        self._folder = folder
        self._messages = messages
        self._batch = batch
        self.size = size
        self._partitions = partitions
        self._run = uuid.uuid4().hex[:8]
        self._topic = f"orders-{self._run}"
        self._turns = 0

    async def fill(self) -> None:
        """Make the topic and write every message to it."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._brokers)
        await admin.start()
        await admin.create_topics([NewTopic(self._topic, self._partitions, 1)])
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=self._brokers, linger_ms=20, max_batch_size=256 * 1024) as producer:
            for number in range(self._messages):
                await producer.send(self._topic, self.value(number), key=self.key(number), partition=number % self._partitions)
            await producer.flush()

    def value(self, number: int) -> bytes:
        """What is in the message of that number."""
        return (b"%08d" % number).rjust(self.size, b".")

    def key(self, number: int) -> bytes:
        """The key of the message of that number; no two are equal."""
        return b"%08d" % number

    async def forget(self, group: str) -> None:
        """Delete the topics that a contender has made, so that the next one has the broker to itself."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._brokers)
        await admin.start()
        made = [topic for topic in await admin.list_topics() if topic.startswith(group)]
        if made:
            await admin.delete_topics(made)
        await admin.close()

    def turn(self, contender: Contender, *, phases: bool = False, profile: Path | None = None) -> Measurement:
        """Let `contender` handle the whole topic. Raises `SystemExit` with its last words if it fails."""
        self._turns += 1
        group = f"turn-{self._run}-{self._turns}"
        folder = self._folder / group
        folder.mkdir()
        command = [
            *(str(self._python), "-m", f"benchmarks.contenders.{contender.module}"),
            *("--brokers", self._brokers, "--topic", self._topic, "--group", group, "--folder", str(folder)),
            *("--messages", str(self._messages), "--batch", str(self._batch)),
            *("--variant", contender.variant + ("+phases" if phases else "")),
            *(() if profile is None else ("--profile", str(profile))),
        ]
        ended = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        asyncio.run(self.forget(group))
        if ended.returncode or not ended.stdout.strip():
            raise SystemExit(f"{contender.name} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        return Measurement(**json.loads(ended.stdout.splitlines()[-1]))


def versions(python: Path) -> dict[str, str]:
    """The distributions of that Python's environment."""
    folders = subprocess.run(
        [str(python), "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], capture_output=True, text=True, check=True
    )
    return {found.metadata["Name"].lower().replace("_", "-"): found.version for found in distributions(path=json.loads(folders.stdout))}


def able(python: Path, names: Sequence[str]) -> tuple[list[Contender], list[str]]:
    """Those of `names` (all, if there are none) that can run, and a line for each that can't."""
    found = versions(python)
    chosen = [contender for contender in CONTENDERS if not names or contender.name in names]
    missing = [contender for contender in chosen if contender.needs is not None and contender.needs not in found]
    left_out = [f"{contender.name} is left out: {python} has no {contender.needs}; `make bench` installs it" for contender in missing]
    return [contender for contender in chosen if contender not in missing], left_out


def play(bench: Bench, contenders: Sequence[Contender], rounds: int, console: Console) -> dict[Contender, list[Measurement]]:
    """Every contender in every round; the order moves on by one each time, so that nobody always follows the same."""
    found: dict[Contender, list[Measurement]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            with console.status(f"round {number + 1} of {rounds}: {contender.name}"):
                found[contender].append(bench.turn(contender))
    return found


def ratios(found: Mapping[Contender, Sequence[Measurement]], base: Contender) -> dict[Contender, list[float]]:
    """How many times the throughput of `base` each has, round by round."""
    return {
        contender: [float(floor.wall / mine.wall) for floor, mine in zip(found[base], measurements, strict=True)]
        for contender, measurements in found.items()
        if base in found
    }


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured: the rounds, one turn with the phases timed, and under what conditions."""

    rounds: Mapping[Contender, Sequence[Measurement]]
    phases: Mapping[Contender, Measurement]
    conditions: str

    def tables(self) -> list[Table]:
        """Costs, ratios, and the phases of those that have some."""
        return [self._costs(), self._ratios(), self._aims(), *([self._phases()] if self.phases else [])]

    def _costs(self) -> Table:
        made = table(self.conditions, "contender", "µs/message", "min", "max", "CPU", "queued", "idle")
        for contender, measurements in self.rounds.items():
            walls = [one.wall for one in measurements]
            columns = zip(*((one.cpu, one.queued, one.idle) for one in measurements), strict=True)
            costs = [statistics.median(walls), min(walls), max(walls), *map(statistics.median, columns)]
            made.add_row(contender.name, *(f"{cost:.2f}" for cost in costs))
        return made

    def _ratios(self) -> Table:
        made = table("throughput as a multiple: median (min–max) over the rounds", "contender", *(f"× {base}" for base in _BASES))
        against = [ratios(self.rounds, contender) for contender in _BASES.values()]
        for contender in self.rounds:
            made.add_row(contender.name, *(spread(shares.get(contender)) for shares in against))
        return made

    def _aims(self) -> Table:
        made = table("aims", "contender", "as a multiple of", "what", "aim", "measured: median (min–max)", "")
        for aim in AIMS:
            if times := self.times(aim):
                reached = "reached" if aim.is_reached(statistics.median(times)) else "missed"
                made.add_row(aim.contender, aim.base, aim.of, f"{aim.bound:g}", spread(times), reached)
        return made

    def times(self, aim: Aim) -> list[float]:
        """The multiple that `aim` is about, round by round; empty if one of both had no turn."""
        found = {contender.name: measurements for contender, measurements in self.rounds.items()}
        pairs = zip(found.get(aim.contender, ()), found.get(_BASES[aim.base].name, ()), strict=False)
        if aim.of == "CPU, at most":
            return [float(mine.cpu / floor.cpu) for mine, floor in pairs]
        return [float(floor.wall / mine.wall) for mine, floor in pairs]

    def _phases(self) -> Table:
        made = table("where Ackwise's time goes", "CPU µs/message", *(contender.name for contender in self.phases))
        for phase in next(iter(self.phases.values())).phases:
            made.add_row(phase, *(f"{measured.phases[phase]:.2f}" for measured in self.phases.values()))
        made.add_row("all", *(f"{sum(measured.phases.values()):.2f}" for measured in self.phases.values()))
        return made

    def as_json(self) -> dict[str, Any]:
        """The same for machines, each round by itself."""
        against = {base: ratios(self.rounds, contender) for base, contender in _BASES.items()}
        return {
            "conditions": self.conditions,
            "contenders": {
                contender.name: {
                    "wall_us": [one.wall for one in measurements],
                    "cpu_us": [one.cpu for one in measurements],
                    "queued_us": [one.queued for one in measurements],
                    "times": {base: shares[contender] for base, shares in against.items() if shares},
                }
                for contender, measurements in self.rounds.items()
            },
            "aims": [{**aim._asdict(), "times": self.times(aim)} for aim in AIMS],
            "phases_us": {contender.name: dict(measured.phases) for contender, measured in self.phases.items()},
        }


def table(title: str, first: str, *columns: str) -> Table:
    """An empty one: a column of names, and some of figures."""
    made = Table(title=title)
    made.add_column(first, no_wrap=True)
    for name in columns:
        made.add_column(name, justify="right")
    return made


def spread(values: Sequence[float] | None) -> str:
    """The median, and from where to where."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else ""


def profiled(bench: Bench, contender: Contender, folder: Path) -> None:
    """One turn under cProfile, its costliest functions on standard output."""
    path = folder / "profile"
    bench.turn(contender, profile=path)
    pstats.Stats(str(path)).sort_stats("tottime").print_stats(45)


@contextmanager
def running_kafka(given: str | None, folder: Path) -> Iterator[str]:
    """The address of the one that is given, or of one in `folder` while the block runs."""
    if given is not None:
        yield given
        return
    with local_kafka(folder / "kafka") as broker:
        yield broker.bootstrap


def default_python() -> Path:
    """The environment that has the peers, if `make bench` has made it."""
    peers = _CHECKOUT / ".venv-bench" / "bin" / "python"
    return peers if peers.exists() else Path(sys.executable)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Contenders: " + "; ".join(contender.name for contender in CONTENDERS) + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=200_000, help="in the topic (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (%(default)s)")
    parser.add_argument("--batch", type=int, default=500, help="messages that a handler gets at most (%(default)s)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (%(default)s)")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAMES", help="contenders, with semicolons between")
    parser.add_argument("--profile", metavar="NAME", help="one turn of this contender under cProfile, and nothing else")
    parser.add_argument("--python", type=Path, default=default_python(), help="whose environment the contenders run in (%(default)s)")
    parser.add_argument("--brokers", help="a Kafka that runs already; the topic orders-… stays on it")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    options = parser.parse_args(arguments)
    options.names = [name.strip() for name in (options.profile or options.only).split(";") if name.strip()]
    if unknown := set(options.names) - {contender.name for contender in CONTENDERS}:
        parser.error(f"no contender is named {', '.join(sorted(unknown))}")
    return options


@contextmanager
def prepared(options: argparse.Namespace, console: Console) -> Iterator[Bench]:
    """A broker and a full topic while the block runs."""
    with tempfile.TemporaryDirectory() as made, running_kafka(options.brokers, Path(made)) as brokers:
        bench = Bench(
            brokers, options.python, Path(made),
            messages=options.messages, batch=options.batch, size=options.size, partitions=options.partitions,
        )  # fmt: skip
        with console.status("filling the topic"):
            asyncio.run(bench.fill())
        yield bench


def run(options: argparse.Namespace, console: Console) -> Figures:
    """All rounds, and then one turn with its phases for each contender that is Ackwise."""
    contenders, left_out = able(options.python, options.names)
    for line in left_out:
        console.print(line)
    with prepared(options, console) as bench:
        rounds = play(bench, contenders, options.rounds, console)
        phases = {contender: bench.turn(contender, phases=True) for contender in contenders if contender.module == "ackwise_agent"}
    found = versions(options.python)
    peers = ", ".join(f"{name} {found[name]}" for name in ("aiokafka", "faststream", "faust-streaming") if name in found)
    return Figures(rounds, phases, f"{options.messages} messages, batches of {options.batch}, {os.cpu_count()} cores, {peers}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table of contenders and one of phases; or the profile of one contender."""
    options = read_options(arguments)
    console = Console(stderr=options.json)
    if options.profile:
        contenders, left_out = able(options.python, options.names)
        for line in left_out:
            raise SystemExit(line)
        with prepared(options, console) as bench, tempfile.TemporaryDirectory() as folder:
            profiled(bench, contenders[0], Path(folder))
        return
    figures = run(options, console)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        console.print(*figures.tables())


if __name__ == "__main__":
    main()
