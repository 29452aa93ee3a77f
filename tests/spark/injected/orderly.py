"""A group of real workers on a real broker whom a test kills, misleads and robs, and what an operator can do to it from outside."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from tests.failures.ledger import Ledger, origin_of
from tests.failures.world import World
from tests.servers import connected, move_group
from tests.spark.injected.hostile import HANDLER, Faults, Orders

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.policies.delaytopic import width
from ackwise.spark.events.sources import gathered

__all__ = ["PARTITIONS", "Order", "Place", "Scene", "mixed"]

ROOT: Final = Path(__file__).parents[3]
PARTITIONS: Final = 3

WELL: Final = Faults()

#: Seconds until what a test waits for has failed to happen.
DEADLINE: Final = 120.0

Place = tuple[int, int]
"""Partition and offset in the source."""


@dataclass(frozen=True)
class Order:
    """What a producer sends: it fails `times` times, each time to come again on `level`, or is no order at all."""

    id: str
    partition: int
    kind: str = "ok"
    times: int = 0
    level: int = 1

    @property
    def value(self) -> bytes:
        if self.kind == "garbage":
            return b"\xff" + self.id.encode()
        return json.dumps({"id": self.id, "kind": self.kind, "times": self.times, "level": self.level}).encode()

    @property
    def is_rejected(self) -> bool:
        return self.kind in ("reject", "garbage")


def mixed(draw: random.Random, name: str, count: int) -> list[Order]:
    """Orders over all partitions: most are billed at once, others later or never, and some are sent twice."""
    orders: list[Order] = []
    for number in range(count):
        order = Order(f"{name}-{number}", number % PARTITIONS)
        chance = draw.random()
        if chance < 0.12:
            order = replace(order, times=draw.choice((1, 1, 2)), level=draw.choice((1, 2)))
        elif chance < 0.2:
            order = replace(order, kind=draw.choice(("reject", "garbage")))
        orders.append(order)
        if chance > 0.88:
            orders.append(replace(order, partition=draw.randrange(PARTITIONS)))
    return orders


@dataclass
class Scene:
    """One group with its topics, its store and its workers; `sent` is what the broker acknowledged, by partition and offset."""

    orders: Orders
    draw: random.Random
    sent: dict[Place, Order] = field(default_factory=dict)
    said: list[tuple[Place, int]] = field(default_factory=list)  #: the broker's acknowledgements, with their times

    def __post_init__(self) -> None:
        self.folder = Path(self.orders.folder)
        self.ledger = Ledger(self.folder / "ledger")
        self._world = World(self.orders.brokers, self.folder, self.orders.group, partitions=PARTITIONS, deadline=DEADLINE)

    @property
    def events(self) -> Path:
        return self.folder / "events"

    async def create(self) -> None:
        """Make the source topic."""
        await self._world.create()

    async def send(self, orders: Iterable[Order]) -> None:
        """Send as a producer does, and keep its delivery reports."""
        async with connected(AIOKafkaProducer(bootstrap_servers=self.orders.brokers, acks="all")) as producer:
            reports = [(order, await producer.send(self.orders.topic, order.value, partition=order.partition)) for order in orders]
            for order, report in reports:
                metadata = await report
                self.sent[metadata.partition, metadata.offset] = order
                self.said.append(((metadata.partition, metadata.offset), metadata.timestamp))

    def report(self, path: Path) -> Path:
        """The delivery reports as a table for `--produced`."""
        rows = [
            {"topic": self.orders.topic, "partition": partition, "offset": offset, "timestamp": 1000 * at}
            for (partition, offset), at in self.said
        ]
        schema = pa.schema({"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")})
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return path

    async def work(
        self,
        *,
        until: Callable[[], Awaitable[None]] | None = None,
        kills: Sequence[int] = (),
        ended_by: signal.Signals = signal.SIGTERM,
        faults: Faults = WELL,
    ) -> None:
        """Let two workers work until nothing is open, or `until` returns; one that dies is replaced.

        One of them is killed each time when there are as many runs more than before as `kills` says.
        """
        killed_at = [self._runs() + more for more in kills]
        workers = [await self._start(faults) for _ in range(2)]
        over = asyncio.ensure_future((until or self.wait_until_committed)())
        try:
            while not over.done():
                if killed_at and self._runs() >= killed_at[0]:
                    del killed_at[0]
                    with suppress(ProcessLookupError):  # it died by itself this moment
                        self.draw.choice(workers).kill()
                for number, worker in enumerate(workers):
                    if worker.returncode is not None:
                        assert worker.returncode == -signal.SIGKILL, f"a worker ended with {worker.returncode}: {self.complaints()}"
                        workers[number] = await self._start(faults)
                await asyncio.sleep(0.02)
            over.result()
            assert not killed_at, f"nobody was killed at {killed_at}"
            await self._end(workers, ended_by)
        finally:
            over.cancel()
            await self._end(workers, signal.SIGKILL)

    async def _start(self, faults: Faults) -> asyncio.subprocess.Process:
        told = json.dumps(asdict(self.orders)), json.dumps(asdict(faults))
        with (self.folder / "workers.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.spark.injected.hostile", *told, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )

    async def _end(self, workers: Iterable[asyncio.subprocess.Process], by: signal.Signals) -> None:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.send_signal(by)
        for worker in workers:
            await asyncio.wait_for(worker.wait(), DEADLINE)

    def complaints(self) -> str:
        """The end of what the workers said."""
        return (self.folder / "workers.log").read_text(errors="replace")[-3000:]

    def _runs(self) -> int:
        return sum(fact["fact"] == "ran" for fact in self.ledger.read())

    async def wait_until_committed(self) -> None:
        """Until everything in the source, retry and delay topics is committed: nothing is open any more."""
        await self._world.wait_until_committed()

    async def wait_for(self, condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Until `condition` is true."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not (answer if isinstance(answer := condition(), bool) else await answer):  # noqa: ASYNC110 - it asks a broker
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{self.orders.group}: {what} did not happen within {DEADLINE:.0f} s\n{self.complaints()}") from None

    def hung(self) -> bool:
        """Whether a handler hangs."""
        return any(fact["fact"] == "hangs" for fact in self.ledger.read())

    def were_drained_since(self, at: float) -> bool:
        """Whether the workers say that they saw all delay and after them all retry partitions empty, after `at` (epoch seconds)."""
        with TemporaryDirectory() as scratch, gathered([self.events], Path(scratch)) as evidence:
            tables = [
                pq.read_table(file, columns=["event_type", "event_ts", "role", "topic", "partition", "range_end", "attrs"])
                for file in evidence.files
            ]
        looks = [
            (look["role"], look["topic"], look["partition"], look["event_ts"].timestamp())
            for look in pa.concat_tables(tables).filter(pc.field("event_type") == EventCode.BROKER_OFFSETS).to_pylist()
            if look["role"] != "source" and json.loads(look["attrs"])["committed"] == look["range_end"]
        ]
        delays = {(topic, partition) for role, topic, partition, seen in looks if role == "delay" and seen > at}
        empty_since = [min(seen for _, *where, seen in looks if where == [*place] and seen > at) for place in delays]
        retries = {(topic, partition) for role, topic, partition, seen in looks if role == "retry" and seen > max(empty_since, default=at)}
        return len(delays) == width() - 1 and len(retries) == PARTITIONS

    async def move_group(self, positions: Mapping[int, int]) -> None:
        """Let the group go on elsewhere, once the broker no longer waits for those who were killed."""
        offsets = {TopicPartition(self.orders.topic, partition): offset for partition, offset in positions.items()}
        await self.wait_for(lambda: move_group(self.orders.brokers, self.orders.group, offsets), "the group's move")

    def forget(self, ids: Collection[str]) -> None:
        """Delete the claims of these orders from the store, past Ackwise."""
        identity = Identity("ackwise", self.orders.group, HANDLER)
        claims = [identity.of(business_id(id))[0] for id in ids]
        connection = sqlite3.connect(self.orders.store.removeprefix("sqlite:///"))
        try:
            with connection:
                gone = sum(connection.execute("DELETE FROM ackwise_claims WHERE place = ?", (each.hex(),)).rowcount for each in claims)
        finally:
            connection.close()
        assert gone == len(ids), f"the store knew {gone} of {len(ids)} orders"

    async def committed(self) -> dict[int, int]:
        """The group's position in each partition, as the broker knows it."""
        async with connected(AIOKafkaAdminClient(bootstrap_servers=self.orders.brokers)) as admin:
            found = await admin.list_consumer_group_offsets(self.orders.group)
        return {place.partition: at.offset for place, at in found.items() if place.topic == self.orders.topic}

    def runs(self) -> dict[str, list[Place]]:
        """Where the handler succeeded with each order, once for each time."""
        runs: dict[str, list[Place]] = {}
        for fact in self.ledger.read():
            if fact["fact"] == "ran":
                id, partition, offset = fact["id"]
                runs.setdefault(id, []).append((partition, offset))
        return runs

    def settled_early(self) -> set[Place]:
        """What was committed, or was to be, while its handler was open."""
        return {(partition, offset) for fact in self.ledger.read() if fact["fact"] == "died early" for partition, offset in fact["places"]}

    async def dead(self) -> set[Place]:
        """The origins of all dead letters."""
        letters = await self._world.read(f"{self.orders.group}.dlq")
        return {origin_of(dict(letter.headers))[0][1:] for letter in letters}
