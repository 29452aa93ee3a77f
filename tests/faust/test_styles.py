"""Each style of agent in Faust's manual loses messages as a `faust worker` does it, and loses none with `app.use(...)`.

One worker process holds an agent of each style. An order is lost when it is committed past and stands in no ledger and in no
dead-letter topic.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faust.world import DEADLINE, Placed, Shop, orders
from tests.servers import RawKafka
from tests.shared import SharedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(200)]  # the start of a worker of Faust takes seconds

#: Orders of a style: one fails once, and one each time.
COUNT, ONCE, ALWAYS = 24, 7, 15
FAIL_TIMES = {ONCE: 1, ALWAYS: -1}

BY_MESSAGE = ("plain", "events", "items", "noack", "yields", "sinks", "isolated", "filter", "table", "ask")
IN_BATCHES = ("take", "take_events", "take_with_timestamp")
STANDING = ("group_by", "through", "noack_take")
RULING = ("rules", "raises")  # written for Ackwise
ALL = (*BY_MESSAGE, *RULING, *IN_BATCHES, *STANDING, "concurrency", "undecodable")

#: No JSON, and no order.
UNDECODABLE = (b"\xff\x00", b'{"customer": "c0"}')

#: Orders of the agent with several actors: half of them fail once.
MANY, MANY_FAIL = 100, dict.fromkeys(range(20, 70), 1)

ASKED = orders("ask", COUNT, FAIL_TIMES)


def failing(style: str) -> set[str]:
    return {f"{style}-{ONCE}", f"{style}-{ALWAYS}"}


@dataclass(frozen=True)
class Fate:
    """What became of the orders of a worker process; `lost` by style."""

    lost: Mapping[str, set[str]]
    runs: Counter[str]
    tries: Counter[str]
    dead: Counter[str]
    answers: set[str]
    invoices: set[str]
    behind: Mapping[str, object]
    code: int | None

    @classmethod
    async def of(cls, shop: Shop) -> Fate:
        lost = {style: await shop.lost(style) for style in shop.styles}
        code = shop.workers[-1].process.returncode
        return cls(lost, shop.runs(), shop.tries(), await shop.dead(), shop.answers(), await shop.invoices(), await shop.behind(), code)


async def place_orders(shop: Shop, fail_times: Mapping[int, int]) -> None:
    """Order of every agent but `ask`, which the worker asks itself."""
    for style in shop.styles:
        if style == "undecodable":
            await shop.order(style, [*orders(style, COUNT)[:10], *UNDECODABLE, *orders(style, COUNT)[10:]])
        elif style == "concurrency":
            await shop.order(style, orders(style, MANY, MANY_FAIL))
        elif style != "ask":
            await shop.order(style, orders(style, COUNT, fail_times))
    if "filter" in shop.styles:
        await shop.order("filter", [Placed("unwanted", "c0")])


async def run_until_committed(shop: Shop) -> Fate:
    """A worker that runs until everything is committed.

    It is killed then: Faust waits forever for the last answer to what a worker has asked itself, with Ackwise or not.
    """
    async with shop:
        await place_orders(shop, FAIL_TIMES)
        await shop.start()
        await shop.wait_until(shop.has_asked, "the last question")
        await shop.wait_until_committed()
        return await Fate.of(shop)


async def run_until_still_and_again(shop: Shop) -> tuple[Fate, Fate]:
    """A worker that runs until nothing moves, and one after it; one order fails once."""
    async with shop:
        await place_orders(shop, {ONCE: 1})
        worker = await shop.start()
        await shop.wait_until_still()
        still = await Fate.of(shop)
        await worker.kill()
        await shop.start()
        await shop.wait_until_committed()
        return still, await Fate.of(shop)


async def run_until_it_gives_up(shop: Shop) -> Fate:
    """A worker that ends itself; half of the orders fail once. Now and then Faust waits for its own streams then, forever."""
    async with shop:
        await place_orders(shop, {})
        worker = await shop.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.process.wait(), DEADLINE)
        await worker.kill()
        assert "Max restarts exceeded" in worker.log.read_text(errors="replace")
        return await Fate.of(shop)


@asynccontextmanager
async def raw(kafka: SharedKafka) -> AsyncIterator[RawKafka]:
    made = RawKafka(kafka.bootstrap)
    await made.start()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def reliable(kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory) -> Fate:
    async def run() -> Fate:
        async with raw(kafka) as here:
            return await run_until_committed(Shop(here, tmp_path_factory.mktemp("reliable"), "reliable", ALL, ackwise=True, asked=ASKED))

    return asyncio.run(run())


@pytest.mark.nightly
async def test_stock_agents_lose_each_order_that_fails_or_stand_still_before_it(kafka: SharedKafka, tmp_path: Path) -> None:
    """What Faust does without Ackwise."""
    async with raw(kafka) as here:

        def shop(name: str, *styles: str) -> Shop:
            return Shop(here, tmp_path / name, name, styles, ackwise=False, asked=ASKED)

        committed, (still, restarted), ended = await asyncio.gather(
            run_until_committed(shop("stock", *BY_MESSAGE, *IN_BATCHES, "undecodable")),
            run_until_still_and_again(shop("standing", *STANDING)),
            run_until_it_gives_up(shop("ending", "concurrency")),
        )
    assert {style: committed.lost[style] for style in BY_MESSAGE} == {style: failing(style) for style in BY_MESSAGE}
    assert all(committed.lost[style] > failing(style) for style in IN_BATCHES), "and its neighbours in a batch"
    assert committed.answers == {f"billed {one.id}" for one in ASKED} - {f"billed {id}" for id in failing("ask")}
    assert committed.lost["undecodable"] == {repr(value) for value in UNDECODABLE}
    assert all(f"{style}-{ONCE}" in restarted.lost[style] for style in ("group_by", "through")), "they send on"
    undone = {f"noack_take-{number}" for number in range(COUNT)} - still.runs.keys()
    assert undone > {f"noack_take-{ONCE}"}, "a restart brings back those that were not committed past, which is a matter of luck"
    assert ended.code in (1, -signal.SIGKILL)
    assert ended.lost["concurrency"]
    assert ended.behind, "the rest waits for somebody who starts the worker again"


def test_agents_of_every_style_lose_nothing(reliable: Fate) -> None:
    assert {style: lost for style, lost in reliable.lost.items() if lost} == {}
    assert reliable.lost.keys() == set(ALL)


def test_agents_bill_each_order_once_and_make_a_dead_letter_of_what_always_fails(reliable: Fate) -> None:
    for style in (*BY_MESSAGE, *RULING, *STANDING):
        ordered = {f"{style}-{number}" for number in range(COUNT)}
        assert {id: times for id, times in reliable.runs.items() if id in ordered} == dict.fromkeys(ordered - {f"{style}-{ALWAYS}"}, 1)
        assert {id: times for id, times in reliable.dead.items() if id in ordered} == {f"{style}-{ALWAYS}": 1}


def test_an_order_that_never_fails_is_no_dead_letter_for_its_neighbours(reliable: Fate) -> None:
    for style in (*IN_BATCHES, "concurrency"):
        assert {id for id in reliable.dead if id.startswith(f"{style}-")} <= {f"{style}-{ALWAYS}"}


def test_an_agent_that_rejects_an_order_is_not_asked_again(reliable: Fate) -> None:
    assert reliable.tries[f"raises-{ALWAYS}"] == 1
    assert reliable.tries[f"rules-{ALWAYS}"] == 4


def test_agents_answer_also_where_the_order_failed_at_first(reliable: Fate) -> None:
    assert reliable.answers == {f"billed {one.id}" for one in ASKED} - {f"billed ask-{ALWAYS}"}


def test_what_an_agent_yields_reaches_its_sinks(reliable: Fate) -> None:
    assert reliable.invoices == {id for id in reliable.runs if id.startswith("yields-")}


def test_what_cannot_be_decoded_is_a_dead_letter_and_stops_nothing(reliable: Fate) -> None:
    assert {id: times for id, times in reliable.dead.items() if id in map(repr, UNDECODABLE)} == {repr(value): 1 for value in UNDECODABLE}
    assert {id for id in reliable.runs if id.startswith("undecodable-")} == {f"undecodable-{number}" for number in range(COUNT)}


def test_a_worker_with_concurrency_survives_fifty_failures(reliable: Fate) -> None:
    assert {id: times for id, times in reliable.runs.items() if id.startswith("concurrency-")} == {
        f"concurrency-{n}": 1 for n in range(MANY)
    }


def test_an_order_that_a_filter_turns_away_is_done(reliable: Fate) -> None:
    assert reliable.runs["unwanted"] == 1
