"""Shops for the tests of lanes with a real pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.plugin.consumer.ordered import Shop


@pytest.fixture
async def shop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Shop]]:
    """Makes shops with the options in `SHOP` of the module, and ends them. What does not end is abandoned soon."""
    monkeypatch.setattr("ackwise.middleware.pipeline.timeout.ABANDON_AFTER", 0.02)
    defaults: dict[str, Any] = getattr(request.module, "SHOP", {})
    async with AsyncExitStack() as shops:

        def make(handler: Any, **options: Any) -> Shop:
            made = Shop(handler, **(defaults | options))
            shops.push_async_callback(made.stop)
            return made

        yield make
