"""When a copy moves on from a delay topic, and what the relay does with copies that can't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import Copy, retry_copy
from ackwise.plugin.delay import DelayRelay, Move, Wait, next_hop
from ackwise.plugin.settings import HostSettings
from ackwise.plugin.topics import TopicNames

LEVELS = DelayLevels("1s 10s 1m")


@pytest.mark.parametrize(
    ("now", "due", "level", "hop"),
    [
        pytest.param(0, 40_000, 3, Wait(40_000), id="D04-head-due-in-40s-waits-for-exactly-that"),
        pytest.param(9_999, 10_000, 2, Wait(10_000), id="a-millisecond-early-waits"),
        pytest.param(10_000, 10_000, 2, Move(0), id="due-now-moves"),
        pytest.param(90_000, 10_000, 2, Move(0), id="D11-overdue-moves-at-once"),
        pytest.param(60_000, 135_000, 3, Move(3), id="the-largest-level-that-fits"),
        pytest.param(60_000, 75_000, 3, Move(2), id="the-rest-hops-on-a-smaller-level"),
        pytest.param(60_000, 60_400, 3, Wait(60_400), id="less-than-the-smallest-level-is-waited-for"),
        pytest.param(0, 400, 1, Wait(400), id="due-before-its-level-ends"),
    ],
)
def test_a_copy_waits_out_its_level_and_hops_or_comes_back(now, due, level, hop):
    assert next_hop(now, due, 0, level, LEVELS) == hop


@given(delay=st.integers(0, 10**9), level=st.integers(1, 3))
def test_a_copy_is_never_early_and_always_arrives(delay, level):
    now, written, hops = 0, 0, 0
    while (hop := next_hop(now, delay, written, level, LEVELS)) != Move(0):
        hops += 1
        if isinstance(hop, Wait):
            assert hop.until > now
            now = hop.until
        else:
            level, written = hop.level, now
    assert now == delay
    assert hops < 10 + 2 * delay / 60_000 + 60


class Publisher:
    def __init__(self) -> None:
        self.sent: list[Copy] = []
        self.answer: Callable[[Copy], PublishUnavailable | PublishRefused | None] = lambda copy: None

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        answers = [self.answer(copy) for copy in copies]
        self.sent += [copy for copy, answer in zip(copies, answers, strict=True) if answer is None]
        return answers


class Relay(DelayRelay):
    """A relay at a desk: records are put into its hands, and time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.publisher = Publisher()
        settings = HostSettings(brokers="nowhere:1", group="billing")
        super().__init__(settings, TopicNames("billing", LEVELS), LEVELS, self.publisher, clock=lambda: self.now)

    def put(self, offset: int, *, due: int, headers: Any = None) -> None:
        partition = TopicPartition("billing.delay.10s", 2)
        delivery = Delivery("orders", 2, offset, 0, b"key", b"%d" % offset, (("trace", b"t"),), Origin("orders", 2, offset, 0))
        copy = retry_copy(delivery, topic=partition.topic, partition=2, group="billing", handler="bill", due=due, now_ms=0, reason="")
        copied = tuple(copy.headers if headers is None else headers)
        head = self._head(partition)
        head.watermark.hold(offset)
        head.records.append(ConsumerRecord(partition.topic, 2, offset, int(self.now * 1000), 0, copy.key, copy.value, 0, 0, 0, copied))

    async def move(self) -> tuple[list[tuple[str, int, bytes | None]], int | None]:
        """What was sent, and what may be committed."""
        head = self._head(TopicPartition("billing.delay.10s", 2))
        await self._move([head])
        return [(copy.topic, copy.partition, copy.value) for copy in self.publisher.sent], head.watermark.commit


async def test_what_is_due_moves_to_the_retry_topic_unchanged_and_what_is_not_stays():
    relay = Relay()
    relay.put(5, due=1_000_000)
    relay.put(6, due=1_005_000)
    assert await relay.move() == ([("billing.retry", 2, b"5")], 6)
    assert [copy.headers[0] for copy in relay.publisher.sent] == [("trace", b"t")]
    relay.now = 1_005.0
    assert await relay.move() == ([("billing.retry", 2, b"5"), ("billing.retry", 2, b"6")], 7)


@pytest.mark.parametrize("_", [pytest.param(None, id="D06")])
async def test_when_the_head_can_not_be_published_the_same_one_is_tried_again_and_none_is_skipped(_):
    relay = Relay()
    for offset in (5, 6, 7):
        relay.put(offset, due=0)
    relay.publisher.answer = lambda copy: PublishUnavailable("no broker") if copy.value == b"5" else None
    assert (await relay.move())[1] == 5
    relay.publisher.answer = lambda copy: None
    assert (await relay.move())[1] == 5, "it waits before it tries again"
    relay.now += 5
    sent, commit = await relay.move()
    assert ({value for _, _, value in sent}, commit) == ({b"5", b"6", b"7"}, 8)


async def test_a_record_that_is_not_ours_becomes_a_dead_letter_and_blocks_nobody():
    relay = Relay()
    relay.put(5, due=0, headers=[("trace", b"t")])
    relay.put(6, due=0)
    assert await relay.move() == ([("billing.dlq", 2, b"5"), ("billing.retry", 2, b"6")], 7)
    assert dict(relay.publisher.sent[0].headers)["ackwise-reason"] == b"foreign-copy"


async def test_a_copy_of_a_newer_version_is_held_with_an_alarm(caplog):
    relay = Relay()
    relay.put(5, due=0, headers=[("ackwise-version", b"9"), ("ackwise-due", b"0")])
    relay.put(6, due=0)
    assert await relay.move() == ([], 5)
    assert "upgrade this worker" in caplog.text


async def test_a_copy_that_is_refused_for_good_becomes_a_dead_letter_without_its_value():
    relay = Relay()
    relay.put(5, due=0)
    relay.publisher.answer = lambda copy: PublishRefused("too large") if copy.value is not None else None
    assert await relay.move() == ([("billing.dlq", 2, None)], 6)


async def test_what_was_fetched_before_the_assignment_was_announced_is_kept():
    relay = Relay()
    relay.put(5, due=0)
    relay._assign([TopicPartition("billing.delay.10s", 2)])
    assert (await relay.move())[1] == 6
    await asyncio.sleep(0)
