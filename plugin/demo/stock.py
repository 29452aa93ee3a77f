"""Stock Faust in the demo: the same worker without Ackwise, on orders of its own, for comparison.

It gets no bytes that are no order: at each of those it would rest for five seconds, before it bills any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.plugin.demo.ledger import LedgerLine, LedgerReader
from ackwise.plugin.demo.processes import Process, start
from ackwise.plugin.demo.scenario import PlannedFate, PlannedRecord, Scenario
from ackwise.plugin.demo.shop import Observer, send

__all__ = ["Stock", "StockWorker", "judge_stock", "run_stock", "stock_records"]

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
