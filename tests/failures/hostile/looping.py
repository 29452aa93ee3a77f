"""A worker that is a loop of the user's own around a consumer of the user's own."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.failures.calls import Tap, TappedConsumer, TappedStore
from tests.failures.world import World, handle
from tests.servers import connected

from ackwise.middleware.policies.policies import DeadLetter, Dedup
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.loop import reliable
from ackwise.stores.sqlite import SQLiteStore

#: Milliseconds of a session as `reliable` accepts it; brokers take shorter ones only where they are told to, as that of these tests is.
_SESSION = 6000


async def loop(world: World, tap: Tap, stop: asyncio.Event) -> None:
    """Consume with `reliable` until `stop` is set."""
    store = TappedStore(SQLiteStore(world.folder / f"{world.group}.db", timeout=world.store_timeout), tap)
    settings: dict[str, Any] = {"commit_interval": 0.1, "clock_skew": 0.0, "revoke_timeout": 5.0, "drain_timeout": 5.0, **world.settings}
    consumer = TappedConsumer(
        bootstrap_servers=world.brokers,
        group_id=world.group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=50,
        rebalance_timeout_ms=60_000,
    )
    async with connected(consumer):
        consumer._session_timeout_ms = _SESSION  # the session of the group itself was settled by the start
        batches = reliable(
            consumer,
            world.topic,
            ConsumeLater(16, levels=" ".join(world.levels)),
            DeadLetter(),
            Dedup(store, key=lambda message: str(message.value["id"]), lease=world.lease),
            name="bill",
            model=dict,
            max_batch=world.max_batch,
            **settings,
        )
        stopping = asyncio.create_task(_stop_when(stop, batches))
        try:
            async with batches:
                async for batch in batches:
                    async with batch:
                        await handle(batch, tap)
        finally:
            stopping.cancel()


async def _stop_when(stop: asyncio.Event, batches: Any) -> None:
    await stop.wait()
    batches.stop()
