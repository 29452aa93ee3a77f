"""What a large table costs an outbox on PostgreSQL: a backlog of ten million rows, as many sent rows that stay, and their cleanup.

    python -m benchmarks.large_outbox [--rows 10000000] [--drained 50000] [--json]

One real PostgreSQL and one real Kafka on this machine, values of 200 bytes. The table is measured three times while a relay sends rows:
when it is empty but for them, with a backlog of so many rows behind them, and with as many rows that were sent and are kept without their
payload. Then `cleanup` deletes those while a relay sends more. Sizes are of the table with its indexes, in bytes.
Read `docs/benchmarks.md` before you believe a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
from benchmarks.consumers import running_kafka, table
from benchmarks.outbox import Bench, make_topic
from rich.console import Console
from rich.table import Table
from tests.databases.postgres import USER, postgres_server

from ackwise.plugin.consumer.workerstate import OutboxCounts
from ackwise.stores.postgres.outbox import PostgresOutbox

# As a business transaction would have written them, but that they are many and of few keys.
_FILL: Final = """
INSERT INTO ackwise_outbox (message_id, shard, topic, message_key, key_hash, value, size, state, next_at)
SELECT md5(n::text), n % 64, 'orders', CASE WHEN $2 = 2 THEN convert_to('key-' || n % 1000, 'UTF8') END,
    CASE WHEN $2 = 2 THEN 1 + n % 1000 END, CASE WHEN $2 = 2 THEN decode(repeat('78', 200), 'hex') END, 208, $2, $3
FROM generate_series(1, $1) AS n
"""


@dataclass
class Figures:
    """Rows per second by what is in the table beside them, bytes by when, and seconds of the cleanup."""

    rates: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    cleanup_seconds: float = 0.0
    cleaned: int = 0

    def tables(self) -> list[Table]:
        """Two tables."""
        sent = table("rows that a relay sends", "beside", "rows/s")
        for what, rate in self.rates.items():
            sent.add_row(what, f"{rate:,.0f}")
        sizes = table("table with indexes", "when", "MB")
        for when, size in self.sizes.items():
            sizes.add_row(when, f"{size / 1e6:,.1f}")
        sizes.add_row("cleanup", f"{self.cleaned:,} rows in {self.cleanup_seconds:.1f} s")
        return [sent, sizes]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {"rows_per_s": self.rates, "bytes": self.sizes, "cleanup_s": self.cleanup_seconds, "cleaned": self.cleaned}


class LargeBench(Bench):
    """A database whose table is filled, and a relay that sends some rows of it."""

    async def fill_fast(self, rows: int, state: int) -> None:
        connection = await asyncpg.connect(self.url)
        until = await connection.fetchval("SELECT now()")
        for start in range(0, rows, 500_000):
            await connection.execute(_FILL, min(500_000, rows - start), state, None if state == 2 else until)
        await connection.execute("VACUUM ANALYZE ackwise_outbox")
        await connection.close()

    async def relay_some(self, rows: int) -> float:
        """Rows per second of a relay that sends `rows` and is stopped."""
        counts, stop = OutboxCounts(), asyncio.Event()
        running = asyncio.create_task(self.relay(counts).run(stop))
        while not counts.shards:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.001)
        begun = time.perf_counter()
        while counts.sent < rows:  # noqa: ASYNC110  # a number tells nobody
            await asyncio.sleep(0.001)
        lasted, sent = time.perf_counter() - begun, counts.sent
        stop.set()
        await running
        return sent / lasted

    async def size(self) -> int:
        connection = await asyncpg.connect(self.url)
        size = int(await connection.fetchval("SELECT pg_total_relation_size('ackwise_outbox')"))
        await connection.close()
        return size

    async def vacuum(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute("VACUUM ackwise_outbox")
        await connection.close()


async def measure(bench: LargeBench, rows: int, drained: int) -> Figures:
    """Take all turns."""
    figures = Figures()
    await bench.outbox.open()
    await bench.fill_fast(drained, 2)
    figures.rates["nothing"] = await bench.relay_some(drained)
    await bench.empty()
    await bench.fill_fast(rows, 2)
    figures.sizes["with the backlog"] = await bench.size()
    figures.rates["the backlog"] = await bench.relay_some(drained)
    await bench.empty()
    await bench.fill_fast(rows, 4)
    figures.sizes["with sent rows that stay"] = await bench.size()
    await bench.fill_fast(drained, 2)
    figures.rates["sent rows that stay"] = await bench.relay_some(drained)
    await bench.fill_fast(drained, 2)
    cleaning, begun = asyncio.create_task(PostgresOutbox(bench.url).cleanup()), time.perf_counter()
    figures.rates["the cleanup of those"] = await bench.relay_some(drained)
    figures.cleaned = await cleaning
    figures.cleanup_seconds = time.perf_counter() - begun
    await bench.vacuum()
    figures.sizes["after cleanup and vacuum"] = await bench.size()
    await bench.fill_fast(rows // 10, 4)
    figures.sizes["with a tenth of the rows again"] = await bench.size()
    await bench.outbox.close()
    return figures


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.large_outbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large table (10000000)")
    parser.add_argument("--drained", type=int, default=50_000, help="rows that a relay sends each time (50000)")
    parser.add_argument("--brokers", metavar="HOST:PORT", help="a Kafka that is there already, without a topic orders")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object, and no tables")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Figures:
    """Start both servers, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="ackwise-outbox-") as folder,
        running_kafka(options.brokers, Path(folder)) as brokers,
        postgres_server(max_wal_size="4GB") as server,
    ):
        asyncio.run(make_topic(brokers))
        bench = LargeBench(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres", brokers, rows=0, transactions=0, wakes=0, peer=None)
        return asyncio.run(measure(bench, options.rows, options.drained))


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
