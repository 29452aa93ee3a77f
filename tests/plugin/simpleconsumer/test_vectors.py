"""RocketMQ's POP and receipts, row by row (V of `docs/semantics.md`). What its push consumer does with what it popped is done by hand."""

from __future__ import annotations

import asyncio

import pytest
from tests.plugin.simpleconsumer.conftest import TOPIC, Store, World, nothing_comes, receive
from tests.waiting import until

from ackwise import Answer, Batch, ConsumeLater, EventCode
from ackwise.errors import ConfigurationError, InvalidReceipt, InvalidRuling
from ackwise.middleware.claims.leases import Leases
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.run import Run
from ackwise.stores.memory import MemoryStore
from ackwise.testing import VirtualClock


async def test_V01_all_are_acknowledged_and_nothing_is_outstanding(world: World) -> None:
    """V01: pop of 3, success."""
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        assert await consumer.ack_all(await receive(consumer, 3)) == [Answer.ACKED] * 3
        await until(lambda: world.committed() == 3)
        world.clock.advance(100)
        assert await nothing_comes(consumer)


async def test_V02_what_is_behind_the_ack_index_comes_again_after_10_s(world: World) -> None:
    """V02: pop of 3, ack index 1: the third is invisible for 10 s."""
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        assert await consumer.ack_all(received[:2]) == [Answer.ACKED] * 2
        await consumer.later(received[2])
        await until(lambda: world.committed() == 3)
    assert world.levels() == [3]
    assert [record.value for record in world.kafka.records("billing.delay", 1)] == [b"c"]


async def test_V03_an_ack_index_below_minus_1_is_refused(world: World) -> None:
    """V03: RocketMQ fails with an index error; here it is refused when it is set. All three stay outstanding."""
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        with pytest.raises(InvalidRuling):
            Batch(received).ack_index = -2
        assert await nothing_comes(consumer)
        assert await consumer.ack_all(received) == [Answer.ACKED] * 3


async def test_V04_later_waits_as_long_as_the_attempt_says(world: World) -> None:
    """V04: later with r = 0, 1, 15 is 10 s, 30 s, 7200 s."""
    async with world.consumer() as consumer:
        await until(lambda: world.committed() is not None)
        world.kafka.produce(TOPIC, b"m")
        for reconsume_times in (0, 1, 15):
            if reconsume_times:
                world.sent_back(reconsume_times)
            (received,) = await receive(consumer, 1)
            assert received.reconsume_times == reconsume_times
            await consumer.later(received)
    assert world.levels() == [3, 4, 18]
    assert [ConsumeLater().levels.delay(level) for level in (3, 4, 18)] == [10.0, 30.0, 7200.0]


async def test_V05_an_explicit_level_is_that_of_the_table(world: World) -> None:
    """V05: RocketMQ's POP takes 120 s for level 3; here there is one table, and it is 10 s."""
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        await consumer.later((await receive(consumer, 1))[0], delay_level=3)
    assert world.levels() == [3]
    assert [record.value for record in world.kafka.records("billing.delay", 1)] == [b"a"]


async def test_V06_a_negative_level_is_a_dead_letter(world: World) -> None:
    """V06: RocketMQ fails with an index error and nacks nothing."""
    world.kafka.produce(TOPIC, b"a", b"b")
    async with world.consumer() as consumer:
        for received in await receive(consumer, 2):
            await consumer.later(received, delay_level=-1)
        await until(lambda: world.committed() == 2)
    assert world.reasons() == [b"negative-delay-level"] * 2


async def test_V07_V08_what_came_as_often_as_it_may_is_a_dead_letter_whatever_its_age(world: World) -> None:
    """V07, V08: later with r = 16; RocketMQ drops what is older than four hours, and delivers what is younger forever."""
    async with world.consumer() as consumer:
        await until(lambda: world.committed() is not None)
        for letters, age in enumerate((5 * 3600, 4 * 3600 - 5, 90), start=1):
            world.sent_back(16)
            (received,) = await receive(consumer, 1, invisible="6h")
            world.clock.advance(age)
            await consumer.later(received)
            await until(lambda letters=letters: len(world.dead_letters) == letters)  # type: ignore[misc]
    assert world.reasons() == [b"max-reconsume-times"] * 3
    assert world.levels() == []


async def test_V09_without_any_retry_the_first_later_is_a_dead_letter(world: World) -> None:
    """V09: limit 0; RocketMQ fails with an index error."""
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer(ConsumeLater(0)) as consumer:
        await consumer.later((await receive(consumer, 1))[0])
        await until(lambda: world.committed() == 1)
    assert world.reasons() == [b"max-reconsume-times"]


async def test_V10_a_receipt_does_not_count_once_its_time_is_over(world: World) -> None:
    """V10: the broker alone would say OK and deliver again; its proxy says invalid, as here."""
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (received,) = await receive(consumer, 1)
        world.clock.advance(10)
        assert await consumer.ack(received) is Answer.INVALID_RECEIPT
        assert (await receive(consumer, 1))[0].reconsume_times == 1


async def test_V11_three_expired_receipts_are_three_answers_and_no_exchange(world: World) -> None:
    """V11: an error for each, no call of the broker."""
    world.kafka.produce(TOPIC, b"a", b"b", b"c")
    async with world.consumer() as consumer:
        received = await receive(consumer, 3)
        world.clock.advance(10)
        assert await consumer.ack_all(received) == [Answer.INVALID_RECEIPT] * 3
        await until(lambda: world.count(EventCode.SENT_BACK) == 3)
    assert [exchange.completes for exchange in world.store.exchanges if exchange.completes] == []


async def test_V12_changing_the_time_makes_a_new_receipt_and_the_old_one_stops_counting(world: World) -> None:
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (older,) = await receive(consumer, 1)
        world.clock.advance(9)
        newer = await consumer.change_invisible(older, 20)
        assert (newer.value, newer.offset, newer.fencing_token) == (older.value, older.offset, older.fencing_token)
        world.clock.advance(19)
        assert await consumer.ack(older) is Answer.INVALID_RECEIPT
        with pytest.raises(InvalidReceipt, match="is not valid any more"):
            await consumer.change_invisible(older, 10)
        assert await consumer.ack(newer) is Answer.ACKED
    assert world.count(EventCode.CLAIMED) == 1


async def test_V13_invisible_times_have_bounds_that_may_be_set(world: World) -> None:
    """V13: RocketMQ takes 10 s to 12 h."""
    async with world.consumer() as consumer:
        for refused in (9, 43200.001):
            with pytest.raises(ConfigurationError, match="it must be from 10s to 12h"):
                await consumer.receive(1, invisible=refused)
        for taken in (10, "12h"):
            assert await consumer.receive(1, invisible=taken, wait=0.01) == []
    async with world.consumer(min_invisible="1s", max_invisible="1m") as consumer:
        assert await consumer.receive(1, invisible=1, wait=0.01) == []
        with pytest.raises(ConfigurationError, match="it must be from 1s to 1m"):
            await consumer.receive(1, invisible="2m")


async def test_V15_an_older_receipt_is_ignored_and_the_message_stays_away(world: World) -> None:
    """V15: an acknowledgement with a pop time 10 ms before is ignored, and the queue stays blocked."""
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        (older,) = await receive(consumer, 1)
        await consumer.change_invisible(older, 30)
        assert await consumer.ack(older) is Answer.INVALID_RECEIPT
        assert await nothing_comes(consumer)
        assert world.committed() == 0


async def test_V17_each_message_counts_its_own_deliveries(world: World) -> None:
    """V17: 1, 2, 3 twice, then 2, 3, then 3, 4: counts 0; 1 each; 2 each; 3 and 0."""
    world.kafka.produce(TOPIC, b"1", b"2", b"3")
    async with world.consumer() as consumer:
        seen: list[list[tuple[bytes, int]]] = []
        for _ in range(3):
            received = await receive(consumer, 3 - max(0, len(seen) - 1))
            seen.append([(each.value, each.reconsume_times) for each in received])
            if len(seen) > 1:
                assert await consumer.ack(received[0]) is Answer.ACKED
            world.clock.advance(10)
        world.kafka.produce(TOPIC, b"4")
        seen.append([(each.value, each.reconsume_times) for each in await receive(consumer, 2)])
    assert seen == [[(b"1", 0), (b"2", 0), (b"3", 0)], [(b"1", 1), (b"2", 1), (b"3", 1)], [(b"2", 2), (b"3", 2)], [(b"3", 3), (b"4", 0)]]


async def test_V18_a_receive_that_never_returned_is_asked_again_and_nothing_is_counted(world: World) -> None:
    """V18: the same attempt id may pop again. Here a call that was cancelled gives back what had come."""
    async with world.consumer() as consumer:
        asking = asyncio.create_task(consumer.receive(2, invisible=10, wait=30))
        await until(lambda: world.committed() is not None)
        world.store.answers.clear()
        world.kafka.produce(TOPIC, b"a", b"b")
        await until(lambda: any(exchange.claims for exchange in world.store.exchanges))
        asking.cancel()
        await asyncio.wait({asking})
        world.store.answers.set()
        assert [each.reconsume_times for each in await receive(consumer, 2)] == [0, 0]
    assert world.levels() == []


async def test_V19_a_renewal_that_fails_counts_until_one_succeeds_and_the_third_in_a_row_loses_the_claim() -> None:
    """V19: error, error, OK, then errors: dropped after three in a row, six calls."""
    clock, calls, answers = VirtualClock(0.0), 0, iter([False, False, True, False, False, False])
    store = Store(MemoryStore(clock=clock))
    leases = Leases(store, lease=30.0, clock=clock)
    origin = Origin(TOPIC, 0, 0, 0)
    run = Run.of(Delivery(*origin, None, b"", (), origin))
    run.claims.ids, run.claims.day, run.claims.tokens = [b"k" * 16], 0, [7]
    await leases.claim([run.column()])
    leases.add([run], leases.now())
    for is_answered in answers:
        assert not run.claim_lost
        clock.advance(10)
        store.is_away = not is_answered
        await leases.beat()
        calls += 1
    assert (calls, run.claim_lost, len(leases)) == (6, True, 0)


async def test_V20_what_is_held_too_long_is_sent_back_once(world: World) -> None:
    """V20: RocketMQ stops renewing after 3 h, and nacks once, at r = 1 with 30 s. Here it is the time that the receiver asked for."""
    async with world.consumer(max_invisible="3h") as consumer:
        await until(lambda: world.committed() is not None)
        world.sent_back(1)
        (received,) = await receive(consumer, 1, invisible="3h")
        with pytest.raises(ConfigurationError):
            await consumer.change_invisible(received, "3h1s")
        world.clock.advance(3 * 3600 - 1)
        assert await nothing_comes(consumer)
        world.clock.advance(1)
        assert [(each.value, each.reconsume_times) for each in await receive(consumer, 1)] == [(b"m", 2)]
    assert len(world.levels()) == 1


async def test_V21_what_a_holder_had_that_goes_is_there_for_others_at_once(world: World) -> None:
    """V21: nack with 1 s when the client goes offline. Here it is given back when the consumer is closed, and no attempt is counted."""
    world.kafka.produce(TOPIC, b"a")
    async with world.consumer() as consumer:
        await receive(consumer, 1)
    async with world.consumer() as another:
        assert [(each.value, each.reconsume_times) for each in await receive(another, 1)] == [(b"a", 0)]
    assert world.levels() == []


async def test_V22_what_came_more_often_than_it_may_is_a_dead_letter_before_anybody_receives_it(world: World) -> None:
    """V22: with 17 attempts at most, r = 16 is delivered, r = 17 is a dead letter and acknowledged."""
    async with world.consumer() as consumer:
        await until(lambda: world.committed() is not None)
        world.sent_back(16)
        (received,) = await receive(consumer, 1)
        assert (received.reconsume_times, await consumer.ack(received)) == (16, Answer.ACKED)
        assert world.reasons() == []
        world.sent_back(17)
        while not world.dead_letters:
            assert await consumer.receive(1, invisible=10, wait=0.1) == []
    assert world.reasons() == [b"max-reconsume-times"]
