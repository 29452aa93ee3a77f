"""How late delayed messages come back, and what share of a raw producer the relay reaches when all of them fall due together.

    python -m benchmarks.delays [--messages 100000] [--rounds 3] [--over 20] [--brokers HOST:PORT] [--json]

One real Kafka on this machine; a delay topic and a retry topic of 4 partitions, values of 100 bytes with the headers of a copy. The relay
is `ackwise relay` in a process of its own. In each round a group has that many copies pending that fall due together, another one as many
that fall due over so many seconds, and a producer of aiokafka writes the same records: one by one with `send`, and in batches
of 128 KiB that it packs as it goes. Lateness is the broker's own time of a copy in the retry topic less its `ackwise-due`. Ratios are
taken within a round. Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from benchmarks.consumers import running_kafka, spread, table
from rich.console import Console
from rich.table import Table

from ackwise import App, ConsumeLater
from ackwise.middleware.message import Delivery, Headers, Origin
from ackwise.middleware.wire import retry_copy
from ackwise.plugin.group.group import Group
from ackwise.plugin.group.recordbatches import RecordBatch
from ackwise.plugin.group.topics import ensure_topics, set_append_time

__all__ = ["Figures", "main", "measure", "read_options", "run"]

_PARTITIONS: Final = 4

#: Seconds from the first copy that is written until they are due: the relay has started, and has what it holds ahead.
_LEAD: Final = 30.0

_APP: Final = """
from ackwise import App, ConsumeLater

app = App({group!r}, brokers={brokers!r}, relay="apart")
app.use(ConsumeLater(levels="1m"))


@app.agent({source!r})
async def remind(value: bytes) -> None: ...
"""


class Lateness(NamedTuple):
    """Of one group: milliseconds of each copy beyond its due time, in ascending order, and from the first due time to the last copy."""

    late: Sequence[int]
    lasted: float

    def at(self, share: float) -> int:
        """The lateness that this share of all copies does not exceed."""
        return self.late[min(len(self.late) - 1, int(share * len(self.late)))]


@dataclass
class Figures:
    """What each round found."""

    messages: int
    over: float
    together: list[Lateness] = field(default_factory=list)
    pending: list[Lateness] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  #: seconds of a raw producer, record by record
    packed: list[float] = field(default_factory=list)  #: the same in batches

    def tables(self) -> list[Table]:
        """Lateness, and throughput."""
        late = table(f"{self.messages:,} pending copies: milliseconds late, in each round", "due", "median", "99 %", "last", "earliest")
        for name, rounds in (("together", self.together), (f"over {self.over:g} s", self.pending)):
            columns = zip(*((one.at(0.5), one.at(0.99), one.late[-1], one.late[0]) for one in rounds), strict=True)
            late.add_row(name, *(spread(column) for column in columns))
        raw = table("all due together", "who", "seconds", "share of that that the relay reaches")
        raw.add_row("relay", spread([one.lasted for one in self.together]), "")
        for name, seconds in (("producer, send", self.sent), ("producer, batches", self.packed)):
            raw.add_row(name, spread(seconds), spread(self.shares(seconds)))
        return [late, raw]

    def shares(self, seconds: Sequence[float]) -> list[float]:
        """The throughput of the relay as a share of a producer that took `seconds`, round by round."""
        return [raw / one.lasted for raw, one in zip(seconds, self.together, strict=True)]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        late = {
            name: [{"median": one.at(0.5), "p99": one.at(0.99), "max": one.late[-1], "min": one.late[0]} for one in rounds]
            for name, rounds in (("together", self.together), ("spread", self.pending))
        }
        shares = {"send": self.shares(self.sent), "batches": self.shares(self.packed)}
        return {"messages": self.messages, "over": self.over, "late_ms": late, "shares": shares}


async def measure(brokers: str, folder: Path, *, messages: int, rounds: int, over: float, lead: float = _LEAD) -> Figures:
    """Take all turns, one after the other; the order of the producers rotates."""
    figures = Figures(messages, over)
    for number in range(rounds):
        figures.together.append(await _relayed(brokers, folder, f"together-{number}", messages, over=0.0, lead=lead))
        for kind in ("send", "batches") if number % 2 == 0 else ("batches", "send"):
            topic = f"raw-{kind}-{number}"
            await _create(brokers, topic)
            copies = [_copy(number, topic, f"raw-{number}", time.time()) for number in range(messages)]
            seconds = await (_send if kind == "send" else _pack)(brokers, topic, copies)
            (figures.sent if kind == "send" else figures.packed).append(seconds)
        figures.pending.append(await _relayed(brokers, folder, f"pending-{number}", messages, over=over, lead=lead))
    return figures


async def _relayed(brokers: str, folder: Path, name: str, messages: int, *, over: float, lead: float) -> Lateness:
    """One group whose copies fall due over `over` seconds."""
    source, settings = f"{name}-orders", f"{name}-{int(time.time())}"
    await _create(brokers, source)
    group = _group(brokers, settings, source)
    await ensure_topics(group.settings, group.names, [source], levels=group.levels)
    await set_append_time(group.settings, [group.names.retry])
    with _relay(folder, settings, brokers, source):
        first = time.time() + lead
        copies = [_copy(number, group.names.delays[0], settings, first + over * number / messages) for number in range(messages)]
        await _pack(brokers, group.names.delays[0], copies)
        if time.time() > first - lead / 4:
            raise RuntimeError(f"writing {messages} copies took longer than {lead * 0.75:g} s; take fewer")
        late = sorted(await _read(brokers, group.names.retry, messages, until=first + over + 120))
    return Lateness([late_ms for late_ms, _ in late], max(came for _, came in late) / 1000 - first)


def _group(brokers: str, name: str, source: str) -> Group:
    app = App(name, brokers=brokers, relay="apart")
    app.use(ConsumeLater(levels="1m"))

    @app.agent(source)
    async def remind(value: bytes) -> None: ...

    return app.group()


@contextmanager
def _relay(folder: Path, group: str, brokers: str, source: str) -> Iterator[None]:
    """`ackwise relay` while the block runs."""
    module = group.replace("-", "_")
    (folder / f"{module}.py").write_text(_APP.format(group=group, brokers=brokers, source=source))
    command = [sys.executable, "-m", "ackwise.plugin.cli", "relay", f"{module}:app", "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _copy(number: int, topic: str, group: str, due: float) -> tuple[int, bytes, bytes, Headers]:
    origin = Origin("orders", number % _PARTITIONS, number // _PARTITIONS, 0)
    copy = retry_copy(
        Delivery(*origin, b"%d" % number, b"%100d" % number, (), origin), topic=topic, partition=origin.partition, group=group,
        handler="remind", due=round(due * 1000), now_ms=0, reason="ConsumeLater",
    )  # fmt: skip
    return origin.partition, copy.key or b"", copy.value or b"", copy.headers


async def _send(brokers: str, topic: str, copies: Sequence[tuple[int, bytes, bytes, Headers]]) -> float:
    """Seconds of a producer that is given one record after the other."""
    async with _producer(brokers) as producer:
        begun = time.perf_counter()
        sent = [
            await producer.send(topic, value, key=key, partition=partition, headers=list(headers))
            for partition, key, value, headers in copies
        ]
        await asyncio.wait(sent)
        return time.perf_counter() - begun


async def _pack(brokers: str, topic: str, copies: Sequence[tuple[int, bytes, bytes, Headers]]) -> float:
    """Seconds of a producer that is given batches, which are packed meanwhile."""
    async with _producer(brokers) as producer:
        begun = time.perf_counter()
        open_batches = {number: RecordBatch(topic, number) for number in range(_PARTITIONS)}
        sent: list[asyncio.Future[Any]] = []
        now_ms = int(time.time() * 1000)
        for partition, key, value, headers in copies:
            if not open_batches[partition].append(key, value, headers, now_ms):
                sent.append(await producer.send_batch(open_batches[partition].sealed(), topic, partition=partition))
                open_batches[partition] = RecordBatch(topic, partition)
                open_batches[partition].append(key, value, headers, now_ms)
        for partition, batch in open_batches.items():
            sent.append(await producer.send_batch(batch.sealed(), topic, partition=partition))
        await asyncio.gather(*sent)
        return time.perf_counter() - begun


@asynccontextmanager
async def _producer(brokers: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait("raw-warm", b"x")
        yield producer
    finally:
        await producer.stop()


async def _create(brokers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in (topic, "raw-warm")])
        await asyncio.sleep(1)
    finally:
        await admin.close()


async def _read(brokers: str, topic: str, messages: int, *, until: float) -> list[tuple[int, int]]:
    """Milliseconds beyond its due time of each copy, and when it came, once all are there; none is counted twice."""
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
        consumer.assign(partitions)
        while sum((await consumer.end_offsets(partitions)).values()) < messages:
            if time.time() > until:
                raise RuntimeError(f"not all of {messages} copies came back to {topic}")
            await asyncio.sleep(0.5)
        await consumer.seek_to_beginning()
        found: dict[bytes, tuple[int, int]] = {}
        while len(found) < messages:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    due = int(dict(record.headers)["ackwise-due"])
                    found.setdefault(record.value or b"", (record.timestamp - due, record.timestamp))
        return list(found.values())
    finally:
        await consumer.stop()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says; `[]` stands for the defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="pending in a group (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (%(default)s)")
    parser.add_argument("--over", type=float, default=20.0, help="seconds over which the second group's copies fall due (%(default)s)")
    parser.add_argument("--brokers", help="a Kafka that runs already")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Figures:
    """Start a Kafka and take all turns."""
    with tempfile.TemporaryDirectory() as name, running_kafka(options.brokers, Path(name)) as brokers:
        return asyncio.run(measure(brokers, Path(name), messages=options.messages, rounds=options.rounds, over=options.over))


def main() -> None:
    """Measure, and print."""
    options = read_options()
    figures = run(options)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        Console().print(*figures.tables())


if __name__ == "__main__":
    main()
