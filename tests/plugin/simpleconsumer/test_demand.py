"""The demand: what is wanted, promised and given, without a broker."""

from __future__ import annotations

import asyncio

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.run import Run
from ackwise.plugin.receivers import DemandQueue, Held, Promise


def runs(number: int) -> list[Run]:
    origins = [Origin("orders", 0, offset, 0) for offset in range(number)]
    return [Run.of(Delivery(*origin, None, b"", (), origin)) for origin in origins]


def held(number: int) -> list[Held]:
    return [Held(run, None) for run in runs(number)]


async def test_who_asked_first_is_given_first_and_in_whole() -> None:
    demand = DemandQueue()
    one, other = demand.ask(2), demand.ask(2)
    brought, promises = held(3), await demand.offer(runs(3), 3, within=0)
    assert promises == [Promise(one, 2), Promise(other, 1)]
    assert demand.bring(promises, brought) == []
    assert (demand.leave(one), demand.leave(other)) == (brought[:2], brought[2:])


async def test_an_order_waits_for_all_that_is_promised_and_no_longer() -> None:
    demand = DemandQueue()
    order = demand.ask(5)
    first, second = await demand.offer(runs(1), 1, within=0), await demand.offer(runs(2), 2, within=0)
    demand.bring(first, held(1))
    assert not order.filled.done()
    demand.bring(second, [])
    assert order.filled.done()
    assert len(demand.leave(order)) == 1


async def test_a_batch_that_waits_ends_when_its_partition_stops() -> None:
    demand = DemandQueue()
    batch = runs(1)
    selling = asyncio.create_task(demand.offer(batch, 1, within=60))
    await asyncio.sleep(0)
    assert batch[0].call is not None
    batch[0].call.recall()
    assert await selling == []
    assert batch[0].call is None
    order = demand.ask(1)
    assert order.promised == 0


async def test_an_offer_that_is_cancelled_as_it_is_accepted_keeps_nobody_waiting() -> None:
    demand = DemandQueue()
    selling = asyncio.create_task(demand.offer(runs(1), 1, within=60))
    await asyncio.sleep(0)
    order = demand.ask(1)
    selling.cancel()
    await asyncio.wait({selling})
    assert (order.promised, order.wanted) == (0, 1)


async def test_a_closed_desk_gives_back_what_had_come_and_takes_no_orders() -> None:
    demand = DemandQueue()
    order = demand.ask(2)
    brought = held(1)
    demand.bring(await demand.offer(runs(1), 1, within=0), brought)
    assert demand.close() == brought
    assert (demand.leave(order), demand.ask(1).wanted) == ([], 0)
