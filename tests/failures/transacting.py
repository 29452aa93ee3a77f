"""A worker under `Transactional` in a process of its own: each message is one row in `effects`, which would hold duplicates.

Arguments: brokers, group, topic, URL of the database, mode, seconds that a batch takes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from ackwise import App, Batch, ConsumeLater, Transactional
from ackwise.plugin.config import Config


def app_of(brokers: str, group: str, topic: str, url: str, mode: str, pause: float) -> App:
    app = App(group, brokers=brokers, config=Config(), commit_interval=0.2, session_timeout=6.0)
    by_key = Transactional(url, key=lambda message: message.raw)
    app.use(by_key if mode == "inbox" else Transactional(url, mode="offsets"), ConsumeLater(3, levels="200ms"))

    @app.agent(topic, max_batch=50)
    async def bill(batch: Batch[bytes]) -> None:
        await insert(batch.connection, [message.value.decode() for message in batch])
        await asyncio.sleep(pause)
        for message in batch:
            if message.value.endswith(b"7") and message.reconsume_times == 0:
                raise ConnectionError("those that end in 7 fail once")

    return app


async def insert(connection: Any, ids: list[str]) -> None:
    """One row for each, with what the driver of the database takes."""
    if type(connection).__module__.startswith("sqlite3"):
        connection.executemany("INSERT INTO effects VALUES (?)", [(id,) for id in ids])
    else:
        await connection.executemany("INSERT INTO effects VALUES ($1)", [(id,) for id in ids])


if __name__ == "__main__":
    brokers, group, topic, url, mode, pause = sys.argv[1:]
    app_of(brokers, group, topic, url, mode, float(pause)).run()
