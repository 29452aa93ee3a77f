"""Calls that may never answer: what whoever asked is told of them, and what asyncio is not told."""

from __future__ import annotations

import asyncio
import gc

import pytest
from aiokafka.errors import KafkaConnectionError

from ackwise.plugin.client.bounded import answer


@pytest.mark.parametrize("moments", range(6))
async def test_a_call_that_fails_as_whoever_waits_for_it_is_cancelled_leaves_no_error_behind(
    moments: int, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    async def failing() -> None:
        await go.wait()
        raise KafkaConnectionError("gone")

    asking = asyncio.create_task(answer(failing(), within=60.0))
    for _ in range(5):
        await asyncio.sleep(0)
    go.set()
    for _ in range(moments):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises((asyncio.CancelledError, KafkaConnectionError)):
        await asking
    del asking
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text
