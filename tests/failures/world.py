"""A group with its own topics on a real broker, workers that can be started in it, and what must be true in the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from tests.failures.calls import Fault, Tap, TappedSink, TappedStore, current
from tests.failures.ledger import Ledger, Written, early_commits, origin_of
from tests.failures.process import WorkerProcess
from tests.servers import connected
from tests.waiting import until

from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.disposition import CONSUME_LATER
from ackwise.middleware.message.message import Message
from ackwise.middleware.policies.delaytopic import width
from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.stores.journal import Journal
from ackwise.stores.sqlite import SQLiteStore

T = TypeVar("T")

#: Messages in a batch, and with two roles of three partitions six times as many in flight.
BATCH = 5

#: Seconds until a scenario that is not finished has failed.
DEADLINE = 60.0

#: Scenarios at a time: two cores are not kept busier by more.
AT_ONCE = 8

Handler = Callable[[Batch[Any]], Awaitable[object]]


@dataclass(frozen=True)
class Record:
    """What a producer sends; `id` of its message, `None` if it can't be read."""

    id: str | None
    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, id: str, partition: int, kind: str = "ok", **more: object) -> Record:
        return cls(id, partition, json.dumps({"id": id, "kind": kind, **more}).encode())


def decode(value: bytes | None) -> Any:
    return json.loads(value or b"")


def mixed_messages() -> list[Record]:
    """Sixty records over three partitions: most succeed, others come later once or twice, are rejected, unreadable or sent twice."""
    records = []
    for number in range(48):
        partition = number % 3
        match number:
            case 5 | 13 | 24:
                record = Record.of(f"m{number}", partition, "reject")
            case 7 | 20:
                record = Record(None, partition, b"\xff\x00" + bytes([number]))
            case 4 | 11 | 27 | 40:
                record = Record.of(f"m{number}", partition, "later", times=1)
            case 15 | 35:
                record = Record.of(f"m{number}", partition, "later", times=2)
            case 31:
                record = Record.of(f"m{number}", partition, "raise")
            case 10:
                record = Record.of(f"m{number}", partition, "slow")
            case _:
                record = Record.of(f"m{number}", partition)
        records.append(record)
        if number in (8, 11, 16, 24, 33, 38):  # the producer's own repetition, beside the first
            records.append(record)
        if number in (3, 13, 17, 27, 36, 45):  # and on another partition
            records.append(Record(record.id, (partition + 1) % 3, record.value))
    return records


async def handle(batch: Batch[Any], tap: Tap) -> None:
    """The handler of the mixed messages: what it had is in the ledger before it does anything, and what it did before it returns."""
    tap.ledger.write("saw", messages=[[message.topic, message.partition, message.offset, message.reconsume_times + 1] for message in batch])
    await tap.through(["handler"], lambda: _handle(batch, tap), lambda: None)


async def _handle(batch: Batch[Any], tap: Tap) -> None:
    done = []
    for message in batch:
        match message.value["kind"]:
            case "reject":
                batch.dead(message, "bad")
            case "later" if message.reconsume_times < message.value["times"]:
                batch.later(message, delay_level=message.value["times"])
            case "raise" if message.reconsume_times == 0:
                raise ConnectionError("the test's handler raises once")
            case "slow":
                await tap.wait_for("store.renew")
                done.append(message.value["id"])
            case _:
                done.append(message.value["id"])
    tap.ledger.ran(done)


@dataclass
class Member:
    """A worker in this process."""

    tap: Tap
    task: asyncio.Task[None]
    stop: asyncio.Event

    async def leave(self) -> None:
        """Let it drain; raises what it ended with."""
        self.stop.set()
        await self.task


@dataclass
class World:
    """One scenario: its group, topics, ledger, claim store and event log."""

    brokers: str
    folder: Path
    group: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    later: Mapping[str, Any] = field(default_factory=dict)
    dedup: bool = True
    kind: Literal["batch", "message"] = "batch"
    partitions: int = 3
    max_batch: int = BATCH
    decode: Callable[[bytes | None], Any] = decode
    lease: float = 2.0
    store_timeout: float = 5.0
    on_store_down: Literal["block", "fail_open", "fail_closed"] = "block"
    deadline: float = DEADLINE  #: seconds
    levels: Sequence[str] = ("1s", "2s")  #: of the delays
    sent: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / f"{self.group}.ledger")

    @property
    def topic(self) -> str:
        return f"{self.group}.orders"

    async def create(self, **configs: object) -> None:
        """Make the source topic."""
        async with connected(AIOKafkaAdminClient(bootstrap_servers=self.brokers)) as admin:
            topic_configs = {name.replace("_", "."): str(value) for name, value in configs.items()}
            await admin.create_topics([NewTopic(self.topic, self.partitions, 1, topic_configs=topic_configs)])
            await until(admin.list_topics, lambda topics: self.topic in topics)

    async def send(self, records: Iterable[Record], *, topic: str | None = None) -> None:
        """Send as a producer does, to the source or to another topic; every record is acknowledged when it returns."""
        async with connected(AIOKafkaProducer(bootstrap_servers=self.brokers, acks="all", max_request_size=2**31 - 1)) as producer:
            for record in records:
                await _send(producer, topic or self.topic, record)
                self.sent.append(record)
            await producer.flush()

    def host(self, tap: Tap, handler: Handler | None = None) -> AiokafkaHost:
        """A worker of the group whose calls pass `tap`."""

        async def mixed(given: Batch[Any] | Message[Any]) -> object:
            batch = given if isinstance(given, Batch) else Batch([given])
            await handle(batch, tap)
            return None if batch is given or batch.ruling(0) is None else CONSUME_LATER

        quick = {"commit_interval": 0.1, "clock_skew": 0.0, "revoke_timeout": 5.0, "drain_timeout": 5.0}
        settings = HostSettings(self.brokers, self.group, **{**quick, **self.settings})
        store = TappedStore(SQLiteStore(self.folder / f"{self.group}.db", timeout=self.store_timeout), tap)
        claims = Dedup(store, key=lambda message: str(message.value["id"]), lease=self.lease, on_store_down=self.on_store_down)
        return AiokafkaHost(
            settings,
            [Agent("bill", (self.topic,), self.kind, handler or mixed, self.decode, max_batch=self.max_batch)],
            Parts(
                ConsumeLater(**{"max_reconsume_times": 16, "levels": " ".join(self.levels), **self.later}),
                DeadLetter(),
                dedup=claims if self.dedup else None,
                store=store if self.dedup else None,
                sink=TappedSink(Journal(self.folder / f"{self.group}.events", group_id=self.group, marks=True), tap),
            ),
        )

    def join(self, handler: Handler | None = None, *, faults: list[Fault] | None = None) -> Member:
        """Start a worker in this process; those of `faults` that strike it leave the list."""
        tap, stop = Tap(self.ledger, faults), asyncio.Event()
        current.set(tap)
        return Member(tap, asyncio.create_task(self.host(tap, handler).run(stop)), stop)

    async def wait(self, condition: Callable[[], bool], what: str, members: Sequence[Member] = ()) -> None:
        """Until `condition` is true; fails after the deadline, or when a member ends."""
        try:
            async with asyncio.timeout(self.deadline):
                while not condition():
                    for member in members:
                        if member.task.done():
                            member.task.result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{self.group}: {what} did not happen within {self.deadline:.0f} s") from None

    async def wait_until_finished(self, *, workers: int) -> None:
        """Until as many processes have started, and nothing is open any more."""
        await self.wait(lambda: sum(fact["fact"] == "started" for fact in self.ledger.read()) == workers, f"the start of {workers} workers")
        await self.wait_until_committed()

    async def wait_until_committed(self) -> None:
        """Until everything in the source, retry and delay topics is committed: nothing is open any more."""
        async with self._reader() as reader, connected(AIOKafkaAdminClient(bootstrap_servers=self.brokers)) as admin:
            open_partitions: object = None
            try:
                async with asyncio.timeout(self.deadline):
                    while True:
                        open_partitions = await self._open(admin, reader)
                        if not open_partitions:
                            return
                        await asyncio.sleep(0.1)
            except TimeoutError:
                raise AssertionError(f"{self.group}: not finished after {self.deadline:.0f} s: {open_partitions}") from None

    async def _open(self, admin: AIOKafkaAdminClient, reader: AIOKafkaConsumer) -> dict[str, tuple[int | None, int]]:
        """The partitions whose committed offset is not their end, and the two; the source counts from its first record on."""
        committed = {}
        try:
            known = set(await admin.list_topics())
            for group in (self.group, f"{self.group}.relay"):
                committed.update(await admin.list_consumer_group_offsets(group))
        except KafkaError as error:  # a broker that just came up knows no coordinator yet
            return {str(error): (None, 0)}
        topics = [topic for topic in self.topics() if topic in known and not topic.endswith(".dlq")]
        partitions = [partition for topic in topics for partition in self._partitions_of(topic)]
        ends = await reader.end_offsets(partitions)
        return {
            f"{partition.topic}/{partition.partition}": (committed[partition].offset if partition in committed else None, end)
            for partition, end in ends.items()
            if end > 0 and (partition not in committed or committed[partition].offset != end)
        }

    def topics(self) -> list[str]:
        return [self.topic, *(f"{self.group}.{name}" for name in ("retry", "dlq", "delay"))]

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """All but that of cancellations."""
        return [TopicPartition(topic, number) for number in (range(1, width()) if topic.endswith(".delay") else range(self.partitions))]

    def _reader(self) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        return connected(AIOKafkaConsumer(bootstrap_servers=self.brokers, enable_auto_commit=False, max_partition_fetch_bytes=2**26))

    async def read(self, topic: str) -> list[Any]:
        """Everything in `topic`, as a plain consumer sees it."""
        async with self._reader() as reader:
            partitions = self._partitions_of(topic)
            reader.assign(partitions)
            await reader.seek_to_beginning(*partitions)
            ends = await reader.end_offsets(partitions)
            records: list[Any] = []
            while any([await reader.position(partition) < ends[partition] for partition in partitions]):
                for fetched in (await reader.getmany(timeout_ms=200)).values():
                    records.extend(fetched)
            return records

    async def written(self) -> dict[tuple[str, int], list[Written]]:
        """What stands in the topics of the group, in the order of offsets."""
        written: dict[tuple[str, int], list[Written]] = {}
        for topic in self.topics():
            for record in await self.read(topic):
                origin, attempt = ((topic, record.partition, record.offset), 1) if topic == self.topic else origin_of(dict(record.headers))
                written.setdefault((topic, record.partition), []).append(Written(record.offset, _id(record.value), origin, attempt))
        return written

    async def dead_letters(self) -> list[Written]:
        """What stands in the dead-letter topic."""
        return [letter for (topic, _), letters in (await self.written()).items() if topic.endswith(".dlq") for letter in letters]

    async def judge(self) -> dict[tuple[str, int], list[Written]]:
        """Assert what holds whatever broke: nothing was committed early, and every acknowledged copy is really there."""
        facts, written = self.ledger.read(), await self.written()
        early = early_commits(facts, written)
        assert not early, "\n".join(early)
        there = {(topic, record.origin, record.attempt) for (topic, _), records in written.items() for record in records}
        said = {(fact["topic"], tuple(fact["origin"]), fact["attempt"]) for fact in facts if fact["fact"] == "copied"}
        assert said <= there, f"acknowledged, and not there: {sorted(said - there)}"
        return written


async def _send(producer: AIOKafkaProducer, topic: str, record: Record) -> None:
    headers = list(record.headers)
    if record.key is not None or record.value is not None:
        await producer.send(topic, record.value, key=record.key, partition=record.partition, headers=headers)
    else:  # a producer of aiokafka takes it in a batch only
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=None, headers=headers)
        await producer.send_batch(batch, topic, partition=record.partition)


def _id(value: bytes | None) -> str | None:
    try:
        return str(json.loads(value or b"")["id"])
    except (ValueError, KeyError, TypeError):
        return None


def expected(records: Sequence[Record]) -> tuple[set[str], set[str | None]]:
    """The ids of the mixed messages that must run, and those that must be dead letters; `None` stands for unreadable ones."""
    kinds = {record.id: json.loads(record.value or b"")["kind"] for record in records if record.id is not None}
    dead: set[str | None] = {record.id for record in records if record.id is None or kinds[record.id] == "reject"}
    return kinds.keys() - dead, dead


NewWorld = Callable[..., World]


async def each(cases: Iterable[T], attempt: Callable[[T], Awaitable[object]], *, at_once: int = AT_ONCE) -> None:
    """Make the attempt with each case, some at a time; fails with what failed, each under the name of its case."""
    room = asyncio.Semaphore(at_once)

    async def found(case: T) -> str | None:
        async with room:
            try:
                await attempt(case)
            except AssertionError as error:
                return f"{case}: {error}"
        return None

    failures = [failure for failure in await asyncio.gather(*map(found, cases)) if failure is not None]
    assert not failures, "\n".join(failures)


def start_process(world: World, fault: Fault | None = None, **fields: object) -> WorkerProcess:
    """Start a worker of `world` with the handler of the mixed messages in its own process; SIGTERM lets it leave."""
    from tests.failures.worker import main  # it imports this

    told = (world.brokers, world.folder, world.group, fault, {"levels": world.levels, **fields})
    return WorkerProcess(main, told, world.folder / f"{world.group}.log")
