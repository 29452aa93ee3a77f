"""How much a kill repeats: a worker is killed in the middle of its work, again and again, and its handler's own record is counted.

    python -m benchmarks.kills [--kills 20] [--max-batch 50 200] [--json]

The handler takes one message at a time and waits 5 ms; `Dedup` is in a SQLite file, Kafka in the memory of this process. Before and after
each call the handler appends to its own file, which Ackwise never sees. A message that ran to its end twice was repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ackwise import App, Dedup, Message
from ackwise.testing import MemoryKafka

_TOPIC: Final = "payments"
_CALL: Final = 0.005  # seconds that the handler takes

#: Seconds of work before a kill, at least and at most, counted from the first call of a process.
_WORK: Final = (1.0, 3.0)

#: Seconds before a kill: what finished in them, and what ran, may be repeated.
_RECENT: Final = 0.15

_SESSION: Final = 6.0  # seconds until the partitions of a killed worker are given to the next


class Found(NamedTuple):
    """What the kills of one size of batches did."""

    max_batch: int
    kills: int
    ran: int
    repeated: list[int]
    """Messages that each kill repeated."""
    allowed: list[int]
    """Messages that had finished within 150 ms before each kill, or ran at it."""


def app(brokers: str, folder: Path, max_batch: int) -> App:
    """The worker that is killed."""
    made = App("kills", brokers=brokers, session_timeout=_SESSION, commit_interval=0.5)
    made.use(Dedup(f"sqlite:///{folder / 'claims.db'}", lease=2.0))
    record = os.open(folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @made.agent(_TOPIC, max_batch=max_batch)
    async def pay(message: Message[bytes]) -> None:
        os.write(record, b"%d begin %s %f\n" % (os.getpid(), message.value, time.time()))
        await asyncio.sleep(_CALL)
        os.write(record, b"%d end %s %f\n" % (os.getpid(), message.value, time.time()))

    return made


async def measure(max_batch: int, kills: int, *, seed: int = 1) -> Found:
    """Kill `kills` workers one after the other, and count what each kill repeated."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with MemoryKafka() as kafka:
            kafka.create_topic(_TOPIC, 1)
            for number in range(kills * 1000):
                kafka.produce(_TOPIC, b"%d" % number)
            killed: list[tuple[int, float]] = []
            for _ in range(kills):
                killed.append(await _work_and_kill(kafka.bootstrap, folder, max_batch, draw.uniform(*_WORK)))
                sys.stderr.write(".")
                sys.stderr.flush()
            last = await _begin(kafka.bootstrap, folder, max_batch)
            await _come_to(folder, _ends(folder) + 2 * max_batch + 100)  # all that the last kill left has come again by then
            last.kill()
            await last.wait()
        return _counted(max_batch, folder, killed)


async def _begin(brokers: str, folder: Path, max_batch: int) -> asyncio.subprocess.Process:
    arguments = ["--worker", brokers, str(folder), str(max_batch)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.kills", *arguments, stderr=asyncio.subprocess.DEVNULL)
    while not any(line.startswith(b"%d " % process.pid) for line in _lines(folder)):
        assert process.returncode is None, "the worker ended by itself"
        await asyncio.sleep(0.02)
    return process


async def _work_and_kill(brokers: str, folder: Path, max_batch: int, seconds: float) -> tuple[int, float]:
    process = await _begin(brokers, folder, max_batch)
    await asyncio.sleep(seconds)
    at = time.time()
    process.kill()
    await process.wait()
    return process.pid, at


async def _come_to(folder: Path, ends: int) -> None:
    while _ends(folder) < ends:  # noqa: ASYNC110  # another process writes them
        await asyncio.sleep(0.1)


def _lines(folder: Path) -> list[bytes]:
    try:
        return (folder / "calls").read_bytes().splitlines()
    except FileNotFoundError:
        return []


def _ends(folder: Path) -> int:
    return sum(b" end " in line for line in _lines(folder))


def _counted(max_batch: int, folder: Path, killed: Sequence[tuple[int, float]]) -> Found:
    """A repeat is counted to the kill of the process that had run the message to its end before."""
    ended: dict[bytes, int] = {}
    repeated: Counter[int] = Counter()
    allowed: Counter[int] = Counter()
    deaths = dict(killed)
    for line in _lines(folder):
        pid, what, message, at = line.split()
        if what == b"end":
            if message in ended:
                repeated[ended[message]] += 1
            ended[message] = int(pid)
            death = deaths.get(int(pid))
            allowed[int(pid)] += death is not None and float(at) >= death - _RECENT
    ran_at_death = Counter(int(line.split()[0]) for line in _lines(folder) if b" begin " in line)
    ran_at_death.subtract(int(line.split()[0]) for line in _lines(folder) if b" end " in line)
    pids = [pid for pid, _ in killed]
    return Found(max_batch, len(killed), len(ended), [repeated[pid] for pid in pids], [allowed[pid] + ran_at_death[pid] for pid in pids])


def main() -> None:
    """Print what the kills repeated, for each size of batches."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description="Count what a kill repeats.")
    parser.add_argument("--kills", type=int, default=20, help="kills for each size of batches (default 20)")
    parser.add_argument("--max-batch", type=int, nargs="+", default=[50, 200], help="sizes of batches (default 50 200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        brokers, folder, size = arguments.worker
        app(brokers, Path(folder), int(size)).run()
        return
    for size in arguments.max_batch:
        found = asyncio.run(measure(size, arguments.kills))
        sys.stderr.write("\n")
        if arguments.json:
            print(json.dumps(found._asdict()))
            continue
        over = sum(max(0, repeated - allowed) for repeated, allowed in zip(found.repeated, found.allowed, strict=True))
        print(
            f"max_batch={size}: {found.kills} kills repeated {sum(found.repeated)} of {found.ran} messages, "
            f"{statistics.median(found.repeated):g} per kill (most {max(found.repeated)}); "
            f"finished in the last 150 ms or running: {statistics.median(found.allowed):g} per kill; beyond that: {over}"
        )


if __name__ == "__main__":
    main()
