"""What the outbox costs on PostgreSQL: how fast its relay drains a table, what a transaction pays for its rows, how soon a row is sent.

    python -m benchmarks.outbox [--rows 20000] [--transactions 2000] [--wakes 200] [--rounds 5] [--json]

One real PostgreSQL (`synchronous_commit=on`) and one real Kafka on this machine, values of 200 bytes. Each round has a turn of each, and
the order rotates; ratios are taken within a round. *raw* is an idempotent producer of aiokafka, with acks=all, that is given 500 messages
at a time; *row by row* selects, sends, deletes and commits one row after the other; *faststream-outbox* runs in the environment of
`make bench`, if that is there. A wake-up is counted from before the COMMIT of the writer until the row is handed to the producer.
Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from benchmarks.consumers import default_python, running_kafka, spread, table, versions
from rich.console import Console
from rich.table import Table
from tests.databases.postgres import USER, postgres_server

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer
from ackwise.middleware.policies.policies import Outbox
from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.plugin.outbox.outboxrelay import AloneSettings, OutboxRelay, new_relay
from ackwise.stores.postgres.outbox import PostgresOutbox

_BATCH, _SIZE, _KEYS, _TOPIC = 500, 200, 1000, "orders"

#: Row by row is so slow that it gets this share of the rows.
_SHARE_OF_SLOW: Final = 20

#: Connections that do business side by side, and messages of a transaction.
_WRITERS, _MESSAGES = 4, 3

#: Statements of a business transaction, whether it writes messages, and whether a relay in this process sends what comes. One update is
#: the least that a transaction can be; an order looks its account up, takes from it, and writes a booking and its line.
_BUSINESS: Final = {
    "one update, without outbox": (1, False, True),
    "one update, rows only": (1, True, False),
    "one update, rows and relay": (1, True, True),
    "an order, without outbox": (4, False, True),
    "an order, rows only": (4, True, False),
    "an order, rows and relay": (4, True, True),
}

_PEER: Final = "faststream-outbox"


@dataclass
class Figures:
    """Rows per second by who drains, transactions per second by what they write, milliseconds by what wakes; one of each round."""

    drains: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    business: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wakes: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))  #: p50 and p99

    def tables(self) -> list[Table]:
        """Three tables, with ratios."""
        drained = table("drain of a table", "who", "rows/s", "of raw")
        for name, rates in self.drains.items():
            drained.add_row(name, spread(rates), spread(ratios(rates, self.drains["raw"])))
        written = table(f"a business transaction with {_MESSAGES} messages", "what", "transactions/s", "of those without")
        for name, rates in self.business.items():
            written.add_row(name, spread(rates), spread(ratios(rates, self.business[_without(name)])))
        woken = table("wake-up in ms", "by", "p50", "p99")
        for name, found in self.wakes.items():
            woken.add_row(name, spread([p50 for p50, _ in found]), spread([p99 for _, p99 in found]))
        return [drained, written, woken]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {"drain_rows_per_s": self.drains, "transactions_per_s": self.business, "wake_ms": self.wakes}


def ratios(rates: Sequence[float], others: Sequence[float]) -> list[float]:
    """Round by round."""
    return [rate / other for rate, other in zip(rates, others, strict=True)]


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[98] * 1000


class Bench:
    """A database and a Kafka, and who has a turn on them."""

    def __init__(self, url: str, brokers: str, *, rows: int, transactions: int, wakes: int, peer: Path | None) -> None:
        self.url, self.brokers, self.rows, self.transactions, self.wakes, self.peer = url, brokers, rows, transactions, wakes, peer
        self.outbox = PostgresOutbox(url)

    @property
    def drains(self) -> dict[str, Callable[[], Awaitable[float]]]:
        """Who drains, by name; each returns rows per second."""
        peer = {} if self.peer is None else {_PEER: self.drain_by_peer}
        return {"raw": self.send_raw, "relay": self.drain_by_relay, "row by row": self.drain_row_by_row, **peer}

    def messages(self, rows: int) -> list[Outgoing]:
        return [Outgoing(_TOPIC, b"x" * _SIZE, b"key-%d" % (number % _KEYS)) for number in range(rows)]

    async def fill(self, rows: int) -> None:
        connection = await asyncpg.connect(self.url)
        messages = self.messages(rows)
        for start in range(0, rows, 1000):
            async with self.outbox.transaction(connection) as transaction:
                for message in messages[start : start + 1000]:
                    transaction.add(message)
        await connection.close()

    def producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(bootstrap_servers=self.brokers, enable_idempotence=True, acks="all")

    async def send_raw(self) -> float:
        messages = self.messages(self.rows)
        async with self.producer() as producer:
            begun = time.perf_counter()
            for start in range(0, self.rows, _BATCH):
                some = messages[start : start + _BATCH]
                sent = [await producer.send(_TOPIC, each.value, each.key, headers=list(each.sent_headers)) for each in some]
                await asyncio.gather(*sent)
            return self.rows / (time.perf_counter() - begun)

    def relay(self, counts: OutboxCounts | None = None) -> OutboxRelay:
        return new_relay(self.outbox, Outbox(self.url, batch=_BATCH), AloneSettings(self.brokers), sink=None, counts=counts, is_alone=True)

    async def drain_by_relay(self) -> float:
        await self.fill(self.rows)
        counts, stop = OutboxCounts(), asyncio.Event()
        running = asyncio.create_task(self.relay(counts).run(stop))
        while not counts.shards:  # noqa: ASYNC110  # it tells nobody; by then it has connected, as the raw producer has
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        while counts.sent < self.rows:  # noqa: ASYNC110  # a number tells nobody
            await asyncio.sleep(0.001)
        lasted = time.perf_counter() - begun
        stop.set()
        await running
        return self.rows / lasted

    async def drain_row_by_row(self) -> float:
        rows = max(1, self.rows // _SHARE_OF_SLOW)
        await self.fill(rows)
        connection = await asyncpg.connect(self.url)
        async with self.producer() as producer:
            begun = time.perf_counter()
            for _ in range(rows):
                async with connection.transaction():
                    row = await connection.fetchrow(
                        "SELECT id, topic, message_key, value, message_id FROM ackwise_outbox WHERE state = 2 ORDER BY id LIMIT 1"
                        " FOR UPDATE SKIP LOCKED"
                    )
                    assert row is not None
                    headers = [("message-id", row["message_id"].encode())]
                    await producer.send_and_wait(row["topic"], row["value"], row["message_key"], headers=headers)
                    await connection.execute("DELETE FROM ackwise_outbox WHERE id = $1", row["id"])
            lasted = time.perf_counter() - begun
        await connection.close()
        return rows / lasted

    async def drain_by_peer(self) -> float:
        command = [
            str(self.peer),
            "-m",
            "benchmarks.contenders.faststream_relay",
            self.url,
            self.brokers,
            _TOPIC,
            str(self.rows),
            str(_SIZE),
        ]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        return self.rows / float(done.stdout)

    async def work(self, kind: str) -> float:
        """Business transactions per second of a `kind`."""
        statements, with_outbox, with_relay = _BUSINESS[kind]
        counts, stop = OutboxCounts(), asyncio.Event()
        running = asyncio.create_task(self.relay(counts).run(stop)) if with_relay else None
        connections = [await asyncpg.connect(self.url) for _ in range(_WRITERS)]
        messages, each = self.messages(_MESSAGES), self.transactions // _WRITERS

        async def write(connection: asyncpg.Connection, writer: int) -> None:
            for number in range(each):
                if not with_outbox:
                    async with connection.transaction():
                        await _do_business(connection, statements, writer, number)
                    continue
                async with self.outbox.transaction(connection) as transaction:
                    await _do_business(connection, statements, writer, number)
                    for message in messages:
                        transaction.send(message.topic, message.value, key=message.key)

        begun = time.perf_counter()
        await asyncio.gather(*(write(connection, writer) for writer, connection in enumerate(connections)))
        lasted = time.perf_counter() - begun
        stop.set()
        if running is not None:
            await running
        for connection in connections:
            await connection.close()
        await self.empty()
        return _WRITERS * each / lasted

    async def wake(self, mode: str) -> tuple[float, float]:
        """p50 and p99 in milliseconds: of rows that this process writes, or another one, with notifications or without."""
        late, stop = list[float](), asyncio.Event()
        listens = 0 if mode == "poll, 1 s" else 100
        store = self.outbox if mode == "in process" else PostgresOutbox(self.url, statement_cache_size=listens)
        await store.open()
        policy = Outbox(self.url)
        relay = OutboxRelay(store, policy, name="bench", new_sender=lambda: _Clocked(late), brokers_answer=_always)
        running = asyncio.create_task(relay.run(stop))
        await asyncio.sleep(1.0)  # it owns its shards and is idle
        if mode == "in process":
            await write_clocked(self.outbox, self.url, self.wakes)
        else:
            writer = [sys.executable, "-m", "benchmarks.outbox", "--writer", self.url, str(self.wakes)]
            await asyncio.to_thread(subprocess.run, writer, check=True)
        while len(late) < self.wakes:  # noqa: ASYNC110  # a list tells nobody
            await asyncio.sleep(0.05)
        stop.set()
        await running
        if store is not self.outbox:
            await store.close()
        return percentiles(late)

    async def empty(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute("TRUNCATE ackwise_outbox")
        await connection.close()


class _Clocked:
    """A sender that acknowledges at once, and notes how old each message is."""

    def __init__(self, late: list[float]) -> None:
        self._late = late

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        now = time.time_ns()
        self._late += [(now - int(message.value or b"0")) / 1e9 for message in messages]
        return [Acked(message.topic, 0, 0, 0, message.message_id) for message in messages]


async def _do_business(connection: asyncpg.Connection, statements: int, account: int, number: int) -> None:
    """The first of the `statements` that an order has."""
    if statements > 1:
        await connection.fetchval("SELECT balance FROM accounts WHERE id = $1 FOR UPDATE", account)
    await connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = $1", account)
    if statements > 1:
        order = await connection.fetchval("INSERT INTO bookings (account, amount) VALUES ($1, 1) RETURNING id", account)
        await connection.execute("INSERT INTO booking_lines (booking, item) VALUES ($1, $2)", order, number)


def _without(kind: str) -> str:
    return f"{kind.partition(',')[0]}, without outbox"


async def _always() -> bool:
    return True


async def write_clocked(outbox: PostgresOutbox, url: str, rows: int) -> None:
    """Commit rows one by one, some twenty in a second; each has the time before its COMMIT as its value."""
    await outbox.open()  # else it writes rows, and notifies nobody
    connection = await asyncpg.connect(url)
    for number in range(rows):
        async with outbox.transaction(connection) as transaction:
            transaction.send(_TOPIC, b"%d" % time.time_ns(), key=b"key-%d" % number)
        await asyncio.sleep(0.05)
    await connection.close()


async def _write(url: str, rows: int) -> None:
    outbox = PostgresOutbox(url)
    await write_clocked(outbox, url, rows)
    await outbox.close()


async def measure(bench: Bench, rounds: int) -> Figures:
    """Take all turns, one after the other; the order rotates."""
    await bench.outbox.open()
    connection = await asyncpg.connect(bench.url)
    await connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)")
    await connection.execute("INSERT INTO accounts SELECT generate_series(0, $1)", _WRITERS)
    await connection.execute("CREATE TABLE bookings (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL)")
    await connection.execute("CREATE TABLE booking_lines (id bigserial PRIMARY KEY, booking bigint NOT NULL, item int NOT NULL)")
    await connection.close()
    figures = Figures()
    for number in range(rounds):
        for name, drain in _rotated(list(bench.drains.items()), number):
            await bench.empty()
            figures.drains[name].append(await drain())
        for name in _rotated(list(_BUSINESS), number):
            figures.business[name].append(await bench.work(name))
        for mode in _rotated(["in process", "notified", "poll, 1 s"], number):
            figures.wakes[mode].append(await bench.wake(mode))
    await bench.outbox.close()
    return figures


def _rotated(turns: list[Any], by: int) -> list[Any]:
    by %= len(turns)
    return turns[by:] + turns[:by]


async def make_topic(brokers: str) -> None:
    """Make the topic that everybody sends to."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    await admin.create_topics([NewTopic(_TOPIC, 4, 1)])
    await admin.close()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.outbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a drain (20000)")
    parser.add_argument("--transactions", type=int, default=2_000, help="business transactions of a turn (2000)")
    parser.add_argument("--wakes", type=int, default=200, help="rows of a turn whose wake-up is measured (200)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--brokers", metavar="HOST:PORT", help="a Kafka that is there already, without a topic orders")
    parser.add_argument(
        "--peer", type=Path, metavar="PYTHON", default=default_python(), help="the Python with faststream-outbox (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    parser.add_argument("--writer", nargs=2, metavar=("URL", "ROWS"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Figures:
    """Start both servers, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="ackwise-outbox-") as folder,
        running_kafka(options.brokers, Path(folder)) as brokers,
        postgres_server() as database,
    ):
        url = f"postgresql://{USER}@127.0.0.1:{database.port}/postgres"
        asyncio.run(make_topic(brokers))
        peer = options.peer if _PEER in versions(options.peer) else None
        bench = Bench(url, brokers, rows=options.rows, transactions=options.transactions, wakes=options.wakes, peer=peer)
        return asyncio.run(measure(bench, options.rounds))


def main() -> None:
    """Measure, and print."""
    options = read_options()
    if options.writer is not None:
        url, rows = options.writer
        asyncio.run(_write(url, int(rows)))
        return
    figures = run(options)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        Console().print(*figures.tables())


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
