"""A hostile client under a Faust worker: nothing is lost, and the worker goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faust.world import Shop, orders

from ackwise.testing.hostile.plan import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]

STYLES = ("plain", "noack")
COUNT, ALWAYS = 24, 20

#: What the consumer of Faust and the relay suffer, as a hostile client is told.
PLAN = Plan.parse(
    "worker.drain:raises-after@9 worker.OffsetFetch:loadingx2 worker.OffsetCommit:raises-after@2 "
    "relay.OffsetFetch:loadingx2 relay.drain:raises-after relay.ListOffsets:empty"
)


async def test_what_the_client_of_a_worker_suffers_loses_nothing_and_does_not_end_it(new_shop: Callable[..., Shop], tmp_path: Path) -> None:
    async with new_shop(*STYLES, store=f"sqlite:///{tmp_path}/claims.db") as shop:
        for style in STYLES:
            await shop.order(style, orders(style, COUNT, {3: 1, ALWAYS: -1}))
        worker = await shop.start(str(PLAN))
        await shop.wait_until_billed(len(STYLES) * (COUNT - 1))
        for style in STYLES:
            await shop.order(style, orders(style, 2 * COUNT, {COUNT + 1: 1})[COUNT:])
        await shop.wait_until_committed()
        assert {style: await shop.lost(style) for style in STYLES} == {style: set() for style in STYLES}
        assert await worker.stop() == 0
        assert max(shop.runs().values()) == 1
        assert await shop.dead() == dict.fromkeys((f"{style}-{ALWAYS}" for style in STYLES), 1)
        assert {str(fault) for fault in PLAN.faults} == set((shop.folder / "suffered").read_text().split())
