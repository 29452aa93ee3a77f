"""What claiming and completing a message costs in each store: one at a time as people write it, in Ackwise's batches, and in peers.

    python -m benchmarks.stores [--rounds 5] [--seconds 0.5] [--only "redis;postgres"] [--ways "WAY;WAY"] [--json]

Real servers on this machine, first straight over loopback, then through a proxy that keeps everything for 250 µs each way. In every
round each way of working has a turn, and the order rotates; ratios are taken within a round. Read `docs/benchmarks.md` before you
believe a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.claiming.network import EchoTimes, delayed, echo_times
from benchmarks.claiming.way import BASE, Turn
from benchmarks.consumers import default_python, versions
from rich.console import Console
from rich.table import Table
from tests.databases.mariadb import mariadb_server
from tests.databases.postgres import postgres_server
from tests.databases.redis import redis_server
from tests.databases.server import Missing, Server

_CHECKOUT: Final = Path(__file__).resolve().parent.parent
_DELAY: Final = 0.00025  # seconds, each way
_KEYS: Final = 200_000  # whose bytes are counted in Redis


class Database(NamedTuple):
    """`server` starts it in a folder, `url` is where it is once it listens on a port; without a server it is a part of the process."""

    url: str
    server: Callable[[Path], Any] | None = None


_POSTGRES: Final = Database("postgresql://postgres@127.0.0.1:{port}/postgres", lambda folder: postgres_server())
_MARIADB: Final = Database("mariadb://root@127.0.0.1:{port}/test", lambda folder: mariadb_server(folder))
DATABASES: Final = {
    "memory": Database("memory://"),
    "sqlite": Database("sqlite:///{folder}/claims.db"),
    "redis": Database("redis://127.0.0.1:{port}/0", lambda folder: redis_server(folder)),
    "postgres": _POSTGRES,
    "mariadb": _MARIADB,
    "postgres-once": _POSTGRES,  # exactly once: an account is booked in the same transaction
    "mariadb-once": _MARIADB,
}


class Contest(NamedTuple):
    """Ways of working on one database, near or far."""

    database: str
    far: bool

    def __str__(self) -> str:
        return f"{self.database}, {_DELAY * 1e6:.0f} µs each way" if self.far else self.database


class Measured(NamedTuple):
    """The rounds of a contest by way, who could not take part, and bytes per key by layout."""

    turns: Mapping[str, Sequence[Turn]]
    left_out: Sequence[str]
    bytes: Mapping[str, float]

    def ratios(self, way: str, base: str = BASE) -> list[float]:
        """How many times the throughput of `base` it has, round by round; empty if one of them was not there."""
        return [float(base.wall / mine.wall) for base, mine in zip(self.turns.get(base, ()), self.turns.get(way, ()), strict=False)]


class Aim(NamedTuple):
    """How many times the classic's throughput a way should have, at least."""

    database: str
    way: str
    times: float


AIMS: Final = (
    Aim("redis", "batch of 100, one trip", 15),
    Aim("postgres", "batch of 100, one trip", 40),
    Aim("mariadb", "batch of 100, one trip", 60),
    Aim("postgres-once", "inbox, batch of 100", 40),
    Aim("mariadb-once", "inbox, batch of 100", 40),
)
#: Bytes of Redis's memory for a message that is done, at most.
_BYTES: Final = {"plain": 170, "compact": 30}


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured, and under what conditions."""

    contests: Mapping[Contest, Measured]
    echoes: EchoTimes
    conditions: str

    def tables(self) -> list[Table]:
        """One of each contest, and one of the aims."""
        return [*(self._contest(contest) for contest in self.contests), self._aims()]

    def _contest(self, contest: Contest) -> Table:
        measured = self.contests[contest]
        made = Table(title=str(contest))
        made.add_column("way", no_wrap=True)
        for name in ("messages/s", "CPU µs/message", "× classic"):
            made.add_column(name, justify="right")
        for way, turns in measured.turns.items():
            walls, cpus = [turn.wall for turn in turns], [turn.cpu for turn in turns]
            made.add_row(
                way, f"{1e6 / statistics.median(walls):.0f}", f"{statistics.median(cpus):.1f}",
                _spread(measured.ratios(way)),
            )  # fmt: skip
        return made

    def _aims(self) -> Table:
        made = Table(title=self.conditions, caption=self._network())
        for name in ("aim", "measured: median (min–max)", ""):
            made.add_column(name)
        for database, way, times in AIMS:
            if (measured := self.contests.get(Contest(database, far=False))) and (ratios := measured.ratios(way)):
                made.add_row(f"{database}, {way}: {times:g} × classic", _spread(ratios), _judged(statistics.median(ratios) >= times))
        for measured in self.contests.values():
            for layout, size in measured.bytes.items():
                most = _BYTES.get(layout)
                aim = "" if most is None else f": at most {most}"
                made.add_row(f"redis, bytes per key, {layout}{aim}", f"{size:.1f}", "" if most is None else _judged(size <= most))
        return made

    def _network(self) -> str:
        straight, through = self.echoes
        return f"An echo of 100 bytes takes {straight * 1e6:.0f} µs straight, and {through * 1e6:.0f} µs through the proxy that delays."

    def as_json(self) -> dict[str, Any]:
        """The same for machines, each round by itself; microseconds per message, and bytes."""
        return {
            "conditions": self.conditions,
            "echo_us": {"straight": self.echoes.straight * 1e6, "delayed": self.echoes.delayed * 1e6},
            "contests": {
                str(contest): {
                    "ways": {
                        way: {"wall_us": [t.wall for t in turns], "cpu_us": [t.cpu for t in turns], "times": measured.ratios(way)}
                        for way, turns in measured.turns.items()
                    },
                    "bytes_per_key": dict(measured.bytes),
                }
                for contest, measured in self.contests.items()
            },
        }


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})" if values else ""


def _judged(reached: bool) -> str:
    return "reached" if reached else "missed"


def measure(contest: Contest, url: str, options: argparse.Namespace) -> Measured:
    """Let its own process play all rounds. Raises `SystemExit` with its last words if it fails."""
    keys = options.keys if contest == Contest("redis", far=False) else 0
    command = [
        *(str(options.python), "-m", "benchmarks.claiming.contest", "--database", contest.database, "--url", url),
        *("--rounds", str(options.rounds), "--seconds", str(options.seconds), "--ways", options.ways, "--keys", str(keys)),
    ]
    ended = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True, check=False)
    if ended.returncode or not ended.stdout.strip():
        raise SystemExit(f"{contest} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    turns = {way: [Turn(*turn) for turn in rounds] for way, rounds in found["turns"].items()}
    return Measured(turns, found["left_out"], found["bytes"])


@contextmanager
def _places(name: str, folder: Path) -> Iterator[dict[Contest, str]]:
    """The database of that name while the block runs: its contests, and the URL of each."""
    database = DATABASES[name]
    with ExitStack() as stack:
        server: Server | None = None if database.server is None else stack.enter_context(database.server(folder))
        if server is None:
            yield {Contest(name, far=False): database.url.format(folder=folder)}
            return
        far = stack.enter_context(delayed(server.port, _DELAY))
        yield {
            Contest(name, far=False): database.url.format(port=server.port),
            Contest(name, far=True): database.url.format(port=far),
        }


def run(options: argparse.Namespace, console: Console) -> Figures:
    """All contests, database by database; one whose server is not installed is left out with a sentence."""
    contests: dict[Contest, Measured] = {}
    for name in options.names or DATABASES:
        with tempfile.TemporaryDirectory() as folder, nullcontext() if options.json else console.status(name):
            (Path(folder) / name).mkdir()
            try:
                with _places(name, Path(folder) / name) as places:
                    contests |= {contest: measure(contest, url, options) for contest, url in places.items()}
            except Missing as error:
                console.print(f"{name} is left out: {error}")
    for line in sorted({line for measured in contests.values() for line in measured.left_out}):
        console.print(line)
    found = versions(options.python)
    names = ("redis", "asyncpg", "asyncmy", "aws-lambda-powertools", "idemkit")
    libraries = ", ".join(f"{name} {found[name]}" for name in names if name in found)
    conditions = f"{options.rounds} rounds of turns of {options.seconds:g} s, {os.cpu_count()} cores, {libraries}"
    return Figures(contests, echo_times(_DELAY), conditions)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a turn lasts (%(default)s)")
    parser.add_argument("--keys", type=int, default=_KEYS, help="whose bytes are counted in Redis (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAMES", help=f"of {'; '.join(DATABASES)}; with semicolons between")
    parser.add_argument("--ways", default="", metavar="WAYS", help="ways of working beside the classic, with semicolons between")
    parser.add_argument("--python", type=Path, default=default_python(), help="whose environment they run in (%(default)s)")
    parser.add_argument("--json", action="store_true", help="all figures as JSON, and no tables")
    options = parser.parse_args(arguments)
    options.names = [name.strip() for name in options.only.split(";") if name.strip()]
    if unknown := set(options.names) - set(DATABASES):
        parser.error(f"no store is named {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each contest and one of the aims."""
    options = read_options(arguments)
    console = Console(stderr=options.json)
    figures = run(options, console)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        console.print(*figures.tables())


if __name__ == "__main__":
    main()
