"""How many bytes a partition and a process hold: enough to go on, and not more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from tests.plugin.consumer.test_fetching import Desk, impatient, polling
from tests.plugin.lines import Line, deliveries, end, lane_of
from tests.plugin.logs import Logs, batch
from tests.waiting import turns, until

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.runs.run import size_of, sizes_of
from ackwise.plugin.consumer.backlog import BATCH_BYTES, LANE_BYTES, Budget
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["impatient"]

KIB, MIB = 2**10, 2**20


class Bytes:
    """A value that is this large, and takes no memory."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def lane_with(budget: Budget, line: Line, *sizes: int) -> Lane:
    lane = lane_of(line, budget=budget)
    for size in sizes:
        lane.offer(deliveries(lane.position, 1, Bytes(size)))
    return lane


async def test_a_lane_is_full_above_a_hundred_mebibytes() -> None:
    for size, full in ((LANE_BYTES - 1, False), (LANE_BYTES, False), (LANE_BYTES + 1, True)):
        assert lane_with(Budget(2**40), Line(), size).is_full() is full, size


async def test_a_lane_that_is_full_by_bytes_takes_more_once_they_are_done() -> None:
    budget = Budget(2**40)
    lane = lane_with(budget, Line(), LANE_BYTES, 1)
    assert lane.is_full()
    lane.start()
    await until(lambda: not lane.bytes)
    assert not lane.is_full()
    await end(lane)
    assert budget.used == 0


async def test_what_a_lane_still_has_at_its_end_is_given_back() -> None:
    budget = Budget(MIB)
    lane = lane_with(budget, Line(), MIB, MIB)
    assert budget.is_spent
    lane.cut()
    await lane.start()
    assert (budget.used, budget.is_spent) == (0, False)


async def test_where_the_process_holds_as_much_as_it_may_a_lane_with_nothing_in_hand_still_takes_a_batch() -> None:
    budget = Budget(MIB)
    other = lane_with(budget, Line(), 3 * MIB)
    lane = lane_with(budget, Line())
    assert (other.is_full(), lane.is_full()) == (True, False)
    assert lane.fitting(deliveries(lane.position, 3, Bytes(BATCH_BYTES // 2))) == 2
    assert lane.fitting(deliveries(lane.position, 1, Bytes(3 * MIB))) == 1
    assert other.fitting(deliveries(other.position, 1, b"1")) == 0
    lane.offer(deliveries(lane.position, 1, b"1"))
    assert lane.is_full()


def test_a_record_weighs_what_its_key_its_value_and_its_headers_do() -> None:
    origin = Origin("orders", 0, 0, 0)
    assert sizes_of([Delivery(*origin, b"key", b"value", (("name", b"12"), ("none", None)), origin)]) == [3 + 5 + 6 + 4]
    assert sizes_of([Delivery(*origin, None, None, (), origin)]) == [0]
    records = [Delivery(*origin, b"key", b"value", headers, origin) for headers in ((), (("name", b"12"),))]
    assert (size_of(records[:1]), size_of(records)) == (8, 8 + 8 + 6)
    assert size_of([Delivery(*origin, None, None, (), origin)]) == 0


def test_a_worker_that_could_hold_nearly_nothing_is_refused() -> None:
    for value in (MIB - 1, 0, True, "1GB", 1.5e9):
        with pytest.raises(ConfigurationError, match=r"max_buffered_bytes is .*; it is a whole number of bytes, at least 1048576"):
            HostSettings("nowhere:1", "billing", max_buffered_bytes=value)  # type: ignore[arg-type]


def partitions(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


async def test_a_process_that_is_full_fetches_one_batch_of_a_mebibyte_for_each_partition_and_always_one_message() -> None:
    """Five partitions of 300 KiB values and one of 3 MiB values, and handlers that do not come back for long."""
    line = Line(is_open=False)
    logs = Logs({partition: [batch(first, *[bytes(300 * KIB)] * 10) for first in (0, 10)] for partition in partitions(5)})
    large = TopicPartition("large", 0)
    logs.logs[large] = [batch(first, bytes(3 * MIB)) for first in range(4)]
    async with polling(logs, line=line, max_buffered_bytes=MIB) as desk:
        await until(lambda: all(desk.given.values()))
        await turns(200)
        lanes = {partition: lanes[0] for partition, lanes in desk.member.lanes.items()}
        assert {partition: lane.in_hand for partition, lane in lanes.items()} == {**dict.fromkeys(partitions(5), 3), large: 1}
        assert desk.member.budget.used == sum(lane.bytes for lane in lanes.values()) <= 5 * MIB + 3 * MIB + KIB
        line.gate.set()
        await until(lambda: all(lane.watermark.commit == (4 if lane is lanes[large] else 20) for lane in lanes.values()))
    assert desk.given == {**{partition: [*range(20)] for partition in partitions(5)}, large: [*range(4)]}
    assert desk.gaps() == []


async def test_a_lane_takes_no_more_than_its_bytes_of_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.lane.LANE_BYTES", 2 * MIB)
    line = Line(is_open=False)
    (partition,) = partitions(1)
    async with polling(Logs({partition: [batch(0, *[bytes(300 * KIB)] * 20)]}), line=line) as desk:
        await until(lambda: len(desk.given[partition]) == 6)
        asked = len(desk.logs.asked)
        await turns(200)
        asked_meanwhile = len(desk.logs.asked) - asked
        line.gate.set()
        await until(lambda: len(desk.given[partition]) == 20)
    assert asked_meanwhile <= 1, "what did not fit is not fetched over and over"
    assert desk.given[partition] == [*range(20)]


async def test_no_topic_is_called_missing_before_the_brokers_were_asked_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """A client that has just subscribed knows none, and a broker learns late of one that was just made."""
    desk = Desk(Logs({TopicPartition("orders", 0): []}))
    answers: list[asyncio.Future[bool]] = []

    def ask() -> asyncio.Future[bool]:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    def look(*unknown: str) -> None:
        desk.now += 5.0
        desk.member.missing_topics = lambda: unknown
        desk.polling._look_for_topics()

    desk.consumer._client = SimpleNamespace(force_metadata_update=ask)
    look("shop", "stock")
    look("shop", "stock")
    assert len(answers) == 1, "it is asked, and has no answer yet"
    answers[-1].set_result(False)
    look("shop", "stock")
    answers[-1].cancel()
    look("shop", "stock")
    answers[-1].set_exception(KafkaConnectionError())
    look("stock")
    answers[-1].set_result(True)
    assert "missing" not in caplog.text, "no broker has said so"
    look("stock", "tools")
    assert caplog.text.count("topics missing") == caplog.text.count("topics=stock") == 1
    answers[-1].set_result(True)
    look()
    await desk.close()
    assert caplog.text.count("topics missing") == 1
