"""What waiting costs: copies that fall due together, lateness by level, writing, cancelling, and a worker that does nothing.

    python -m benchmarks.delays together [--lanes 1] [--partitions 12] [--messages 100000]
    python -m benchmarks.delays levels [--copies 40]
    python -m benchmarks.delays written [--messages 100000]
    python -m benchmarks.delays cancel [--messages 10000] [--lanes 1]
    python -m benchmarks.delays idle [--partitions 500]

One real Kafka on this machine; values of 100 bytes with the headers of a copy. Each takes less than three minutes.

together: `ackwise relay` in its own process moves copies that fall due together into a retry topic of so many partitions; then a
client of aiokafka consumes the same records and produces them there, record by record with `send`, and in batches that it packs.
levels: lateness for each of RocketMQ's levels. Of a level above a minute the last minute is taken: its copies stand where they would be
by then, on the rung and since the time that the rules say.
written: a worker's publisher writes copies that wait for each of the levels. cancel: seconds until one of so many messages that wait is
cancelled. idle: CPU of `ackwise run` with so many partitions and nothing in them, and then of a bare consumer of aiokafka with the same
partitions and those of the retry topic.

Lateness is the broker's own time of a copy in the retry topic less its `ackwise-due`. Read `docs/benchmarks.md` before you believe a
figure.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from benchmarks.consumers import running_kafka, table
from rich.console import Console
from rich.table import Table

from ackwise import App, ConsumeLater
from ackwise.middleware.message.message import Delivery, Headers, Origin
from ackwise.middleware.message.wire import Copy, retry_copy
from ackwise.middleware.policies.delaytopic import Ladder
from ackwise.middleware.policies.retry import DelayLevels
from ackwise.plugin.delays.cancellations import cancel
from ackwise.plugin.producer.copypublisher import KafkaPublisher
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.topicadmin import ensure_topics, set_append_time

#: Seconds until copies that are due together are due: the relay has started, and they are on the rung of 30 s.
_LEAD: Final = 30.0

#: Seconds of a level that are taken at most.
_LAST: Final = 60.0

#: Seconds that a worker has to start, and for which its CPU is taken.
_START, _IDLE = 40.0, 60.0

#: Batches of a producer that are on their way at a time, and copies that a publisher is given in one call.
_BATCHES, _CALL = 64, 1000

_APP: Final = """
from ackwise import App, ConsumeLater

app = App({group!r}, brokers={brokers!r}, relay={relay!r}, lanes={lanes})
app.use(ConsumeLater())


@app.agent({source!r})
async def remind(value: bytes) -> None: ...
"""

#: A consumer as aiokafka has it, which is in a group and consumes.
_BARE: Final = """
import asyncio
from aiokafka import AIOKafkaConsumer

async def consume():
    consumer = AIOKafkaConsumer(*{topics!r}, bootstrap_servers={brokers!r}, group_id="bare", auto_offset_reset="earliest")
    await consumer.start()
    while True:
        await consumer.getmany(timeout_ms=1000)

asyncio.run(consume())
"""

_LEVELS: Final = DelayLevels()

_Record = tuple[int, bytes, bytes, Headers]  #: its partition, key, value and headers


class Found(NamedTuple):
    """The figures of one benchmark: by name, and as a table."""

    facts: dict[str, object]
    shown: Table


class Shop:
    """A group of its own on the Kafka at `brokers`, and what its topics are filled with."""

    def __init__(self, brokers: str, folder: Path, options: argparse.Namespace, *, relay: str = "apart") -> None:
        self.brokers, self.folder, self.relay = brokers, folder, relay
        self.messages, self.partitions, self.lanes = options.messages, options.partitions, options.lanes
        self.name = f"shop-{time.time_ns()}"
        self.source = f"{self.name}-orders"
        self.group = self._group()

    def _group(self) -> Group:
        app = App(self.name, brokers=self.brokers, relay="apart", lanes=self.lanes)
        app.use(ConsumeLater())

        @app.agent(self.source)
        async def remind(value: bytes) -> None: ...

        return app.group()

    async def open(self) -> None:
        await self.create(self.source, self.partitions)
        await ensure_topics(self.group.settings, self.group.names, [self.source], levels=self.group.levels)
        await set_append_time(self.group.settings, [self.group.names.retry])

    async def create(self, topic: str, partitions: int) -> None:
        async with self.admin() as admin:
            await admin.create_topics([NewTopic(topic, partitions, 1)])
        await asyncio.sleep(2)

    async def keep_producers_time(self) -> None:
        """In the delay topic: copies that were written long ago can be written now."""
        configs = {"message.timestamp.type": "CreateTime", "max.message.bytes": "2000000", "retention.ms": "-1"}  # it replaces all
        change = ConfigResource(ConfigResourceType.TOPIC, self.group.names.delay, configs=configs)
        async with self.admin() as admin:
            await admin.alter_configs([change])

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    @asynccontextmanager
    async def producer(self) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(bootstrap_servers=self.brokers, acks="all", enable_idempotence=True, max_batch_size=2**17)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    def command(self, name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`ackwise NAME` while the block runs."""
        module = self.name.replace("-", "_")
        app = _APP.format(group=self.name, brokers=self.brokers, source=self.source, relay=self.relay, lanes=self.lanes)
        (self.folder / f"{module}.py").write_text(app)
        return self.python("-m", "ackwise.plugin.cli", name, f"{module}:app", "--log-level", "warning")

    @contextmanager
    def python(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of this Python while the block runs."""
        process = subprocess.Popen([sys.executable, *arguments], cwd=self.folder)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def copy(self, number: int, due: float, handler: str = "remind") -> Copy:
        """Of message `number`, due then."""
        origin = Origin(self.source, number % self.partitions, number // self.partitions, 0)
        return retry_copy(
            Delivery(*origin, b"%d" % number, b"%100d" % number, (), origin), topic=self.group.names.delay, partition=origin.partition,
            group=self.name, handler=handler, due=round(due * 1000), now_ms=0, reason="ConsumeLater", waits=True,
        )  # fmt: skip

    def records(self, places: Sequence[int], due: float) -> Iterator[_Record]:
        """All messages as copies that are due then, over `places`."""
        for number, place in zip(range(self.messages), itertools.cycle(places), strict=False):
            copy = self.copy(number, due)
            yield place, copy.key or b"", copy.value or b"", copy.headers


async def together(shop: Shop, options: argparse.Namespace) -> Found:
    """Seconds until all have come back that fall due together, and how that compares with consuming and producing them."""
    await shop.open()
    retry, (rung, *_) = shop.group.names.retry, [Ladder(shop.group.settings.rungs).rung(_LEAD)]
    with shop.command("relay"):
        due = time.time() + _LEAD
        async with shop.producer() as producer:
            await _pack(producer, shop.group.names.delay, shop.records(rung.partitions, due))
        if time.time() > due - 5:
            raise RuntimeError(f"writing {shop.messages} copies took longer than {_LEAD - 5:g} s; take fewer")
        late, last = await _come_back(shop, retry, shop.messages, until=due + 90)
    seconds = {"relay": last - due}
    for kind, move in (("send", _send), ("batches", _pack)):
        source, target = f"{shop.name}-{kind}-in", f"{shop.name}-{kind}-out"
        await shop.create(source, len(rung.partitions))
        await shop.create(target, shop.partitions)
        async with shop.producer() as producer:
            await _pack(producer, source, shop.records(range(len(rung.partitions)), due))
        seconds[kind] = await _raw(shop, source, target, move)
    ratios = {kind: seconds[kind] / seconds["relay"] for kind in ("send", "batches")}
    title = f"{shop.messages:,} due together, lanes {shop.lanes}, {shop.partitions} partitions"
    shown = table(title, "who", "seconds", "the relay's throughput is × that")
    for kind, took in seconds.items():
        shown.add_row(kind, f"{took:.2f}", f"{ratios[kind]:.2f}" if kind in ratios else "")
    late_ms = {"median": late[len(late) // 2], "last": late[-1], "earliest": late[0]}
    shown.caption = "milliseconds late: " + ", ".join(f"{name} {ms}" for name, ms in late_ms.items())
    return Found({"seconds": seconds, "ratios": ratios, "late_ms": late_ms}, shown)


async def levels(shop: Shop, options: argparse.Namespace) -> Found:
    """Lateness by level."""
    await shop.open()
    await shop.keep_producers_time()
    ladder, names = Ladder(shop.group.settings.rungs), shop.group.names
    due_of: dict[bytes, str] = {}
    with shop.command("relay"):
        await asyncio.sleep(_LEAD / 2)
        async with shop.producer() as producer:
            for tick in range(options.copies):
                now = time.time()
                for number, (name, seconds) in enumerate(zip(_LEVELS.names(), _LEVELS.seconds, strict=True)):
                    delay = seconds + shop.group.settings.clock_skew
                    place, ago = _stands(ladder, delay, min(delay, _LAST))
                    copy = shop.copy(number + len(_LEVELS) * tick, now + min(delay, _LAST))
                    due_of[copy.value or b""] = name
                    stamp = round((now - ago) * 1000)
                    await producer.send(names.delay, copy.value, copy.key, place, timestamp_ms=stamp, headers=list(copy.headers))
                await producer.flush()
                await asyncio.sleep(max(0.0, now + 1 - time.time()))
        found = await _read(shop, names.retry, len(due_of), until=time.time() + _LAST + 30)
    late: defaultdict[str, list[int]] = defaultdict(list)
    for value, (ms, _) in found.items():
        late[due_of[value]].append(ms)
    shown = table(f"milliseconds late, {options.copies} copies of each level", "level", "median", "last", "earliest", "hops")
    facts: dict[str, object] = {}
    for name, seconds in zip(_LEVELS.names(), _LEVELS.seconds, strict=True):
        its, hops = sorted(late[name]), ladder.hops(seconds + shop.group.settings.clock_skew)
        facts[name] = {"median": its[len(its) // 2], "max": its[-1], "min": its[0], "hops": hops}
        shown.add_row(name, str(its[len(its) // 2]), str(its[-1]), str(its[0]), str(hops))
    return Found(facts, shown)


async def written(shop: Shop, options: argparse.Namespace) -> Found:
    """Copies per second that a worker's publisher writes."""
    await shop.open()
    publisher, now = KafkaPublisher(shop.group.settings), time.time()
    waits = itertools.cycle(_LEVELS.seconds)
    copies = [shop.copy(number, now + wait) for number, wait in zip(range(shop.messages), waits, strict=False)]
    await publisher.start()
    try:
        begun = time.perf_counter()
        answers = await asyncio.gather(*(publisher.publish(copies[at : at + _CALL]) for at in range(0, len(copies), _CALL)))
        rate = shop.messages / (time.perf_counter() - begun)
    finally:
        await publisher.stop()
    if any(answer is not None for each in answers for answer in each):
        raise RuntimeError("not all copies were acknowledged")
    shown = table("a worker's publisher", "copies", "copies/s")
    shown.add_row(f"{shop.messages:,}", f"{rate:,.0f}")
    return Found({"copies_per_second": rate}, shown)


async def cancelled(shop: Shop, options: argparse.Namespace) -> Found:
    """Seconds until one of many messages that wait is cancelled."""
    await shop.open()
    places = Ladder(shop.group.settings.rungs).rung(86_400.0).partitions
    async with shop.producer() as producer:
        await _pack(producer, shop.group.names.delay, shop.records(places, time.time() + 86_400))
    number = shop.messages // 2
    message_id = f"{shop.source}/{number % shop.partitions}/{number // shop.partitions}"
    begun = time.perf_counter()
    answers = await cancel(shop.group, [message_id])
    seconds = time.perf_counter() - begun
    if answers != {message_id: "accepted"}:
        raise RuntimeError(f"the message was not cancelled: {answers}")
    shown = table(f"one of {shop.messages:,} that wait, lanes {shop.lanes}, {shop.partitions} partitions", "cancelled after", "seconds")
    shown.add_row("", f"{seconds:.2f}")
    return Found({"seconds": seconds}, shown)


async def idle(shop: Shop, options: argparse.Namespace) -> Found:
    """The share of a core that a worker takes which has nothing to do."""
    await shop.open()
    with shop.command("run") as process:
        share = await _share(process.pid)
    bare = _BARE.format(brokers=shop.brokers, topics=[shop.source, shop.group.names.retry])
    with shop.python("-c", bare) as process:
        share_of_bare = await _share(process.pid)
    shown = table(f"{shop.partitions} source partitions with nothing in them", "", "of a core")
    shown.add_row("a worker with its relay", f"{share:.1%}")
    shown.add_row("a bare consumer", f"{share_of_bare:.1%}")
    return Found({"share": share, "share_of_bare": share_of_bare}, shown)


async def _share(pid: int) -> float:
    """The share of a core that a process takes that has just started, once it has nothing to do."""
    await asyncio.sleep(_START)
    before = _cpu(pid)
    await asyncio.sleep(_IDLE)
    return (_cpu(pid) - before) / _IDLE


#: By name, with the number of messages and of partitions, and what a worker does with the relay.
BENCHES: Final[dict[str, tuple[Callable[[Shop, argparse.Namespace], Awaitable[Found]], int, int, str]]] = {
    "together": (together, 100_000, 12, "apart"),
    "levels": (levels, 0, 12, "apart"),
    "written": (written, 100_000, 12, "apart"),
    "cancel": (cancelled, 10_000, 12, "apart"),
    "idle": (idle, 0, 500, "inside"),
}


def _stands(ladder: Ladder, delay: float, left: float) -> tuple[int, float]:
    """The partition on which a copy of `delay` seconds is when `left` of them are left, and for how long it has been there."""
    written_at = 0.0
    while written_at + (rung := ladder.rung(delay - written_at)).wait <= delay - left:
        written_at += rung.wait
    return rung.partitions[0], delay - left - written_at


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _raw(shop: Shop, source: str, target: str, move: Callable[[AIOKafkaProducer, str, Iterable[_Record]], Awaitable[None]]) -> float:
    """Seconds of a client that consumes `source` and produces it to `target`; it commits what it has produced."""
    consumer = AIOKafkaConsumer(bootstrap_servers=shop.brokers, group_id=source, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(source, number) for number in range(shop.lanes)])
        async with shop.producer() as producer:
            begun, done = time.perf_counter(), 0
            while done < shop.messages:
                records = [record for each in (await consumer.getmany(timeout_ms=1000)).values() for record in each]
                await move(producer, target, (_moved(record, shop.partitions) for record in records))
                await consumer.commit()
                done += len(records)
            return time.perf_counter() - begun
    finally:
        await consumer.stop()


def _moved(record: Any, partitions: int) -> _Record:
    return int(record.key) % partitions, record.key, record.value, record.headers


async def _send(producer: AIOKafkaProducer, topic: str, records: Iterable[_Record]) -> None:
    """Record by record."""
    sent = [await producer.send(topic, value, key, partition, headers=list(headers)) for partition, key, value, headers in records]
    await asyncio.gather(*sent)


async def _pack(producer: AIOKafkaProducer, topic: str, records: Iterable[_Record]) -> None:
    """In batches, which are packed meanwhile."""
    batches: dict[int, Any] = {}
    sent: set[asyncio.Future[Any]] = set()
    for partition, key, value, headers in records:
        batch = batches.setdefault(partition, producer.create_batch())
        if batch.append(timestamp=None, key=key, value=value, headers=list(headers)) is None:
            sent.add(await producer.send_batch(batch, topic, partition=partition))
            batch = batches[partition] = producer.create_batch()
            batch.append(timestamp=None, key=key, value=value, headers=list(headers))
            if len(sent) > _BATCHES:
                _, sent = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
    sent |= {await producer.send_batch(batch, topic, partition=partition) for partition, batch in batches.items()}
    await asyncio.gather(*sent)


async def _come_back(shop: Shop, topic: str, messages: int, *, until: float) -> tuple[list[int], float]:
    """Milliseconds late of each message, the earliest first, and when the last one came."""
    found = (await _read(shop, topic, messages, until=until)).values()
    return sorted(late for late, _ in found), max(came for _, came in found) / 1000


async def _read(shop: Shop, topic: str, messages: int, *, until: float) -> dict[bytes, tuple[int, int]]:
    """Milliseconds beyond its due time of each copy by its value, and when it came, once all are there; none is counted twice."""
    consumer = AIOKafkaConsumer(bootstrap_servers=shop.brokers, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(shop.partitions)]
        consumer.assign(partitions)
        there = 0
        while there < messages:
            if time.time() > until:
                raise RuntimeError(f"{there} of {messages} copies came back to {topic} in time")
            await asyncio.sleep(0.5)
            with suppress(KafkaError):  # a broker that is busy
                there = sum((await consumer.end_offsets(partitions)).values())
        await consumer.seek_to_beginning()
        found: dict[bytes, tuple[int, int]] = {}
        while len(found) < messages:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    due = int(dict(record.headers)["ackwise-due"])
                    found.setdefault(record.value or b"", (record.timestamp - due, record.timestamp))
        return found
    finally:
        await consumer.stop()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=BENCHES)
    parser.add_argument("--messages", type=int, help="copies (100000; of cancel 10000)")
    parser.add_argument("--partitions", type=int, help="of the source and the retry topic (12; of idle 500)")
    parser.add_argument("--lanes", type=int, default=1, help="partitions of each rung (%(default)s)")
    parser.add_argument("--copies", type=int, default=40, help="of each level (%(default)s)")
    parser.add_argument("--brokers", help="a Kafka that runs already")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no table")
    options = parser.parse_args(arguments)
    _, messages, partitions, _ = BENCHES[options.what]
    options.messages = messages if options.messages is None else options.messages
    options.partitions = partitions if options.partitions is None else options.partitions
    return options


def run(options: argparse.Namespace) -> Found:
    """Start a Kafka and measure."""
    measure, _, _, relay = BENCHES[options.what]
    with tempfile.TemporaryDirectory() as name, running_kafka(options.brokers, Path(name)) as brokers:

        async def measured() -> Found:
            return await measure(Shop(brokers, Path(name), options, relay=relay), options)

        return asyncio.run(measured())


def main() -> None:
    """Measure, and print."""
    options = read_options()
    found = run(options)
    if options.json:
        print(json.dumps(found.facts, indent=2))
    else:
        Console().print(found.shown)


if __name__ == "__main__":
    main()
