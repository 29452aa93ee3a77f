"""Receivers in trouble: killed processes, rebalances, unavailable stores and brokers. Nothing is lost or held twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.plugin.simpleconsumer.conftest import GROUP, TOPIC, Store, World, nothing_comes, receive
from tests.waiting import PATIENCE, until

from ackwise import Answer, Dedup, EventCode, Received, SimpleConsumer
from ackwise.middleware.storage.claimstore import ColumnExchange

#: Seconds: a lease of `Dedup`.
LEASE = 30.0


async def kill(world: World, consumer: SimpleConsumer[bytes], store: Store, client_id: str) -> None:
    """End `consumer` as if its process were killed: it reaches neither store nor broker any more, and its session is over."""
    store.is_away = True
    world.kafka.watch = _refusing(client_id)
    await world.kafka.disconnect(client_id)
    world.kafka.expire(client_id)
    assert consumer._hosting is not None
    consumer._hosting.cancel()
    await asyncio.wait({consumer._hosting})


def _refusing(dead: str) -> Any:
    async def watch(api: str, topics: frozenset[str], client_id: str, when: str) -> None:
        if f"{client_id}-".startswith(f"{dead}-"):
            raise ConnectionResetError

    return watch


@pytest.mark.slow  # waits for a consumer that dies and for its heir
async def test_what_a_killed_process_had_comes_again_after_its_lease_and_what_it_acknowledged_does_not(world: World) -> None:
    world.kafka.produce(TOPIC, b"a", b"b", b"c", b"d")
    mortal = Store(world.claims)
    doomed = world.consumer(store=mortal, client_id="doomed", commit_interval=3600)
    await doomed.__aenter__()
    received = await receive(doomed, 3)
    assert await doomed.ack(received[1]) is Answer.ACKED
    await kill(world, doomed, mortal, "doomed")
    async with world.consumer(client_id="heir") as heir:
        assert [each.value for each in await receive(heir, 1, invisible="1h")] == [b"d"]
        assert await nothing_comes(heir)
        world.clock.advance(LEASE + 1)
        again = await receive(heir, 2)
        assert [(each.value, each.reconsume_times) for each in again] == [(b"a", 0), (b"c", 0)]
        assert all(now.fencing_token > before.fencing_token for now, before in zip(again, received[::2], strict=True))  # type: ignore[operator]
        await heir.ack_all(again)
    claimed = [event for event in world.events if event.code is EventCode.CLAIMED]
    assert [event.took_unreleased for event in claimed] == [False, False, False, False, True, True]


@pytest.fixture
def wide(world: World) -> World:
    """A world with a topic of two partitions, each with one message."""
    world.kafka.create_topic("wide", 2)
    for partition in range(2):
        world.kafka.produce("wide", f"m{partition}".encode(), partition=partition)
    return world


@asynccontextmanager
async def moving(wide: World, *things: Any, **options: Any) -> AsyncIterator[tuple[SimpleConsumer[bytes], SimpleConsumer[bytes], Any]]:
    """One that has received both messages, and another that has come since: the partitions have moved."""
    async with wide.consumer(*things, topics="wide", client_id="one", **options) as one:
        received = await receive(one, 2, invisible=20)
        async with wide.consumer(*things, topics="wide", client_id="other") as other:
            await until(lambda: wide.count(EventCode.REVOKED) >= 4 and wide.count(EventCode.ASSIGNED) >= 8)
            yield one, other, received


async def receive_at_any(*consumers: SimpleConsumer[bytes], number: int = 2) -> list[Received[bytes]]:
    again: list[Received[bytes]] = []
    async with asyncio.timeout(PATIENCE):
        while len(again) < number:
            for consumer in consumers:
                again += await consumer.receive(number, invisible=10, wait=0.2)
    return sorted(again, key=lambda each: each.value)


async def are_all_committed(wide: World) -> None:
    await until(lambda: all(wide.kafka.committed(GROUP)["wide", partition].offset == 1 for partition in range(2)))
    assert [wide.count(code) for code in (EventCode.CLAIMED, EventCode.SUCCEEDED, EventCode.DUP_SUPPRESSED)] == [2, 2, 2]


@pytest.mark.slow  # waits for partitions to move while receipts are open
async def test_a_rebalance_leaves_what_is_received_with_its_receiver_and_does_not_wait_for_it(wide: World) -> None:
    async with moving(wide, revoke_timeout=30) as (one, other, received):
        assert await nothing_comes(one)
        assert await nothing_comes(other)
        assert await one.ack_all(received) == [Answer.ACKED] * 2
        assert await nothing_comes(one)
        assert await nothing_comes(other)
        await are_all_committed(wide)


@pytest.mark.slow  # waits for partitions to move and to come again from either consumer
async def test_what_expires_after_its_partition_has_moved_comes_again_and_is_not_charged(wide: World) -> None:
    async with moving(wide) as (one, other, received):
        wide.clock.advance(20)
        assert await one.ack_all(received) == [Answer.INVALID_RECEIPT] * 2
        async with asyncio.timeout(5):  # and not with the next renewal
            await until(lambda: sum(len(exchange.releases) for exchange in wide.store.exchanges) == 2)
        again = await receive_at_any(one, other)
    assert [(each.value, each.reconsume_times) for each in again] == [(b"m0", 0), (b"m1", 0)]
    assert wide.kafka.records("billing.retry") == []


@pytest.mark.slow  # waits for partitions to move, and twice that nothing comes
async def test_what_is_acknowledged_without_a_store_after_its_partition_has_moved_is_told_to_it_later(wide: World) -> None:
    store = Store(wide.claims)
    async with moving(wide, store=store) as (one, other, received):
        store.is_away = True
        assert await one.ack_all(received) == [Answer.UNSETTLED] * 2
        store.is_away = False
        assert one._receivers is not None
        await one._receivers._release()
        assert await nothing_comes(one)
        assert await nothing_comes(other)
        await are_all_committed(wide)


@pytest.mark.slow  # waits for partitions to move, and that nothing comes
async def test_a_receipt_may_be_renewed_after_its_partition_has_moved(wide: World) -> None:
    async with moving(wide) as (one, other, received):
        renewed = [await one.change_invisible(each, 60) for each in received]
        wide.clock.advance(25)
        assert await nothing_comes(other)
        assert await one.ack_all(renewed) == [Answer.ACKED] * 2


@pytest.mark.slow  # waits for partitions to move and to come again from either consumer
async def test_without_a_claim_nothing_of_a_partition_that_has_moved_is_acknowledged(wide: World) -> None:
    async with moving(wide, Dedup(wide.store, key=lambda message: None)) as (one, other, received):
        assert await one.ack_all(received) == [Answer.INVALID_RECEIPT] * 2
        assert [each.value for each in await receive_at_any(one, other)] == [b"m0", b"m1"]


@pytest.mark.slow  # waits for partitions that move amid a claim
async def test_what_is_claimed_while_its_partition_moves_is_given_to_nobody_and_comes_to_the_next_owner(wide: World) -> None:
    async with wide.consumer(topics="wide", client_id="one") as one:
        await until(lambda: len(wide.kafka.committed(GROUP)) == 4)
        wide.store.answers.clear()
        asking = asyncio.create_task(one.receive(2, invisible=10, wait=20))
        await until(lambda: sum(len(exchange.claims) for exchange in wide.store.exchanges) == 2)
        async with wide.consumer(topics="wide", client_id="other", store=Store(wide.claims)) as other:
            await until(lambda: _stopping(one) >= 2)
            wide.store.answers.set()
            again: list[Received[bytes]] = []
            async with asyncio.timeout(PATIENCE):
                while len(again) < 2:
                    again += await other.receive(2, invisible=10, wait=0.2)
                    if asking.done():
                        again += asking.result()
                        asking = asyncio.create_task(one.receive(2, invisible=10, wait=20))
            assert {(each.value, each.reconsume_times) for each in again} == {(b"m0", 0), (b"m1", 0)}
        asking.cancel()
        await asyncio.wait({asking})
    codes = [event.code for event in wide.events if event.topic == "wide"]
    assert codes.count(EventCode.CLAIMED) == 2
    assert codes[: codes.index(EventCode.CLAIMED)].count(EventCode.REVOKED) >= 2


def _stopping(consumer: SimpleConsumer[bytes]) -> int:
    """How many of its lanes take nothing new."""
    assert consumer._receivers is not None
    return sum(lane.is_stopping for lanes in consumer._receivers._member.lanes.values() for lane in lanes)


async def test_what_had_come_for_a_receiver_when_the_consumer_is_closed_is_given_back_at_once(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        await until(lambda: world.count(EventCode.RECEIVED_RANGE) == 1)
        world.store.answers.clear()
        asking = asyncio.create_task(consumer.receive(1, invisible=10, wait=20))
        await until(lambda: any(exchange.claims for exchange in world.store.exchanges))
        asyncio.get_running_loop().call_later(0.1, world.store.answers.set)
    assert await asking == []
    async with world.consumer() as another:
        assert [each.reconsume_times for each in await receive(another, 1)] == [0]
    assert world.count(EventCode.CLAIMED) == 1


async def test_while_the_store_is_away_nothing_is_received_and_then_it_is(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        await until(lambda: world.committed() is not None)
        world.store.is_away = True
        assert await nothing_comes(consumer)
        world.store.is_away = False
        assert [each.reconsume_times for each in await receive(consumer, 1)] == [0]


async def test_an_acknowledgement_while_the_store_is_away_is_settled_once_it_answers(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        world.store.is_away = True
        assert await consumer.ack(received) is Answer.UNSETTLED
        assert world.committed() == 0
        world.store.is_away = False
        await until(lambda: world.committed() == 1)
    assert [world.count(code) for code in (EventCode.CLAIMED, EventCode.SUCCEEDED)] == [1, 1]


async def test_a_claim_that_was_lost_while_a_receiver_worked_is_taken_again_and_the_message_is_not_run_twice(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1, invisible="1h")
        assert consumer._receivers is not None
        leases = consumer._receivers._worker.leases
        assert leases is not None
        (run,) = leases._held
        stolen = run.column()._replace(tokens=[99])
        world.clock.advance(LEASE + 1)
        await leases.claim([stolen])  # as another worker would
        assert await consumer.ack(received) is Answer.UNSETTLED
        leases.release_later(stolen)
        await leases.flush()
        await until(lambda: world.committed() == 1)
    assert [world.count(code) for code in (EventCode.CLAIMED, EventCode.CLAIM_LOST, EventCode.SUCCEEDED)] == [1, 1, 1]


async def test_what_expires_while_the_brokers_are_away_comes_again_once_they_are_back(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        await world.kafka.stop()
        world.clock.advance(10)
        assert await consumer.ack(received) is Answer.INVALID_RECEIPT
        await world.kafka.start()
        async with asyncio.timeout(PATIENCE):
            again: list[Received[bytes]] = []
            while not again:
                again = await consumer.receive(1, invisible=10, wait=1)
        assert [each.reconsume_times for each in again] == [1]


async def test_what_is_being_acknowledged_when_the_consumer_is_closed_is_settled(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        acking = asyncio.create_task(consumer.ack(received))
        await asyncio.sleep(0)
    assert await acking is Answer.ACKED
    assert world.committed() == 1


async def test_an_acknowledgement_that_is_cancelled_is_settled_all_the_same(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        acking = asyncio.create_task(consumer.ack(received))
        await asyncio.sleep(0)
        acking.cancel()
        await until(lambda: world.committed() == 1)
        assert acking.cancelled()


@pytest.mark.slow  # waits for one consumer after another, and twice that nothing comes
async def test_a_message_that_processes_died_of_is_received_while_nobody_has_another_one(world: World) -> None:
    world.kafka.produce(TOPIC, b"killer", b"innocent")
    async with world.consumer(client_id="c") as consumer:
        _, innocent = await receive(consumer, 2)
        assert consumer._receivers is not None
        leases = consumer._receivers._worker.leases
        assert leases is not None
        assert await consumer.ack(innocent) is Answer.ACKED
        (run,) = leases._held
        column = run.column()
    for token in (1, 2, 3):  # workers that claim it and die
        world.clock.advance(LEASE + 1)
        await world.claims.exchange_columns(_claim(column._replace(tokens=[token])))
    world.clock.advance(LEASE + 1)
    world.kafka.produce(TOPIC, b"another")
    async with world.consumer(client_id="d") as consumer:
        await until(lambda: any(event.code is EventCode.RECEIVED_RANGE and event.range_end == 3 for event in world.events))
        (another,) = await consumer.receive(2, invisible=10)
        assert another.value == b"another"
        assert await nothing_comes(consumer)
        assert await consumer.ack(another) is Answer.ACKED
        (killer,) = await receive(consumer, 1)
        assert killer.value == b"killer"
        world.kafka.produce(TOPIC, b"late")
        assert await nothing_comes(consumer)
        assert await consumer.ack(killer) is Answer.ACKED
        assert [each.value for each in await receive(consumer, 1)] == [b"late"]


def _claim(column: Any) -> Any:
    return ColumnExchange([column], (), (), (), LEASE, 86400.0)
