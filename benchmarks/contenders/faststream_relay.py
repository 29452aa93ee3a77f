"""faststream-outbox: its own table is filled, then its relay sends all of it to Kafka, with its batches and workers turned up.

Arguments: URL of a PostgreSQL database, brokers, topic, number of rows, bytes of a value. It prints the seconds that the relay took.
"""

from __future__ import annotations

import asyncio
import sys
import time

from faststream.kafka import KafkaBroker  # pyright: ignore[reportMissingImports]  # lives in its own environment
from faststream_outbox import OutboxBroker, make_outbox_table  # pyright: ignore[reportMissingImports]  # the same
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine

#: As large as the batch of Ackwise's relay; its defaults send ten rows in a second.
_BATCH = 500

#: Each has a connection to the database.
_WORKERS = 50


async def main(url: str, brokers: str, topic: str, rows: int, size: int) -> None:
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="peer_outbox")
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), pool_size=_WORKERS + 10)
    outbox, kafka = (
        OutboxBroker(engine, outbox_table=table, logger=None),
        KafkaBroker(brokers, enable_idempotence=True, acks="all", logger=None),
    )
    intervals = {"min_fetch_interval": 0.01, "max_fetch_interval": 0.01}
    to_kafka = kafka.publisher(topic)

    async def relay(body: bytes) -> bytes:
        return body

    batches = {"fetch_batch_size": _BATCH, "terminal_flush_batch_size": _BATCH}
    to_kafka(outbox.subscriber("orders", max_workers=_WORKERS, **batches, **intervals)(relay))

    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
    for start in range(0, rows, _BATCH):
        async with engine.begin() as connection:
            await outbox.publish_batch(*[b"x" * size] * min(_BATCH, rows - start), queue="orders", session=connection)
    await kafka.start()
    begun = time.perf_counter()
    await outbox.start()
    async with engine.connect() as connection:
        while (await connection.execute(text("SELECT EXISTS (SELECT 1 FROM peer_outbox)"))).scalar():  # noqa: ASYNC110  # a table tells nobody
            await asyncio.sleep(0.01)
    print(time.perf_counter() - begun, flush=True)
    await outbox.stop()
    await kafka.stop()
    await engine.dispose()


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
