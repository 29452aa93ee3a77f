"""A batch under `Transactional` with an outbox, in its own process, one statement at a time, so that it can be killed between two.

The pipeline is the one of a worker; the handler writes a row in `effects` for each id and changes a balance, and publishes a message. At
the end a relay sends what was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from tests.failures.booking import FileSender, drain, mortal
from tests.failures.transacting import ADD, BOOK, account_of, execute

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message.batch import Batch
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import Copy
from ackwise.middleware.pipeline.pipeline import Pipeline
from ackwise.middleware.pipeline.transactions import Transactions
from ackwise.middleware.pipeline.worker import Worker
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run
from ackwise.middleware.storage.outbox import Outbox
from ackwise.middleware.storage.transaction import Finish, TransactionalStore
from ackwise.plugin.registry import open_inbox, open_outbox

STEPS = ("opened", "began", "claimed", "booked", "added", "marked", "rows written", "committed", "sending", "acknowledged")


class Stepping:
    """An inbox, or a transaction of it, that says what it has done."""

    def __init__(self, inner: Any, reach: Callable[[str], None]) -> None:
        self.inner = inner
        self.reach = reach

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @asynccontextmanager
    async def begin(self, *, retention: float) -> AsyncIterator[Stepping]:
        async with self.inner.begin(retention=retention) as transaction:
            self.reach("began")
            yield Stepping(transaction, self.reach)
        self.reach("committed")

    async def claim(self, keys: Sequence[Any]) -> Any:
        answers = await self.inner.claim(keys)
        self.reach("claimed")
        return answers

    async def finish(self, finishes: Sequence[Finish]) -> None:
        await self.inner.finish(finishes)
        self.reach("marked")

    def writer(self, connection: Any) -> Stepping:
        return Stepping(self.inner.writer(connection), self.reach)

    async def flush(self) -> None:
        await self.inner.flush()
        self.reach("rows written")


class Lane:
    """Of nobody else's."""

    cut_off = is_stopping = False

    def pass_settled(self, runs: Sequence[Run]) -> None: ...


class NoCopies:
    """Nothing comes later here."""

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        raise AssertionError("a message failed")


def run_of(offset: int, id: str) -> Run:
    """Its offset says nothing: what was consumed before is known by its value."""
    origin = Origin("orders", 0, offset, 0)
    return Run.of(Delivery("orders", 0, offset, 0, None, id.encode(), (), origin))


async def _work(url: str, broker: Path, ids: Sequence[str], reach: Callable[[str], None]) -> None:
    inbox, outbox = open_inbox(url), open_outbox(url)
    await inbox.open()
    await outbox.open()
    runs = [run_of(offset, id) for offset, id in enumerate(ids)]

    async def pay(batch: Batch[bytes]) -> None:
        taken = [message.value.decode() for message in batch]
        await execute(batch.connection, BOOK, [(id,) for id in taken])
        reach("booked")
        await execute(batch.connection, ADD, [(1, account_of(id)) for id in sorted(taken, key=account_of)])
        reach("added")
        for run in runs:
            if (id := (run.delivery.value or b"").decode()) in taken:
                run.publishes = [Outgoing("paid", id.encode(), key=b"k", message_id=f"paid-{id}")]

    policy = Transactional(url, key=lambda message: message.raw)
    worker = Worker(
        "billing", ConsumeLater(3), NoCopies(), "retry", "dlq", "delay", dedup=policy, outbox=cast(Outbox, Stepping(outbox, reach))
    )
    agent = Agent("pay", ("orders",), "batch", pay, lambda value: value)
    pipeline = Pipeline(agent, worker, partial(Transactions, store=cast(TransactionalStore, Stepping(inbox, reach))))
    reach("opened")
    await pipeline(list(runs), Lane())
    await drain(outbox, FileSender(broker, reach))
    await inbox.close()
    await outbox.close()


def main(url: str, broker: Path, ids: Sequence[str], dies_at: str) -> None:
    asyncio.run(_work(url, broker, ids, mortal(dies_at)))
