"""What the host does to the parts that aiokafka keeps to itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ackwise.plugin.kafka.aiokafkainternals import revive


async def client(*, closed: bool) -> Any:
    """A client whose task that fetches has ended, and left a request behind."""

    async def fetch() -> None: ...

    fetching, request = asyncio.create_task(fetch()), asyncio.create_task(asyncio.sleep(3600))
    await fetching
    return SimpleNamespace(
        _closed=closed, _fetcher=SimpleNamespace(_fetch_task=fetching, _pending_tasks={request}, _fetch_requests_routine=fetch)
    )


async def test_a_client_that_ended_fetching_is_begun_anew() -> None:
    consumer = await client(closed=False)
    ended = consumer._fetcher._fetch_task
    assert isinstance(revive(consumer), asyncio.CancelledError)
    assert (consumer._fetcher._pending_tasks, consumer._fetcher._fetch_task is ended) == (set(), False)
    await consumer._fetcher._fetch_task


async def test_a_client_that_is_being_stopped_is_left_alone() -> None:
    """It goes through its requests one by one: were they taken away meanwhile, it would give up and leave its connections open."""
    consumer = await client(closed=True)
    ended, (request,) = consumer._fetcher._fetch_task, consumer._fetcher._pending_tasks
    assert revive(consumer) is None
    assert (consumer._fetcher._pending_tasks, consumer._fetcher._fetch_task) == ({request}, ended)
    request.cancel()
