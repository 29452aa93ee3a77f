"""A local transaction on each database, and a broker that is a file: what processes of tests of transactional messages do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import PATIENCE

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer
from ackwise.middleware.policies.policies import Outbox
from ackwise.middleware.storage.outbox import OutboxStore
from ackwise.plugin.outbox.outboxrelay import OutboxRelay

BOOK = "INSERT INTO effects VALUES ('{id}')"
ADD = "UPDATE accounts SET balance = balance + 1 WHERE name = '{name}'"

#: A lease that ends soon: the relay that died can't give it back.
POLICY = Outbox("", lease=1.0, poll=0.05)


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[tuple[Any, Callable[[str], Any]]]:
    """A transaction in the database of `url`: its connection, and what executes a statement."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=5.0)
            try:
                connection.execute("BEGIN IMMEDIATE")

                async def run(statement: str) -> None:
                    connection.execute(statement)

                yield connection, run
                connection.execute("COMMIT")
            finally:
                connection.close()
        case "postgresql":
            import asyncpg

            inside = await asyncpg.connect(url)
            try:
                async with inside.transaction():
                    yield inside, inside.execute
            finally:
                inside.terminate()
        case _:
            import asyncmy

            at = {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}
            async with asyncmy.connect(**at) as opened:

                async def execute(statement: str) -> None:
                    async with opened.cursor() as cursor:
                        await cursor.execute(statement)

                await opened.begin()
                try:
                    yield opened, execute
                except BaseException:
                    await opened.rollback()
                    raise
                await opened.commit()


async def book(run: Callable[[str], Any], id: str) -> None:
    """Two statements."""
    await run(BOOK.format(id=id))
    await run(ADD.format(name=id[-1]))


def mortal(dies_at: str) -> Callable[[str], None]:
    """What is told each step that a process has done, and kills it at one of them."""

    def reach(step: str) -> None:
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


class FileSender:
    """A broker: what it acknowledged is a line in a file, and durable. `reach` is told before and after."""

    def __init__(self, path: Path, reach: Callable[[str], None] = lambda step: None) -> None:
        self._path = path
        self._reach = reach

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send_many(self, messages: Sequence[Outgoing], **_: Any) -> list[SendAnswer]:
        self._reach("sending")
        with self._path.open("a", encoding="utf-8") as lines:
            for message in messages:
                lines.write(json.dumps([message.message_id, (message.value or b"").decode()]) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
        self._reach("acknowledged")
        return [Acked(message.topic, 0, number, 0, message.message_id) for number, message in enumerate(messages)]


def read_sent(path: Path) -> list[tuple[str, str]]:
    """Message id and value of everything that the broker acknowledged."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [(id, value) for id, value in map(json.loads, lines)]


async def _answers() -> bool:
    return True


async def drain(store: OutboxStore, sender: FileSender) -> None:
    """Relay until no row waits to be sent."""
    stop = asyncio.Event()
    relay = OutboxRelay(store, POLICY, name="outbox", new_sender=lambda: sender, brokers_answer=_answers)
    relaying = asyncio.create_task(relay.run(stop))
    try:
        async with asyncio.timeout(PATIENCE):
            while (await store.status()).waiting:
                assert not relaying.done(), relaying.result()
                await asyncio.sleep(0.02)
    finally:
        stop.set()
        await relaying
