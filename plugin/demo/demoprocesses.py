"""Processes of the demo: workers on each host, stock Faust for comparison, and the reconciliation, each with a log.

Stock Faust gets no undecodable orders: it would pause for five seconds after each.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.plugin.demo.ledger import LedgerLine, LedgerReader
from ackwise.plugin.demo.scenario import MAX_BATCH, PlannedFate, PlannedRecord, Scenario
from ackwise.plugin.demo.shop import PARTITIONS, Observer, send


class DemoFailed(AckwiseError):
    """A stage of the demo could not be played to its end: no verdict at all."""


class Process:
    """One running process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    def check_alive(self) -> None:
        """Raises `DemoFailed` if the process ended by itself."""
        if (code := self._process.returncode) is not None:
            raise DemoFailed(f"the worker ended by itself with exit code {code}; it says why in {self.log}")

    async def kill(self) -> None:
        """SIGKILL: it gets no chance to say anything."""
        self._process.kill()
        await self._process.wait()

    async def drain(self, timeout: float) -> None:
        """SIGTERM, and at most `timeout` seconds to finish. Raises `DemoFailed` if it does not end with 0 in time."""
        self.check_alive()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            raise DemoFailed(f"the worker did not drain within {timeout:.0f} s; its log is {self.log}") from None
        if code != 0:
            raise DemoFailed(f"the worker ended with exit code {code} when asked to stop; it says why in {self.log}")

    async def wait(self) -> int:
        """Its exit code, once it ended."""
        return await self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None


@asynccontextmanager
async def start(*arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """`python -m` with `arguments`, killed at the end of the block if it still runs; what it prints goes to `log`."""
    with log.open("wb") as output:
        spawned = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # an interrupt from the keyboard is the demo's, which then ends its processes itself
        )
    process = Process(spawned, log)
    try:
        yield process
    finally:
        if process.is_running:
            await process.kill()


async def run_to_end(*arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> int:
    """`ackwise` with `arguments`; returns its exit code."""
    async with start("ackwise.plugin.cli", *arguments, log=log, environment=environment) as process:
        return await process.wait()


#: Lanes: each partition of the source and of the retry topic. A partition belongs to one worker at a time, so what is
#: claimed and unfinished at one moment is bounded by them for any number of workers.
_LANES: Final = PARTITIONS * 2

#: Batches that a lane hands to an agent of Faust ahead of it: two at once, and a third while those are not full.
_AHEAD: Final = 3


@dataclass(frozen=True, slots=True)
class DemoHost:
    """One way to run the worker."""

    command: Sequence[str]  #: what `python -m` is given
    in_flight: int  #: messages that can be claimed and unfinished at one moment
    has_stock: bool  #: the same worker runs without Ackwise too


HOSTS: Final[Mapping[str, DemoHost]] = {
    "aiokafka": DemoHost(("ackwise.plugin.cli", "run", "ackwise.plugin.demo.worker:app"), MAX_BATCH * _LANES, has_stock=False),
    "faust": DemoHost(
        ("faust", "-A", "ackwise.plugin.faust.demoworker", "worker", "-l", "info", "--without-web"),
        _AHEAD * MAX_BATCH * _LANES,
        has_stock=True,
    ),
}


def find_host(name: str) -> DemoHost:
    """The host of this name. Raises `ConfigurationError` if what it runs is not installed."""
    host = HOSTS[name]
    if importlib.util.find_spec(host.command[0].partition(".")[0]) is None:
        raise ConfigurationError(f"--host {name} runs {host.command[0]}, which is not installed: pip install 'ackwise[{name}]'")
    return host


#: More than it comes to while the others work: it rests for five seconds after each failure, too.
_MOST: Final = 2000


@dataclass(frozen=True, slots=True)
class Stock:
    """What became of the orders until that worker was killed as well."""

    passed: int  #: orders that should be billed and were committed past: they never come again
    lost: int  #: those of them that were not billed


def stock_records(scenario: Scenario) -> list[PlannedRecord]:
    """What is sent to it: the first of the orders."""
    return [record for record in scenario.records if record.fate is not PlannedFate.UNDECODABLE][:_MOST]


def judge_stock(
    records: Sequence[PlannedRecord], positions: Sequence[tuple[int, int]], passed: Mapping[int, int], ledger: Sequence[LedgerLine]
) -> Stock:
    """`positions`: where each record stands; `passed`: by partition, the offset up to which the worker has committed."""
    placed = zip(records, positions, strict=True)
    keys = {record.key for record, (partition, offset) in placed if record.fate is PlannedFate.BILLED and offset < passed.get(partition, 0)}
    return Stock(len(keys), len(keys - {entry.order for entry in ledger}))


class StockWorker:
    """It while it runs."""

    def __init__(
        self, process: Process, folder: Path, group: str, topic: str, records: Sequence[PlannedRecord], positions: Sequence[tuple[int, int]]
    ) -> None:
        self._process = process
        self._folder = folder
        self._group = group
        self._topic = topic
        self._records = records
        self._positions = positions

    async def end(self, observer: Observer) -> Stock:
        """Kill it, and look what became of its orders."""
        await self._process.kill()
        passed = await observer.passed(self._group, self._topic)
        return judge_stock(self._records, self._positions, passed, LedgerReader(self._folder / "ledger.jsonl").refresh())


@asynccontextmanager
async def run_stock(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, brokers: str, topic: str, scenario: Scenario
) -> AsyncIterator[StockWorker]:
    """Send its orders to `topic`, and let it run while the block does; its ledger and its log are in `folder`."""
    group = f"{environment['BILLING_GROUP']}-{folder.name}"
    records = stock_records(scenario)
    positions = await send(brokers, topic, records, lambda done: None)
    own = {"BILLING_GROUP": group, "BILLING_TOPIC": topic, "BILLING_FOLDER": str(folder), "BILLING_STOCK": "1"}
    async with start(*command, log=folder / "worker.log", environment={**environment, **own}) as process:
        yield StockWorker(process, folder, group, topic, records, positions)
