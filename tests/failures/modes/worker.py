"""What a worker of a trial does, in its own process."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import nullcontext
from pathlib import Path

from tests.failures.ledger import Ledger
from tests.failures.transacting import ShortSessions

from ackwise import App, ConsumeLater, Dedup, Message, RetryInPlace
from ackwise.middleware.policies.retry import Order
from ackwise.plugin import aiokafkahost
from ackwise.plugin.delays import delayrelay
from ackwise.plugin.settings.config import Config
from ackwise.testing import hostile_client

#: Seconds.
COMMIT, DELAY, LEASE = 0.3, 0.05, 2.0


def consume(
    brokers: str, group: str, topic: str, folder: Path, seed: int, order: Order, concurrency: int | None, dedup: bool, harms: list[str]
) -> None:  # fmt: skip
    """Work until SIGTERM; `harms` befall its client."""
    logging.basicConfig(level="WARNING", format="%(asctime)s %(message)s")
    for module in (aiokafkahost, delayrelay):
        module.AIOKafkaConsumer = ShortSessions  # type: ignore[attr-defined]  # theirs is not for others
    ledger, worker = Ledger(folder / "ledger"), os.getpid()
    app = App(group, brokers=brokers, config=Config(), commit_interval=COMMIT, revoke_timeout=2.0, drain_timeout=5.0, clock_skew=0.0)
    app.use(ConsumeLater(16, levels="200ms"))
    if dedup:
        app.use(Dedup(f"sqlite:///{folder}/claims.db", lease=LEASE))
    in_place = None if order is None else RetryInPlace(50, delay=DELAY)

    @app.agent(topic, order=order, concurrency=concurrency, in_place=in_place)
    async def bill(message: Message[bytes]) -> None:
        at = {"partition": message.partition, "offset": message.offset, "worker": worker}
        ledger.write("begins", **at, attempt=message.reconsume_times)
        fails, seconds = fate(seed, message.partition, message.offset)
        await asyncio.sleep(seconds)
        if message.reconsume_times < fails:
            raise ConnectionError("the plan says so")
        ledger.write("succeeds", **at)
        os.fsync(ledger.file)

    ledger.write("started", worker=worker)
    with hostile_client(*harms) if harms else nullcontext():
        app.run()


def fate(seed: int, partition: int, offset: int) -> tuple[int, float]:
    """How often the handler fails with a message, and the seconds that each call takes."""
    chance = random.Random(f"{seed}/{partition}/{offset}")
    return chance.choices([0, 1, 2, 4], [80, 12, 6, 2])[0], chance.choices([0.002, 0.02, 0.4], [70, 27, 3])[0]
