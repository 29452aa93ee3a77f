"""What Faust's thread makes of a fetch that raises: nothing that was drained is lost, and who raises is left alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaConnectionError, RecordTooLargeError, RequestTimedOutError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from tests.fakes import Sink
from tests.plugin.logs import Logs, batch, buffers, corrupt, endless, reading
from tests.waiting import PATIENCE

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.message import TopicPartition as Place
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.agent import Agent
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.faust.fausthost import FaustHost
from ackwise.plugin.faust.fetchthread import ReliableThread
from ackwise.plugin.kafka.brokeroffsets import Asked, Standing
from ackwise.plugin.kafka.fetchbuffer import Taking
from ackwise.plugin.settings.hostsettings import HostSettings

BAD, GOOD, OTHER = (TopicPartition(topic, 0) for topic in ("bad", "good", "other"))
CHANGES = TopicPartition("shop-changelog", 0)

VALUES = [b"%d" % number for number in range(10)]


class Line:
    """A pipeline that settles everything."""

    agent = Agent("bill", ("orders",), "batch", lambda batch: asyncio.sleep(0), lambda value: value, max_batch=500)

    async def __call__(self, entries: Iterable[Any], assignment: Any) -> None:
        for entry in entries:
            entry.stage = Stage.SETTLED


class Desk:
    """A worker of Faust that fetches from logs; `given` are the offsets that its lanes took, `now` is the time."""

    def __init__(self, logs: Logs, *, by_faust: Collection[TopicPartition] = ()) -> None:
        self.now = 100.0
        self.logs = logs
        self.consumer: Any = reading(logs)
        self.sink = Sink()
        settings = HostSettings(brokers="nowhere:1", group="shop")
        self.member = Member(settings, [], Parts(ConsumeLater(), DeadLetter(), sink=self.sink))
        self.host = cast(Any, FaustHost.__new__(FaustHost))
        self.host.app = SimpleNamespace(topics=SimpleNamespace(others=lambda partition: partition in by_faust))
        self.host._member = self.member
        self.host._opening = Opening(self.member, AiokafkaClient(self.consumer, "shop"))
        self.thread = cast(Any, ReliableThread.__new__(ReliableThread))
        self.thread.app = SimpleNamespace(ackwise=self.host, conf=SimpleNamespace(id="shop"))
        self.read: dict[TopicPartition, int] = {}  #: the last that Faust has passed on
        self.thread.consumer = SimpleNamespace(flow_active=True, _read_offset=self.read)
        self.thread.clock = lambda: self.now
        self.given: dict[TopicPartition, list[int]] = {partition: [] for partition in logs.logs}
        self.faust: list[int] = []
        for partition in logs.logs:
            self.consumer.seek(partition, 0)
            if partition not in by_faust:
                self._add_lane(partition)

    def _add_lane(self, partition: TopicPartition) -> None:
        line: Any = Line()

        def make(place: Place, records: Sequence[Any]) -> list[Run]:
            self.given[partition] += [record.offset for record in records]
            return [Run(place, [record], line) for record in records]

        self.member.add_lanes(partition, (self.member.lane(*partition, "source", 0, make=make),), from_commit=0)

    async def fetch(self) -> Any:
        return await self.thread._fetch_records(self.consumer, set(self.logs.logs), timeout=0.01)

    async def poll(self) -> None:
        fetched = await self.fetch()
        rest = self.host.take(fetched)
        self.faust += [record.offset for records in rest.values() for record in records]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.poll()

    async def ask(self, consumer: Any, partitions: Collection[TopicPartition], **_: object) -> Asked:
        return Asked({partition: Standing(None, 0, self.logs.logs[partition][-1][0]) for partition in partitions}, {})

    def gaps(self) -> list[tuple[str | None, int | None, int | None, bool | None]]:
        return [(event.topic, event.offset, event.range_end, event.proved) for event in self.sink.events if event.code is EventCode.GAP]


@asynccontextmanager
async def reads(monkeypatch: pytest.MonkeyPatch, logs: Logs, **options: Any) -> AsyncIterator[Desk]:
    desk = Desk(logs, **options)
    for name in ("consumer.fetching._FETCH_AGAIN", "faust.fetchthread._POLL_AGAIN", "faust.fetchthread._LOOK_AGAIN"):
        monkeypatch.setattr(f"ackwise.plugin.{name}", 0.0)
    monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", desk.ask)
    try:
        yield desk
    finally:
        lanes = desk.member.abandon_lanes()
        await asyncio.gather(*(lane.task for lane in lanes if lane.task is not None))
        await desk.consumer._fetcher.close()
        desk.consumer._closed = True


def three(bad: tuple[int, bytes]) -> Logs:
    """A partition with `bad` in its middle beside two that are well."""
    return Logs(
        {
            GOOD: [batch(first, *VALUES) for first in range(0, 40, 10)],
            BAD: [batch(0, *VALUES), bad, batch(20, *VALUES)],
            OTHER: [batch(first, *VALUES) for first in range(0, 40, 10)],
        }
    )


def with_a_name_that_is_not_utf_8(first: int) -> tuple[int, bytes]:
    """A batch of ten whose last has a header that is called so, under a checksum that holds."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, 0, 0, 2**31 - 1)
    for number, value in enumerate(VALUES):
        headers: Any = [("h", b"1")] if number == 9 else []
        assert builder.append(number, 1_700_000_000_000, b"k", value, headers) is not None
    raw = bytes(builder.build())
    raw = first.to_bytes(8, "big") + raw[8:].replace(b"\x02h\x021", b"\x02\xff\x021")
    return first + 10, raw[:17] + calc_crc32c(raw[21:]).to_bytes(4, "big") + raw[21:]


async def test_a_partition_that_raises_costs_the_others_nothing_and_is_not_passed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = corrupt(batch(10, *VALUES))
    async with reads(monkeypatch, three(bad)) as desk:
        await desk.until(lambda: len(desk.given[GOOD]) == len(desk.given[OTHER]) == 40 and "partition unreadable" in caplog.text)
        (lane,) = desk.member.lanes[BAD]
        good = len(desk.given[BAD])
        await desk.until(lambda: lane.watermark.commit == good)
    assert desk.given[GOOD] == desk.given[OTHER] == [*range(40)]
    assert desk.given[BAD] == [*range(good)]
    assert 10 <= good < 20
    assert desk.gaps() == []
    assert lane.unreadable is not None


async def test_what_is_between_a_hole_and_a_partition_that_raises_is_lost_by_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    compacted = [batch(0, *VALUES, last=20), batch(25, *VALUES)]
    logs = Logs({GOOD: compacted, BAD: [batch(0, *VALUES), corrupt(batch(10, *VALUES))]})
    async with reads(monkeypatch, logs) as desk:
        await desk.until(lambda: len(desk.given[GOOD]) == 20 and len(desk.given[BAD]) == 10)
        assert desk.given[GOOD] == [*range(10), *range(25, 35)]
        assert desk.gaps() == [("good", 10, 25, True)]


async def test_while_partitions_are_asked_singly_brokers_are_asked_once_what_all_their_logs_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs takes five seconds for each question."""
    async with reads(monkeypatch, three(batch(10, *VALUES))) as desk:
        asked = list[set[TopicPartition]]()

        async def reaches(consumer: Any, partitions: Collection[TopicPartition], **_: object) -> Asked:
            asked.append({*partitions})
            return await desk.ask(consumer, partitions)

        monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", reaches)
        desk.thread.source_of(desk.consumer).fetching._searching_until = desk.now + 1.0
        await desk.poll()
        assert asked == [{GOOD, BAD, OTHER}]
        await desk.until(lambda: desk.given == {GOOD: [*range(40)], BAD: [*range(30)], OTHER: [*range(40)]})


async def test_a_partition_in_quarantine_is_asked_again_and_goes_on_where_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = three(corrupt(batch(10, *VALUES)))
    async with reads(monkeypatch, logs) as desk:
        (lane,) = desk.member.lanes[BAD]
        await desk.until(lambda: lane.unreadable is not None)
        asked = logs.asked.count(BAD)
        await desk.until(lambda: len(desk.given[GOOD]) == 40)
        logs.logs[BAD][1] = batch(10, *VALUES)
        desk.now += 1.01
        await desk.until(lambda: len(desk.given[BAD]) == 30 and lane.unreadable is None)
        assert desk.given[BAD] == [*range(30)]
        assert logs.asked.count(BAD) > asked
        assert desk.gaps() == []


@pytest.mark.parametrize(
    "error", [KafkaConnectionError(), RuntimeError("broken"), asyncio.CancelledError()], ids=["kafka", "client", "cancelled from inside"]
)
async def test_an_error_that_is_about_no_partition_puts_none_in_quarantine(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    async with reads(monkeypatch, three(batch(10, *VALUES))) as desk:
        fetched_records, failures = desk.consumer._fetcher.fetched_records, iter(range(3))

        async def raising(*args: Any, **options: Any) -> Any:
            found = await fetched_records(*args, **options)
            if len(args[0]) > 1 and next(failures, None) is not None:
                raise error  # after the positions moved
            return found

        desk.consumer._fetcher.fetched_records = raising
        await desk.until(lambda: sum(map(len, desk.given.values())) == 110)
        assert all(lanes[0].unreadable is None for lanes in desk.member.lanes.values())
        assert desk.given == {GOOD: [*range(40)], BAD: [*range(30)], OTHER: [*range(40)]}
        assert desk.gaps() == []


async def test_bytes_without_a_whole_batch_are_not_passed_while_another_partition_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client moves one further for them without having read anything, and raises only once nothing else is there."""
    busy = [batch(first, *VALUES) for first in range(0, 8000, 10)]
    logs = Logs({GOOD: busy, BAD: [batch(0, *VALUES), endless(batch(10, *VALUES)), batch(20, *VALUES)]})
    async with reads(monkeypatch, logs) as desk:
        (lane,) = desk.member.lanes[BAD]
        await desk.until(lambda: lane.unreadable is not None and len(desk.given[GOOD]) == 8000)
        assert lane.unreadable == "RecordTooLargeError"
        assert desk.given[BAD] == [*range(10)]
        assert (desk.member.lanes[BAD][0].position, desk.gaps()) == (10, [])
        logs.logs[BAD][1] = batch(10, *VALUES)
        desk.now += 1.01
        await desk.until(lambda: len(desk.given[BAD]) == 30)
        assert (desk.given[BAD], desk.gaps()) == ([*range(30)], [])


async def test_a_position_that_an_error_has_moved_while_another_partition_was_drained_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reads(monkeypatch, Logs({GOOD: [batch(0, *VALUES)], BAD: [endless(batch(0, *VALUES))]})) as desk:
        records, fetched_records = desk.consumer._fetcher._records, desk.consumer._fetcher.fetched_records

        async def at_last(*args: Any, **options: Any) -> Any:
            await buffers(desk.consumer, 2)
            records.move_to_end(BAD)
            return await fetched_records(*args, **options)

        desk.consumer._fetcher.fetched_records = at_last
        await desk.poll()
        assert desk.given[GOOD] == [*range(10)]
        assert (desk.member.lanes[BAD][0].position, desk.gaps()) == (0, [])


async def test_a_client_that_begins_elsewhere_while_the_broker_is_asked_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs({GOOD: [batch(5, *VALUES), batch(15, *VALUES), batch(25, *VALUES)]})  # compacted before
    async with reads(monkeypatch, logs) as desk:
        ask = desk.ask

        async def moving(*args: Any, **options: Any) -> Asked:
            if desk.given[GOOD] == []:
                desk.consumer.seek(GOOD, 25)
            return await ask(*args, **options)

        monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", moving)
        monkeypatch.setattr("ackwise.plugin.faust.fetchthread.FETCHED", 5)
        desk.member.lanes[GOOD][0].left_at = 0  # it stands there: the first to ask is who proves the hole
        await desk.until(lambda: desk.given[GOOD][-1:] == [34])
        assert desk.given[GOOD] == [*range(5, 35)]


async def test_what_agents_read_is_taken_in_record_batches_and_what_faust_reads_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def counting(fetch: Any) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            asked.append(fetch)
            return await fetch(*args, **options)

        return ask

    ours, theirs = Taking.take, AIOKafkaConsumerThread._fetch_records
    monkeypatch.setattr(Taking, "take", counting(ours))
    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", counting(theirs))
    async with reads(monkeypatch, Logs({GOOD: [batch(0, *VALUES)]})) as desk:
        await desk.until(lambda: desk.given[GOOD] == [*range(10)])
    assert set(asked) == {ours}
    asked.clear()
    async with reads(monkeypatch, Logs({CHANGES: [batch(0, *VALUES)]}), by_faust={CHANGES}) as desk:
        await desk.until(lambda: len(desk.faust) == 10)
    assert set(asked) == {theirs}


async def test_what_faust_reads_itself_is_sought_back_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs({CHANGES: [batch(0, *VALUES), batch(10, *VALUES)], BAD: [batch(0, *VALUES), corrupt(batch(10, *VALUES))]})
    async with reads(monkeypatch, logs, by_faust={CHANGES}) as desk:
        await desk.until(lambda: len(desk.given[BAD]) == 10 and len(desk.faust) == 20)
        assert desk.faust == [*range(20)]


async def test_what_faust_drops_of_what_it_reads_itself_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reads(monkeypatch, Logs({CHANGES: [batch(0, *VALUES), batch(10, *VALUES)]}), by_faust={CHANGES}) as desk:
        fetched = await desk.fetch()
        while not fetched:
            fetched = await desk.fetch()
        desk.thread.give(fetched, fetched.left_at)
        desk.read[CHANGES] = 3  # and dropped the rest
        await desk.until(lambda: len(desk.faust) == 16)
        assert desk.faust == [*range(4, 20)]


async def test_what_faust_reads_itself_and_can_not_read_raises_as_in_faust(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs({CHANGES: [corrupt(batch(0, *VALUES))], GOOD: [batch(0, *VALUES)]})
    async with reads(monkeypatch, logs, by_faust={CHANGES}) as desk:
        with pytest.raises(CorruptRecordException):
            await desk.until(lambda: False)


@pytest.mark.parametrize(("error", "times"), [(RequestTimedOutError(), 3), (CorruptRecordException("once"), 1), (ValueError("odd"), 1)])
async def test_an_error_that_may_pass_about_what_faust_reads_itself_costs_no_record_and_no_worker(
    monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    """The client raises after it has drained: its positions have moved past what nobody was given."""
    logs = Logs({CHANGES: [batch(0, *VALUES), batch(10, *VALUES)], GOOD: [batch(0, *VALUES)]})
    async with reads(monkeypatch, logs, by_faust={CHANGES}) as desk:
        real, raised = desk.consumer._fetcher.fetched_records, list[int]()

        async def drains_and_raises(partitions: Collection[TopicPartition], *args: Any, **options: Any) -> Any:
            found = await real(partitions, *args, **options)
            if found and set(partitions) == {CHANGES} and len(raised) < times:
                raised.append(len(found[CHANGES]))
                raise error
            return found

        desk.consumer._fetcher.fetched_records = drains_and_raises
        desk.thread.source_of(desk.consumer).fetching._searching_until = math.inf  # it is asked alone
        await desk.until(lambda: len(desk.given[GOOD]) == 10 and len(desk.faust) >= 20)
        assert len(raised) == times
        assert (desk.faust, desk.given[GOOD]) == ([*range(20)], [*range(10)])


async def test_a_record_of_faust_that_makes_no_whole_batch_is_not_passed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs({GOOD: [batch(0, *VALUES)], CHANGES: [endless(batch(0, b"x")), batch(1, *VALUES)]})
    async with reads(monkeypatch, logs, by_faust={CHANGES}) as desk:
        records, fetched_records = desk.consumer._fetcher._records, desk.consumer._fetcher.fetched_records

        async def at_last(*args: Any, **options: Any) -> Any:
            await buffers(desk.consumer, 2)
            records.move_to_end(CHANGES)
            desk.consumer._fetcher.fetched_records = fetched_records
            return await fetched_records(*args, **options)

        desk.consumer._fetcher.fetched_records = at_last
        with pytest.raises(RecordTooLargeError):
            await desk.until(lambda: bool(desk.faust))
        assert (desk.faust, desk.given[GOOD]) == ([], [*range(10)])


async def test_a_task_of_the_client_that_ended_by_itself_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reads(monkeypatch, three(batch(10, *VALUES))) as desk:
        desk.consumer._fetcher._fetch_task.cancel()
        await asyncio.wait({desk.consumer._fetcher._fetch_task})
        await desk.until(lambda: sum(map(len, desk.given.values())) == 110)


async def test_a_client_that_left_its_group_for_good_stops_the_worker_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reads(monkeypatch, three(batch(10, *VALUES))) as desk:
        ended = asyncio.ensure_future(asyncio.sleep(0))
        await ended
        desk.consumer._coordinator._coordination_task = ended
        with pytest.raises(AckwiseError, match="has left the group"):
            await desk.poll()


async def test_a_header_name_that_is_not_utf8_costs_nobody_anything_and_its_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs({GOOD: [batch(0, *VALUES)], BAD: [batch(0, *VALUES), with_a_name_that_is_not_utf_8(10), batch(20, *VALUES)]})
    async with reads(monkeypatch, logs) as desk:
        await desk.until(lambda: len(desk.given[GOOD]) == 10 and desk.given[BAD][-1:] == [29])
    assert desk.given == {GOOD: [*range(10)], BAD: [*range(30)]}
    assert desk.gaps() == []
