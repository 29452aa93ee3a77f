"""The end of a `faust worker`: in order, and without an error in its log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faust.world import Shop, orders

#: `raises` and `undecodable` log errors by themselves.
STYLES = ("plain", "take", "noack", "yields", "concurrency", "isolated", "group_by", "through", "filter", "table")


@pytest.mark.slow  # the start of a worker of Faust takes seconds
async def test_a_worker_that_is_stopped_logs_no_error(new_shop: Callable[..., Shop]) -> None:
    async with new_shop(*STYLES) as shop:
        worker = await shop.start()
        for style in STYLES:
            await shop.order(style, orders(style, 4))
        await shop.wait_until(lambda: len(shop.runs()) == 4 * len(STYLES), "each order is billed")
        assert await worker.stop() == 0
        _, _, ending = worker.log.read_text().partition("Signal received")
        assert "stopped: group=" in ending
        assert not {line for line in ending.splitlines() if "[ERROR]" in line or "Traceback" in line or "[CRITICAL]" in line}
