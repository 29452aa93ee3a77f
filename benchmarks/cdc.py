"""What change data capture does on PostgreSQL and MariaDB: how fast it drains a log, and how soon a row is in Kafka at a steady rate.

    python -m benchmarks.cdc [--rows 50000] [--seconds 10] [--rate 1000] [--rounds 3] [--json]

One real PostgreSQL (`wal_level=logical`, `synchronous_commit=on`), one real MariaDB (row format, `sync_binlog=1`) and one real Kafka on
this machine, values of 200 bytes. The source is the outbox. A drain sends rows that were committed while Kafka took nothing, a thousand in
a transaction; it is timed from when Kafka takes messages again to the last acknowledgement. Latency, on PostgreSQL, is counted from before
the COMMIT of a row, one in a transaction, until Kafka acknowledged it. *Bare* are a COMMIT without an outbox and a send of aiokafka without
a relay, at the same rate just before: what the machine alone takes. Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncmy
import asyncpg
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from benchmarks.consumers import running_kafka, spread, table
from benchmarks.outbox import percentiles
from rich.console import Console
from rich.table import Table
from tests.databases.mariadb import WITH_LOG, mariadb_server
from tests.databases.postgres import USER, postgres_server

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer
from ackwise.plugin.kafka.clients import brokers_answer
from ackwise.plugin.outbox.cdcrelay import CdcRelay
from ackwise.plugin.outbox.cdcroutes import OutboxRows
from ackwise.plugin.outbox.outboxrelay import AloneSettings
from ackwise.plugin.producer.sender import Sender
from ackwise.stores.mysql.binlog import MySQLChanges
from ackwise.stores.mysql.outbox import MySQLOutbox
from ackwise.stores.postgres.outbox import PostgresOutbox
from ackwise.stores.postgres.replication import PostgresChanges

_TOPIC, _SLOT, _SIZE, _KEYS, _IN_TRANSACTION = "orders", "bench", 200, 1000, 1000

#: Seconds until a relay that has to read has read.
_PATIENCE: Final = 300.0


@dataclass
class Figures:
    """Rows per second of each drain, and the latencies of each round: p50 and p99 in milliseconds, and the rate that was reached."""

    drains: list[float] = field(default_factory=list)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    binlog_drains: list[float] = field(default_factory=list)
    bare: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"bare COMMIT": [], "bare send": []})

    def tables(self) -> list[Table]:
        """Two tables."""
        drained = table("drain of the log", "what", "rows/s")
        drained.add_row("outbox of PostgreSQL", spread(self.drains))
        if self.binlog_drains:
            drained.add_row("outbox of MariaDB", spread(self.binlog_drains))
        late = table("COMMIT to acknowledgement in ms", "what", "rows/s written", "p50", "p99")
        for what, found in {"relay": self.latencies, **self.bare}.items():
            if found:
                rates = spread(self.rates) if what == "relay" else ""
                late.add_row(what, rates, spread([p50 for p50, _ in found]), spread([p99 for _, p99 in found]))
        return [drained, late]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {
            "drain_rows_per_s": self.drains,
            "latency_ms": self.latencies,
            "written_per_s": self.rates,
            "binlog_drain_rows_per_s": self.binlog_drains,
            "bare_ms": self.bare,
        }


class _Clocked:
    """The sender of the relay, which notes when what was acknowledged."""

    def __init__(self, sender: Sender, at: dict[str, float], gate: asyncio.Event) -> None:
        self._sender, self._at, self._gate = sender, at, gate

    async def start(self) -> None:
        await self._sender.start()

    async def stop(self) -> None:
        await self._sender.stop()

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        await self._gate.wait()
        answers = await self._sender.send_many(messages, stop_keys=stop_keys)
        now = time.perf_counter()
        for answer in answers:
            if isinstance(answer, Acked):
                self._at.setdefault(answer.message_id, now)
        return answers


class Bench:
    """A PostgreSQL with an outbox, and a Kafka."""

    def __init__(self, url: str, brokers: str) -> None:
        self.url, self.brokers = url, brokers
        self.outbox: Any = self.store()
        self.acknowledged: dict[str, float] = {}
        self.gate = asyncio.Event()  #: Kafka takes messages.
        self.gate.set()

    def store(self) -> Any:
        return PostgresOutbox(self.url)

    def source(self) -> Any:
        return PostgresChanges(self.url, name=_SLOT, create=True)

    async def connect(self) -> Any:
        return await asyncpg.connect(self.url)

    async def close(self, connection: Any) -> None:
        await connection.close()

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[CdcRelay]:
        """A relay while the block runs."""
        source, store, stop = self.source(), self.store(), asyncio.Event()
        route = OutboxRows(store, source.outbox_row, owner=f"cdc/{_SLOT}", name="bench")
        relay = CdcRelay(
            source,
            route,
            new_sender=lambda: _Clocked(Sender(AloneSettings(self.brokers)), self.acknowledged, self.gate),
            brokers_answer=partial(brokers_answer, self.brokers, "bench", {}),
        )
        running = asyncio.create_task(relay.run(stop))
        try:
            await _until(lambda: relay.counts.status is not None or running.done())
            yield relay
        finally:
            stop.set()
            await running
            await store.close()

    async def drain(self, rows: int) -> float:
        """Rows per second of `rows` that are written while a relay reads the log and Kafka takes nothing of it."""
        self.acknowledged.clear()
        async with self.relaying():
            self.gate.clear()
            connection = await self.connect()
            for start in range(0, rows, _IN_TRANSACTION):
                async with self.outbox.transaction(connection) as transaction:
                    for number in range(start, min(rows, start + _IN_TRANSACTION)):
                        transaction.send(_TOPIC, b"x" * _SIZE, key=b"key-%d" % (number % _KEYS))
            await self.close(connection)
            begun = time.perf_counter()
            self.gate.set()
            await _until(lambda: len(self.acknowledged) >= rows)
        return rows / (max(self.acknowledged.values()) - begun)

    async def bare(self, rate: float, seconds: float) -> dict[str, tuple[float, float]]:
        """p50 and p99 in milliseconds of a COMMIT and of a send, neither with anything of ours."""
        commits, sends, sending = list[float](), list[float](), list[asyncio.Task[None]]()
        connections = [await asyncpg.connect(self.url) for _ in range(4)]
        await connections[0].execute("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, value bytea)")
        start = time.perf_counter()
        async with AIOKafkaProducer(bootstrap_servers=self.brokers, enable_idempotence=True, acks="all") as producer:

            async def send(number: int) -> None:
                begun = time.perf_counter()
                await producer.send_and_wait(_TOPIC, b"x" * _SIZE, b"key-%d" % (number % _KEYS))
                sends.append(time.perf_counter() - begun)

            async def write(connection: asyncpg.Connection, first: int) -> None:
                for number in range(first, int(rate * seconds), len(connections)):
                    if (wait := start + number / rate - time.perf_counter()) > 0:
                        await asyncio.sleep(wait)
                    await connection.execute("BEGIN")
                    await connection.execute("INSERT INTO bare (value) VALUES ($1)", b"x" * _SIZE)
                    begun = time.perf_counter()
                    await connection.execute("COMMIT")
                    commits.append(time.perf_counter() - begun)
                    sending.append(asyncio.create_task(send(number)))

            await asyncio.gather(*(write(connection, first) for first, connection in enumerate(connections)))
            await asyncio.gather(*sending)
        for connection in connections:
            await connection.close()
        return {"bare COMMIT": percentiles(commits), "bare send": percentiles(sends)}

    async def latency(self, rate: float, seconds: float) -> tuple[tuple[float, float], float]:
        """p50 and p99 in milliseconds, and the rate at which rows were written."""
        self.acknowledged.clear()
        async with self.relaying():
            written = await self._write(int(rate * seconds), rate)
            await _until(lambda: len(self.acknowledged) >= len(written))
        took = max(written.values()) - min(written.values())
        return percentiles([self.acknowledged[each] - at for each, at in written.items()]), len(written) / max(took, 1e-9)

    async def _write(self, rows: int, rate: float) -> dict[str, float]:
        """Commit rows one by one at `rate`; when each COMMIT started."""
        connections = [await self.connect() for _ in range(4)]
        written: dict[str, float] = {}
        start = time.perf_counter()

        async def write(connection: asyncpg.Connection, first: int) -> None:
            for number in range(first, rows, len(connections)):
                if (wait := start + number / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                async with self.outbox.transaction(connection) as transaction:
                    message_id = transaction.send(_TOPIC, b"x" * _SIZE, key=b"key-%d" % (number % _KEYS))
                    await transaction.flush()
                    written[message_id] = time.perf_counter()

        await asyncio.gather(*(write(connection, first) for first, connection in enumerate(connections)))
        for connection in connections:
            await connection.close()
        return written


class BinlogBench(Bench):
    """A MariaDB with an outbox, and a Kafka."""

    def __init__(self, port: int, brokers: str) -> None:
        self._port = port
        super().__init__(f"mariadb://root@127.0.0.1:{port}/test", brokers)

    def store(self) -> Any:
        return MySQLOutbox(self.url)

    def source(self) -> Any:
        return MySQLChanges(self.url, name=_SLOT, create=True)

    async def connect(self) -> Any:
        return await asyncmy.connect(host="127.0.0.1", port=self._port, user="root", database="test", autocommit=True)

    async def close(self, connection: Any) -> None:
        await connection.ensure_closed()


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():  # noqa: ASYNC110  # numbers tell nobody
            await asyncio.sleep(0.005)


async def measure(bench: Bench, options: argparse.Namespace) -> Figures:
    """Take all rounds."""
    await bench.outbox.open()
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.brokers)
    await admin.start()
    await admin.create_topics([NewTopic(_TOPIC, 4, 1)])
    await admin.close()
    async with bench.relaying():  # makes the slot, which is to keep what is written from now on
        pass
    figures = Figures()
    for _ in range(options.rounds):
        figures.drains.append(await bench.drain(options.rows))
        for what, late_ in (await bench.bare(options.rate, options.seconds)).items():
            figures.bare[what].append(late_)
        late, rate = await bench.latency(options.rate, options.seconds)
        figures.latencies.append(late)
        figures.rates.append(rate)
    await bench.outbox.close()
    return figures


async def measure_binlog(bench: BinlogBench, options: argparse.Namespace) -> list[float]:
    """Rows per second of each drain."""
    await bench.outbox.open()
    async with bench.relaying():  # makes the position
        pass
    drains = [await bench.drain(options.rows) for _ in range(options.rounds)]
    await bench.outbox.close()
    return drains


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cdc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a drain (50000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long rows are written at a steady rate (10)")
    parser.add_argument("--rate", type=float, default=1_000.0, help="rows per second that are written then (1000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (3)")
    parser.add_argument("--brokers", metavar="HOST:PORT", help="a Kafka that is there already, without a topic orders")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Figures:
    """Start the servers, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="ackwise-cdc-") as folder,
        running_kafka(options.brokers, Path(folder)) as brokers,
    ):
        with postgres_server(wal_level="logical", max_slot_wal_keep_size="8GB") as server:
            figures = asyncio.run(measure(Bench(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres", brokers), options))
        with mariadb_server(Path(folder) / "mariadb", *WITH_LOG) as server:
            figures.binlog_drains = asyncio.run(measure_binlog(BinlogBench(server.port, brokers), options))
        return figures


def main() -> None:
    """Measure, and print."""
    options = read_options()
    figures = run(options)
    if options.json:
        print(json.dumps(figures.as_json(), indent=2))
    else:
        Console().print(*figures.tables())


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
