"""What rows of an outbox pay for a missing topic and for a parked key beside them, on PostgreSQL, MariaDB and SQLite.

    python -m benchmarks.beside [--rows 20000] [--seconds 600] [--behind 1000000] [--on postgresql mariadb sqlite] [--json]

One real Kafka and one real database at a time on this machine, values of 200 bytes. *Drain*: a relay sends rows that are there, beside
nothing, and beside a parked row with a million rows of its key behind it that were put aside before. The first is a share of what an
idempotent producer of aiokafka does that is given 500 messages at a time. *Latency*: rows are committed at 1,000 a second, from before the
COMMIT to the acknowledgement; then the same with a row for a topic that does not exist every ten seconds. Read `docs/benchmarks.md` before
you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncmy
import asyncpg
from aiokafka import AIOKafkaProducer
from benchmarks.consumers import running_kafka, table
from benchmarks.outbox import make_topic, percentiles
from rich.console import Console
from rich.table import Table
from tests.databases.mariadb import mariadb_server
from tests.databases.postgres import USER, postgres_server

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import key_hash
from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.plugin.kafka.clients import brokers_answer
from ackwise.plugin.outbox.outboxrelay import AloneSettings, OutboxRelay
from ackwise.plugin.producer.sender import Sender
from ackwise.stores.mysql.outbox import MySQLOutbox
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.sqlite.outbox import SQLiteOutbox

_TOPIC, _MISSING, _BATCH, _SIZE, _KEYS = "orders", "misspelt", 500, 200, 1000
_RATE, _IN_TRANSACTION, _MISSING_EVERY = 1000, 10, 10.0

_COLUMNS: Final = "created, message_id, shard, topic, message_key, key_hash, value, size, state, attempts"
_ROW: Final = f"'x', 1, '{_TOPIC}', 'held', {key_hash(_TOPIC, b'held')}, 'value', 12"


class Postgres:
    """Connections to a PostgreSQL, and its way to make many rows."""

    made = "generate_series(1, {})"
    now = "now()"

    def __init__(self, url: str) -> None:
        self.url, self.outbox = url, PostgresOutbox(url)

    async def connect(self) -> Any:
        return await asyncpg.connect(self.url)

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement, timeout=600)

    async def close(self, connection: Any) -> None:
        await connection.close()


class MariaDB:
    """The same of a MariaDB."""

    made = "seq_1_to_{}"
    now = "UTC_TIMESTAMP(6)"

    def __init__(self, host: str, port: int) -> None:
        self._place = {"host": host, "port": port, "user": "root", "password": "", "db": "test", "autocommit": True}
        self.outbox = MySQLOutbox(f"mariadb://root:@{host}:{port}/test")

    async def connect(self) -> Any:
        return await asyncmy.connect(**self._place)

    async def execute(self, connection: Any, statement: str) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)

    async def close(self, connection: Any) -> None:
        await connection.ensure_closed()


class SQLite:
    """The same of a SQLite file."""

    made = "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {}) SELECT n FROM n)"
    now = "unixepoch()"

    def __init__(self, path: Path) -> None:
        self._path, self.outbox = path, SQLiteOutbox(path)

    async def connect(self) -> Any:
        return sqlite3.connect(self._path, isolation_level=None)

    async def execute(self, connection: Any, statement: str) -> None:
        await asyncio.to_thread(self._execute, statement)

    def _execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute(statement)

    async def close(self, connection: Any) -> None:
        connection.close()


class _Clocked:
    """The sender of a relay, which notes how late what was acknowledged is: its value is the time before its COMMIT."""

    def __init__(self, sender: Sender, late: list[float]) -> None:
        self._sender, self._late = sender, late

    async def start(self) -> None:
        await self._sender.start()

    async def stop(self) -> None:
        await self._sender.stop()

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        answers = await self._sender.send_many(messages, stop_keys=stop_keys)
        now = time.time_ns()
        pairs = zip(messages, answers, strict=True)
        self._late += [(now - int((message.value or b"0").split()[0])) / 1e9 for message, answer in pairs if isinstance(answer, Acked)]
        return answers


@dataclass
class Figures:
    """Of each database: rows per second, by who sends them; seconds until rows were put aside; p50 and p99 in ms without and with."""

    drains: dict[str, dict[str, float]] = field(default_factory=dict)
    latencies: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """Two tables."""
        drained = table("drain of a table", "database", "raw, rows/s", "relay, of raw", "beside a parked key, of without", "put aside in s")
        for name, found in self.drains.items():
            shares = f"{found['relay'] / found['raw']:.2f}", f"{found['beside'] / found['relay']:.2f}"
            drained.add_row(name, f"{found['raw']:,.0f}", *shares, f"{found['aside_s']:.1f}")
        late = table("COMMIT to acknowledgement in ms", "database", "p50", "p99", "p50 beside a missing topic", "p99 beside it")
        for name, by in self.latencies.items():
            late.add_row(name, *(f"{each:.1f}" for when in ("without", "with") for each in by[when]))
        return [drained, late]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {"drain": self.drains, "latency_ms": self.latencies}


class Bench:
    """A database and a Kafka."""

    def __init__(self, database: Any, brokers: str) -> None:
        self.database, self.brokers, self.outbox = database, brokers, database.outbox

    @asynccontextmanager
    async def relaying(self, late: list[float]) -> AsyncIterator[OutboxCounts]:
        settings, counts, stop = AloneSettings(self.brokers), OutboxCounts(), asyncio.Event()
        relay = OutboxRelay(
            self.outbox,
            Outbox(str(self.outbox), batch=_BATCH),
            name="bench",
            new_sender=lambda: _Clocked(Sender(settings), late),
            brokers_answer=partial(brokers_answer, self.brokers, "bench", {}),
            counts=counts,
            is_alone=True,
        )
        running = asyncio.create_task(relay.run(stop))
        while not counts.shards and not running.done():  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.001)
        try:
            yield counts
        finally:
            stop.set()
            await running

    async def write(self, connection: Any, count: int, topic: str = _TOPIC) -> None:
        async with self.outbox.transaction(connection) as transaction:
            for number in range(count):
                value = (b"%d " % time.time_ns()).ljust(_SIZE, b"x")
                transaction.add(Outgoing(topic, value, b"key-%d" % (number % _KEYS)))

    async def raw(self, rows: int) -> float:
        async with AIOKafkaProducer(bootstrap_servers=self.brokers, enable_idempotence=True, acks="all") as producer:
            begun = time.perf_counter()
            for start in range(0, rows, _BATCH):
                some = range(start, min(rows, start + _BATCH))
                await asyncio.gather(*[await producer.send(_TOPIC, b"x" * _SIZE, b"key-%d" % (each % _KEYS)) for each in some])
            return rows / (time.perf_counter() - begun)

    async def drain(self, rows: int) -> float:
        connection = await self.database.connect()
        for start in range(0, rows, 1000):
            await self.write(connection, min(1000, rows - start))
        await self.database.close(connection)
        async with self.relaying([]) as counts:
            begun = time.perf_counter()
            while counts.sent < rows:  # noqa: ASYNC110  # a number has no event
                await asyncio.sleep(0.001)
            return rows / (time.perf_counter() - begun)

    async def park(self, behind: int) -> float:
        """Park a row with `behind` rows of its key behind it; seconds until a relay has put them aside."""
        connection, database = await self.database.connect(), self.database
        insert = f"INSERT INTO ackwise_outbox ({_COLUMNS}) SELECT {database.now}, {_ROW}, "
        await database.execute(connection, f"{insert}5, 1")
        for start in range(0, behind, 100_000):
            await database.execute(connection, f"{insert}2, 0 FROM {database.made.format(min(100_000, behind - start))} AS made")
        begun = time.perf_counter()
        await self.write(connection, 1)
        async with self.relaying([]) as counts:
            while not counts.sent:  # noqa: ASYNC110  # a number has no event
                await asyncio.sleep(0.01)
        await database.close(connection)
        return time.perf_counter() - begun

    async def latency(self, seconds: float, *, missing: bool) -> tuple[float, float]:
        late: list[float] = []
        connection, other = await self.database.connect(), await self.database.connect()
        async with self.relaying(late):
            begun, next_missing = time.perf_counter(), time.perf_counter()
            for number in range(int(seconds * _RATE / _IN_TRANSACTION)):
                if (wait := begun + number * _IN_TRANSACTION / _RATE - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                await self.write(connection, _IN_TRANSACTION)
                if missing and time.perf_counter() >= next_missing:
                    next_missing += _MISSING_EVERY
                    await self.write(other, 1, _MISSING)
            while len(late) < int(seconds * _RATE):  # noqa: ASYNC110  # a list has no event
                await asyncio.sleep(0.01)
        await self.database.close(connection)
        await self.database.close(other)
        return percentiles(late)


async def measure(name: str, bench: Bench, figures: Figures, options: argparse.Namespace) -> None:
    """Take all turns on one database."""
    await bench.outbox.open()
    found = figures.drains[name] = {"raw": await bench.raw(options.rows), "relay": await bench.drain(options.rows)}
    figures.latencies[name] = {"without": await bench.latency(options.seconds, missing=False)}
    figures.latencies[name]["with"] = await bench.latency(options.seconds, missing=True)
    found["aside_s"] = await bench.park(options.behind)
    found["beside"] = await bench.drain(options.rows)
    await bench.outbox.close()


@contextmanager
def _database(name: str, folder: Path) -> Iterator[Any]:
    if name == "sqlite":
        yield SQLite(folder / "bench.db")
    elif name == "mariadb":
        with mariadb_server(folder / "mariadb") as server:
            yield MariaDB("127.0.0.1", server.port)
    else:
        with postgres_server(synchronous_commit="on") as server:
            yield Postgres(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows that are drained (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each measurement of latency (%(default)s)")
    parser.add_argument("--behind", type=int, default=1_000_000, help="rows behind the parked one (%(default)s)")
    parser.add_argument("--on", nargs="+", default=["postgresql", "mariadb", "sqlite"], help="databases (%(default)s)")
    parser.add_argument("--brokers", metavar="HOST:PORT", help="a Kafka that is there already, without a topic orders")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    options, figures = parser.parse_args(arguments), Figures()
    with tempfile.TemporaryDirectory() as folder, running_kafka(options.brokers, Path(folder)) as brokers:
        asyncio.run(make_topic(brokers))
        for name in options.on:
            with _database(name, Path(folder)) as database:
                asyncio.run(measure(name, Bench(database, brokers), figures, options))
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        Console().print(*figures.tables())


if __name__ == "__main__":
    main()
