"""Workers of one group join and leave while agents work: nothing is lost, nothing runs twice, and partitions stay in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faust.world import Shop, orders

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]  # each starts two workers of Faust

STYLES = ("plain", "take", "noack", "yields", "isolated", "group_by", "through", "table")
COUNT, ALWAYS = 100, 60


def by_partition(shop: Shop, style: str) -> dict[int, list[int]]:
    """The offsets that the agent billed, as they stand in the ledger."""
    offsets = defaultdict(list)
    for line in shop.billed():
        if line["id"].startswith(f"{style}-"):
            offsets[line["partition"]].append(line["offset"])
    return offsets


async def test_a_worker_that_joins_and_one_that_leaves_cost_nothing(new_shop: Callable[..., Shop], tmp_path: Path) -> None:
    placed = {style: orders(style, COUNT, {5: 1, 20: 2, ALWAYS: -1, 80: 1}) for style in STYLES}
    async with new_shop(*STYLES, pause=0.02, store=f"sqlite:///{tmp_path}/claims.db") as shop:
        for style in STYLES:
            await shop.order(style, placed[style][:30])
        first = await shop.start()
        await shop.wait_until_billed(10 * len(STYLES))
        second = await shop.start()
        await shop.wait_until(lambda: "running: group=" in second.log.read_text(), "a partition of the second worker")
        for style in STYLES:
            await shop.order(style, placed[style][30:])
        await shop.wait_until(lambda: len({line["pid"] for line in shop.billed()}) == 2, "a bill of the second worker")
        assert await first.stop() == 0
        await shop.wait_until_committed()
        assert {style: await shop.lost(style) for style in STYLES} == {style: set() for style in STYLES}
        assert await second.stop() == 0
        runs = shop.runs()
        assert {id for id, times in runs.items() if times > 1 and not id.startswith("take-")} == set()  # there, a failure repeats its batch
        assert (await shop.dead()) == dict.fromkeys((f"{style}-{ALWAYS}" for style in STYLES), 1)
        assert await shop.table() == Counter(one.customer for one in placed["table"] if runs[one.id])


async def test_a_worker_that_stops_has_committed_what_ran_and_the_next_goes_on_in_order(new_shop: Callable[..., Shop]) -> None:
    count = 80
    async with new_shop("plain", "isolated", pause=0.03) as shop:
        for style in shop.styles:
            await shop.order(style, orders(style, count))
        first = await shop.start()
        await shop.wait_until_billed(count // 2)
        assert await first.stop() == 0
        committed = await shop.raw.committed(shop.group)
        for style in shop.styles:
            ran = {partition: offsets[-1] + 1 for partition, offsets in by_partition(shop, style).items()}
            assert {place.partition: offset for place, offset in committed.items() if place.topic == shop.topic(style) and offset} == ran
        assert len(shop.runs()) < 2 * count, "it was stopped in the midst of its work"
        second = await shop.start()
        await shop.wait_until_committed()
        assert await second.stop() == 0
        for style in shop.styles:
            assert by_partition(shop, style) == {partition: list(range(count // shop.partitions)) for partition in range(shop.partitions)}
