"""The founding proof: 200,000 messages on a real Kafka, two workers, one of them killed twice and restarted.

    python -m benchmarks.two_workers [--messages 200000] [--seed 7] [--out FOLDER]

Truth is the producer's delivery reports and the ledgers that the handlers fsync themselves; neither is read through
Ackwise. It fails if anything is lost, or if the verdict on any record differs from the truth. A record that truly ran
twice, and nothing else, may be MULTI_EXECUTED, MAYBE_TWICE or LOGICAL_DUPLICATE.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.spark.reconciling import every_message

from ackwise.plugin.demo.ledger import LedgerLine, LedgerReader
from ackwise.plugin.demo.scenario import PlannedFate, Scenario, make_scenario
from ackwise.plugin.local.localkafka import local_kafka

_TOPIC: Final = "orders"
_GROUP: Final = "proof"
_PARTITIONS: Final = 8
_ACKWISE: Final = Path(sys.executable).with_name("ackwise")
_DEADLINE: Final = 900.0  # seconds from the first worker's start

Position = tuple[int, int]


async def produce(brokers: str, scenario: Scenario) -> list[Position]:
    """Send everything; where the broker says that it put each record."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=brokers, acks="all", linger_ms=5) as producer:
        reports = [
            await producer.send(_TOPIC, record.value, key=record.key.encode(), partition=number % _PARTITIONS)
            for number, record in enumerate(scenario.records)
        ]
        return [(report.partition, report.offset) for report in await asyncio.gather(*reports)]


class Worker:
    """One worker process with a ledger and its own events, and the store that both share."""

    def __init__(self, brokers: str, folder: Path, store: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._ledger = LedgerReader(folder / "ledger.jsonl")
        self._environment = {
            **os.environ,
            "BILLING_BROKERS": brokers,
            "BILLING_GROUP": _GROUP,
            "BILLING_TOPIC": _TOPIC,
            "BILLING_STORE": f"sqlite:///{store}",
            "BILLING_CREATE_TOPICS": "auto",
            "BILLING_FOLDER": str(folder),
        }
        self.start()

    def start(self) -> None:
        command = [str(_ACKWISE), "run", "ackwise.plugin.demo.worker:app"]
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stderr=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def drain(self) -> None:
        self.process.terminate()
        if code := self.process.wait(60):
            raise SystemExit(f"a worker ended with {code}; its log is {self.folder / 'worker.log'}")

    def ledger(self) -> Sequence[LedgerLine]:
        if self.process.poll() is not None:
            raise SystemExit(f"a worker ended by itself; its log is {self.folder / 'worker.log'}")
        return self._ledger.refresh()


def play(workers: Sequence[Worker], scenario: Scenario) -> None:
    """Wait until every order that shall be billed is, killing the first worker at a third and at two thirds."""
    kills = [len(scenario.prices) // 3, 2 * len(scenario.prices) // 3]
    began = time.monotonic()
    while True:
        billed = {entry.order for worker in workers for entry in worker.ledger()}
        if kills and len(billed) >= kills[0]:
            workers[0].kill()
            print(f"killed a worker at {len(billed)} orders, after {time.monotonic() - began:.0f} s", flush=True)
            kills.pop(0)
            workers[0].start()
        if scenario.prices.keys() <= billed and not kills:
            print(f"all {len(billed)} orders billed after {time.monotonic() - began:.0f} s", flush=True)
            return
        if time.monotonic() - began > _DEADLINE:
            raise SystemExit(f"{len(scenario.prices) - len(billed)} orders are not billed after {_DEADLINE:.0f} s")
        time.sleep(0.25)


async def dead_letters(brokers: str, expected: int) -> set[Position]:
    """The origins of everything on the dead-letter topic, once `expected` are there and the group has no more to do."""
    from aiokafka import AIOKafkaConsumer

    origins: set[Position] = set()
    async with AIOKafkaConsumer(f"{_GROUP}.dlq", bootstrap_servers=brokers, auto_offset_reset="earliest") as consumer:
        until = time.monotonic() + 120
        while len(origins) < expected and time.monotonic() < until:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    headers = dict(record.headers)
                    origins.add((int(headers["ackwise-origin-partition"]), int(headers["ackwise-origin-offset"])))
    return origins


def verdicts(report: Path) -> dict[Position, tuple[str, frozenset[str]]]:
    """What the reconciliation says of each record of the source topic."""
    return {
        (row["partition"], row["offset"]): (row["verdict"], frozenset(row["flags"] or ()))
        for row in every_message(report)
        if row["topic"] == _TOPIC
    }


def differences(
    scenario: Scenario,
    positions: Sequence[Position],
    ledger: Mapping[str, Sequence[Position]],
    dead: set[Position],
    judged: Mapping[Position, tuple[str, frozenset[str]]],
) -> list[str]:
    """A sentence for each record on which truth and verdict differ."""
    found = []
    for record, position in zip(scenario.records, positions, strict=True):
        runs = ledger.get(record.key, ())
        if position in runs:
            allowed = {"EXACTLY_ONCE", "MAYBE_TWICE"} if len(runs) == 1 else {"MAYBE_TWICE", "MULTI_EXECUTED"}
        elif position in dead:
            allowed = {"DEAD_LETTERED"}
        elif runs or record.fate is not PlannedFate.BILLED:
            allowed = {"DUPLICATE_SUPPRESSED", "SUPPRESSED_BY_DEAD"} if not runs else {"DUPLICATE_SUPPRESSED"}
        else:
            allowed = set()
        verdict, flags = judged.get(position, ("no verdict", frozenset()))
        excused = len(runs) > 1 and ("AMBIGUOUS_EXEC" in flags or verdict in {"MULTI_EXECUTED", "DUPLICATE_SUPPRESSED"})
        if verdict not in allowed and not excused:
            found.append(
                f"{position} {record.key} ({record.fate.name}, runs {list(runs)}): {verdict} {sorted(flags)}, not {sorted(allowed)}"
            )
    return found


def main() -> int:
    """Play it, reconcile it, compare. Exit code 0 if nothing was lost and every verdict is the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=None, help="a new folder for events, ledgers and report")
    options = parser.parse_args()
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="ackwise-proof-"))
    scenario = make_scenario(options.messages, options.seed)
    with local_kafka(out / "kafka") as broker:
        positions = asyncio.run(produce(broker.bootstrap, scenario))
        print(f"sent {len(positions)} records, {len(scenario.prices)} orders to bill; everything is in {out}", flush=True)
        workers = [Worker(broker.bootstrap, out / name, out / "claims.db") for name in ("first", "second")]
        play(workers, scenario)
        doomed = {key for key, fate in scenario.fates.items() if fate is not PlannedFate.BILLED}
        dead = asyncio.run(dead_letters(broker.bootstrap, len(doomed)))
        time.sleep(8)  # what was suppressed or committed last is written down
        for worker in workers:
            worker.drain()
    ledger: defaultdict[str, list[Position]] = defaultdict(list)
    for worker in workers:
        for entry in LedgerReader(worker.folder / "ledger.jsonl").refresh():
            ledger[entry.order].append((entry.partition, entry.offset))
    roots = [str(worker.folder / "events") for worker in workers]
    reconcile = [str(_ACKWISE), "reconcile", *roots, "--out", str(out / "report")]
    code = subprocess.run(reconcile, check=False).returncode
    judged = verdicts(out / "report")
    wrong = differences(scenario, positions, ledger, dead, judged)
    lost = sorted(key for key in scenario.prices if key not in ledger)
    print(
        json.dumps(
            {
                "sent": len(positions),
                "billed": len(ledger),
                "repeated_by_kill": sum(len(runs) - 1 for runs in ledger.values()),
                "dead": len(dead),
                "lost": len(lost),
                "verdicts": dict(Counter(verdict for verdict, _ in judged.values())),
                "differ_from_truth": len(wrong),
                "reconcile_exit": code,
            }
        )
    )
    for line in [*lost[:10], *wrong[:20]]:
        print(line)
    return 1 if lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
