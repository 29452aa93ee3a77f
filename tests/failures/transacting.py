"""A worker under `Transactional` in its own process: each message is a row in `effects`, which would hold duplicates, and one
more on the balance of an account. In the mode `outbox` each is published as well, to the topic with `-out` behind its name.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from tests.failures.calls import SESSION

from ackwise import App, Batch, ConsumeLater, Outbox, Transactional
from ackwise.plugin import aiokafkahost
from ackwise.plugin.delays import delayrelay
from ackwise.plugin.settings.config import Config

BOOK = "INSERT INTO effects VALUES ({0})"
ADD = "UPDATE accounts SET balance = balance + {0} WHERE name = {1}"


class ShortSessions(AIOKafkaConsumer):
    """aiokafka's consumer, which is missed soon after it was killed."""

    def __init__(self, *topics: str, **options: Any) -> None:
        options.update(session_timeout_ms=round(SESSION * 1000), heartbeat_interval_ms=round(SESSION * 200))
        super().__init__(*topics, **options)  # type: ignore[no-untyped-call]  # aiokafka is annotated in part


def app_of(brokers: str, group: str, topic: str, url: str, mode: str, pause: float) -> App:
    app = App(group, brokers=brokers, config=Config(), commit_interval=0.2)
    by_key = Transactional(url, key=lambda message: message.raw)
    app.use(Transactional(url, mode="offsets") if mode == "offsets" else by_key, ConsumeLater(3, levels="200ms"))
    if mode == "outbox":
        app.use(Outbox(url, lease=1.0))

    @app.agent(topic, max_batch=50)
    async def bill(batch: Batch[bytes]) -> None:
        ids = [message.value.decode() for message in batch]
        await execute(batch.connection, BOOK, [(id,) for id in ids])
        await asyncio.sleep(pause)
        # In the order of their names, so that two batches do not wait for each other in a circle.
        await execute(batch.connection, ADD, [(count, name) for name, count in sorted(Counter(map(account_of, ids)).items())])
        for message in batch:
            if mode == "outbox":
                await app.publish(f"{topic}-out", message.value, key=message.value[-1:], source=message)
            if message.value.endswith(b"77") and message.reconsume_times == 0:
                raise ConnectionError("those that end in 77 fail once")

    return app


def account_of(id: str) -> str:
    """Whose money it is."""
    return id[-1]


async def execute(connection: Any, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """`statement` with each of `rows`, in the words of the connection's driver."""
    match connection:
        case sqlite3.Connection():
            connection.executemany(statement.format("?", "?"), rows)
        case _ if type(connection).__module__.startswith("asyncpg"):
            await connection.executemany(statement.format("$1", "$2"), rows)
        case _:
            async with connection.cursor() as cursor:
                await cursor.executemany(statement.format("%s", "%s"), rows)


def main(brokers: str, group: str, topic: str, url: str, mode: str, pause: float) -> None:
    """Work until SIGTERM; a batch takes `pause` seconds."""
    for module in (aiokafkahost, delayrelay):
        module.AIOKafkaConsumer = ShortSessions  # type: ignore[attr-defined]  # theirs is not for others
    app_of(brokers, group, topic, url, mode, pause).run()
