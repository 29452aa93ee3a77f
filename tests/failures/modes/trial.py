"""One trial: workers in one mode suffer one kind of fault, dealt by a seed, while a producer keeps its delivery reports."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from tests.failures.ledger import Ledger
from tests.failures.modes.judge import Sent, Verdict, judge, promised_by
from tests.failures.modes.worker import consume
from tests.failures.process import WorkerProcess
from tests.servers import connected
from tests.waiting import until

from ackwise.middleware.policies.retry import Order

PARTITIONS: Final = 2
KEYS: Final = 7
MESSAGES: Final = 100

#: Seconds until a trial that is not finished has failed, however busy the machine is.
DEADLINE: Final = 200.0

#: Seconds that a stopped worker is stalled, and the store is unavailable; a session is one second.
STILL: Final = 2.5

HARMS: Final = (
    "worker.Fetch:raises-after@3", "worker.Fetch:short@4", "worker.Fetch:late@3", "worker.drain:raises-after@3x2",
    "worker.OffsetCommit:raises-after@2", "worker.OffsetCommit:late@2", "worker.OffsetCommit:loading-one@2x3",
    "worker.OffsetCommit:raises@2x2", "worker.OffsetFetch:loadingx4", "worker.Heartbeat:unknown-member",
    "worker.Heartbeat:old-generation", "worker.commit:raises-after@3", "worker.Produce:raises-after", "worker.Produce:twice",
)  # fmt: skip


class Mode(NamedTuple):
    """How the workers consume."""

    order: Order
    concurrency: int | None = None


MODES: Final = {"key": Mode("key", 8), "partition": Mode("partition"), "none, 8": Mode(None, 8)}


@dataclass
class Trial:
    """`restart` takes the broker away and brings it back, where that is the fault."""

    brokers: str
    folder: Path
    group: str
    mode: Mode
    fault: str
    seed: int
    restart: Callable[[], Awaitable[None]] | None = None
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}/{self.fault}/{self.mode}")
        self.dedup = self.fault == "store" or self.chance.random() < 0.5
        self.topic = f"{self.group}.orders"
        self.ledger = Ledger(self.folder / "ledger")
        self.workers: list[WorkerProcess] = []
        self._log = self.folder / "workers.log"

    async def run(self) -> Verdict:
        """Work through it, and judge. Raises `TimeoutError` if it does not end."""
        async with AsyncExitStack() as stack:
            stack.callback(self.ledger.close)
            stack.push_async_callback(self._end)
            admin = await stack.enter_async_context(self._admin())
            async with asyncio.timeout(DEADLINE):
                await self._create_topic(admin)
                for _ in range(2):
                    self.start()
                producing = asyncio.create_task(self._produce())
                stack.callback(producing.cancel)
                await self._until(lambda: self._count("succeeds") >= 15)
                await FAULTS[self.fault](self, admin)
                await producing
                await self._until(lambda: not self.verdict().lost)
                await self._until_committed()
            for worker in self._living():
                worker.send_signal(signal.SIGTERM)
            await asyncio.wait([asyncio.create_task(worker.wait()) for worker in self.workers], timeout=20)
        return self.verdict()

    def verdict(self) -> Verdict:
        return judge(self.sent, self.ledger.read(), self.mode.order)

    def start(self) -> None:
        """A worker more."""
        harms = self.chance.sample(HARMS, 4) if self.fault == "client" else []
        told = (self.brokers, self.group, self.topic, self.folder, self.seed, *self.mode, self.dedup, harms)
        self.workers.append(WorkerProcess(consume, told, self._log))

    def _living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.returncode is None]

    async def _end(self) -> None:
        await asyncio.gather(*(worker.gone() for worker in self.workers))

    def _admin(self) -> AbstractAsyncContextManager[AIOKafkaAdminClient]:
        return connected(AIOKafkaAdminClient(bootstrap_servers=self.brokers))

    async def _create_topic(self, admin: AIOKafkaAdminClient) -> None:
        """A busy broker says that it is made some time before it knows it, and a worker that starts in between has nothing to consume."""
        await admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])
        await until(admin.list_topics, lambda topics: self.topic in topics)

    async def _produce(self) -> None:
        """Send over some seconds, and keep what the broker acknowledged."""
        producer = AIOKafkaProducer(bootstrap_servers=self.brokers, acks="all", enable_idempotence=True, request_timeout_ms=5000)
        async with connected(producer):
            for number in range(MESSAGES):
                key = f"k{self.chance.randrange(KEYS)}"
                report = await producer.send_and_wait(self.topic, str(number).encode(), key=key.encode())
                self.sent.append(Sent(report.partition, report.offset, key))
                await asyncio.sleep(0.02)

    def _count(self, fact: str) -> int:
        return sum(each["fact"] == fact for each in self.ledger.read())

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for worker in self.workers:
                if worker.returncode not in (None, -signal.SIGKILL, 0):
                    raise AssertionError(f"a worker ended with {worker.returncode}: {self._log.read_text(errors='replace')[-2000:]}")
            await asyncio.sleep(0.3)

    async def _until_committed(self) -> None:
        ends = {partition: 1 + max(s.offset for s in self.sent if s.partition == partition) for partition, *_ in self.sent}
        async with self._admin() as admin:
            committed: dict[int, int] = {}
            while any(committed.get(partition, -1) < end for partition, end in ends.items()):
                await asyncio.sleep(0.1)
                with suppress(KafkaError):  # a broker that just came up knows no coordinator yet
                    committed = {at.partition: told.offset for at, told in await self._committed(admin)}

    async def promise(self, admin: Any, *excepted: int) -> None:
        """Write down what the group has committed: from now on nothing of it may run again, but where somebody has not heard of it."""
        for at, committed in await self._committed(admin):
            finished, attempts = promised_by(committed.offset, committed.metadata)
            about: Mapping[str, Any] = {"finished": finished, "attempts": attempts, "except": excepted}
            self.ledger.write("promised", partition=at.partition, **about)

    async def _committed(self, admin: AIOKafkaAdminClient) -> list[tuple[TopicPartition, OffsetAndMetadata]]:
        """What the broker has of the source."""
        committed = await admin.list_consumer_group_offsets(self.group)
        return [(at, told) for at, told in committed.items() if at.topic == self.topic and told.offset >= 0]

    async def pause(self, least: float = 0.3, most: float = 1.2) -> None:
        await asyncio.sleep(self.chance.uniform(least, most))


async def _nothing(trial: Trial, admin: Any) -> None: ...


async def _kill(trial: Trial, admin: Any) -> None:
    for _ in range(2):
        await trial.pause()
        worker = trial.chance.choice(trial._living())
        worker.kill()
        await worker.wait()
        await trial.promise(admin)
        trial.start()


async def _stop(trial: Trial, admin: Any) -> None:
    """What a stopped worker had in its hands it may end, since it hears of nothing before it goes on."""
    await trial.pause()
    worker = trial.chance.choice(trial._living())
    worker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(STILL)
    await trial.promise(admin, worker.pid)
    worker.send_signal(signal.SIGCONT)
    await trial.pause()


async def _storm(trial: Trial, admin: Any) -> None:
    """A member that works on nothing joins and leaves, again and again."""
    for _ in range(5):
        guest = AIOKafkaConsumer(
            trial.topic, bootstrap_servers=trial.brokers, group_id=trial.group, enable_auto_commit=False, session_timeout_ms=1000,
            heartbeat_interval_ms=200, rebalance_timeout_ms=10_000,
        )  # fmt: skip
        async with connected(guest):
            await trial.pause(0.05, 0.5)
        await trial.promise(admin)
        await trial.pause(0.05, 0.5)


async def _broker(trial: Trial, admin: Any) -> None:
    await trial.pause()
    assert trial.restart is not None
    await trial.restart()


async def _store(trial: Trial, admin: Any) -> None:
    await trial.pause()
    with closing(sqlite3.connect(trial.folder / "claims.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(STILL)
        connection.execute("ROLLBACK")
    await trial.promise(admin)


#: What a trial suffers, by name.
FAULTS: Final[Mapping[str, Callable[[Trial, Any], Awaitable[None]]]] = {
    "kill": _kill,
    "stop": _stop,
    "storm": _storm,
    "broker": _broker,
    "store": _store,
    "client": _nothing,
}
