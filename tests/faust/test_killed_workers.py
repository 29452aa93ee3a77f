"""A `faust worker` is killed in the midst of its work, with agents of every kind: nothing is lost, and tables keep count."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faust.world import Shop, orders

from ackwise.middleware.message.keys import Identity, business_id
from ackwise.middleware.storage.claimstore import Outcome

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]  # starts Faust twice, and waits for a session to end

STYLES = ("plain", "take", "noack", "yields", "sinks", "concurrency", "isolated", "group_by", "through", "table")

COUNT, ALWAYS = 60, 45
FAIL_TIMES = {10: 1, 30: 2, ALWAYS: -1}

#: Orders of a style that are billed when the worker is killed, about.
KILLED_AT = 30


def handler(shop: Shop, style: str) -> str:
    """Who claims what the style bills: the agent, or its stream on the topic that it sends on to."""
    return {"group_by": f"group_by/group_by-{shop.topic(style)}-Order.customer-repartition", "through": f"through/{shop.group}.paid"}.get(
        style, style
    )


def unmarked(shop: Shop, database: Path) -> set[str]:
    """What was billed and is not known as done, read by SQLite alone."""
    connection = sqlite3.connect(database)
    try:
        done = {place for (place,) in connection.execute("SELECT place FROM ackwise_claims WHERE outcome = ?", (Outcome.OK,))}
    finally:
        connection.close()
    identities = {style: Identity("ackwise", shop.group, handler(shop, style)) for style in shop.styles}
    return {id for id in shop.runs() if identities[id.rpartition("-")[0]].of(business_id(id))[0].hex() not in done}


async def test_what_a_kill_interrupts_is_done_in_the_end_and_counted_in_the_table(new_shop: Callable[..., Shop], tmp_path: Path) -> None:
    database = tmp_path / "claims.db"
    async with new_shop(*STYLES, pause=0.03, store=f"sqlite:///{database}") as shop:
        for style in STYLES:
            await shop.order(style, orders(style, COUNT, FAIL_TIMES))
        worker = await shop.start()
        await shop.wait_until_billed(KILLED_AT * len(STYLES))
        await worker.kill()
        repeatable = unmarked(shop, database)
        worker = await shop.start()
        await shop.wait_until_committed()
        assert {style: await shop.lost(style) for style in STYLES} == {style: set() for style in STYLES}
        assert await worker.stop() == 0

        runs, table = shop.runs(), await shop.table()
        repeated = {id for id, times in runs.items() if times > 1 and not id.startswith("take-")}  # there, a failure repeats its batch
        assert repeated <= repeatable, "what the store knew as done ran again"
        assert len(repeatable) < len(STYLES) * COUNT / 3, "what is unavailable for long is marked slice by slice"
        billed, executions = Counter[str](), Counter[str]()
        for one in orders("table", COUNT):
            billed[one.customer] += runs[one.id] > 0
            executions[one.customer] += runs[one.id]
        assert billed <= Counter(table) <= executions
        assert (await shop.dead()).keys() == {f"{style}-{ALWAYS}" for style in STYLES}
