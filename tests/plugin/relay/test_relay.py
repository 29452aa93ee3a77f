"""When a copy moves on from a delay topic, and what the relay does with copies that can't."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers import RawKafka

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message import Delivery, Headers, Origin
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import BUDGET, Copy, retry_copy
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.group.recordbatches import RecordBatches
from ackwise.plugin.group.relaycounts import DelayCounts
from ackwise.plugin.group.topics import TopicNames, ensure_topics, set_append_time
from ackwise.plugin.local.broker import LocalKafka
from ackwise.plugin.relay import fetching as delayfetch
from ackwise.plugin.relay import relay as delay
from ackwise.plugin.relay.cancellations import CancelTopic
from ackwise.plugin.relay.hop import Move, Wait, latest_due, next_hop, written_at
from ackwise.plugin.relay.line import DelayLine
from ackwise.plugin.relay.member import first_offset
from ackwise.plugin.relay.relay import DelayRelay
from ackwise.plugin.settings.hostsettings import HostSettings

LEVELS = DelayLevels("1s 10s 1m")
NAMES = TopicNames("billing", LEVELS)


@pytest.fixture
def kafka(own_kafka: LocalKafka) -> LocalKafka:
    """One that no other test uses, since it is killed here."""
    return own_kafka


@pytest.mark.parametrize(
    ("now", "due", "level", "hop"),
    [
        pytest.param(0, 40_000, 3, Wait(40_000), id="D04-head-due-in-40s-waits-for-exactly-that"),
        pytest.param(0, 135_000, 3, Wait(60_000), id="D05-head-due-later-than-its-level-waits-it-out"),
        pytest.param(9_999, 10_000, 2, Wait(10_000), id="a-millisecond-early-waits"),
        pytest.param(10_000, 10_000, 2, Move(0), id="due-now-moves"),
        pytest.param(90_000, 10_000, 2, Move(0), id="D11-overdue-moves-at-once"),
        pytest.param(60_000, 135_000, 3, Move(3), id="the-largest-level-that-fits"),
        pytest.param(60_000, 75_000, 3, Move(2), id="the-rest-hops-on-a-smaller-level"),
        pytest.param(60_000, 60_400, 3, Wait(60_400), id="less-than-the-smallest-level-is-waited-for"),
        pytest.param(0, 400, 1, Wait(400), id="due-before-its-level-ends"),
    ],
)
def test_a_copy_waits_out_its_level_and_hops_or_comes_back(now: int, due: int, level: int, hop: Wait | Move) -> None:
    assert next_hop(now, due, 0, level, LEVELS) == hop


@given(delay=st.integers(0, 10**9), level=st.integers(1, 3))
def test_a_copy_is_never_early_and_always_arrives(delay: int, level: int) -> None:
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


MS_PER_DAY = 86_400_000


@given(
    delay=st.integers(0, 3 * MS_PER_DAY),
    sent=st.integers(0, 2**41),
    sender_ahead=st.integers(0, 500),
    relay_ahead=st.integers(0, 500),
    seen_after=st.integers(0, MS_PER_DAY),
    sent_again_after=st.integers(0, MS_PER_DAY),
    is_append_time=st.booleans(),
)
def test_a_delay_that_was_asked_for_by_the_rules_is_never_cut(
    delay: int, sent: int, sender_ahead: int, relay_ahead: int, seen_after: int, sent_again_after: int, is_append_time: bool
) -> None:
    """Clocks differ by `clock_skew` at most; publishing may have to be repeated for long, with the due time of the first time."""
    due = sent + sender_ahead + delay + 500
    written = sent + sent_again_after
    timestamp = written if is_append_time else written + sender_ahead
    seen = written + seen_after + relay_ahead
    assert due <= latest_due(timestamp, seen, 3 * 86400.0, 0.5, is_append_time=is_append_time)


@given(timestamp=st.integers(-1, 2**62), seen=st.integers(0, 2**41), due=st.integers(0, 2**63 - 1), is_append_time=st.booleans())
def test_whatever_a_record_claims_it_holds_its_partition_for_its_level_at_most_and_is_cut_once(
    timestamp: int, seen: int, due: int, is_append_time: bool
) -> None:
    hop = next_hop(
        seen, min(due, latest_due(timestamp, seen, 60.0, 0.5, is_append_time=is_append_time)), written_at(timestamp, seen), 3, LEVELS
    )
    assert isinstance(hop, Move) or hop.until <= seen + 60_000
    cut = min(due, latest_due(timestamp, seen, 60.0, 0.5, is_append_time=False))
    later = seen + 30_000  # it hops on, and is written again
    assert cut <= latest_due(later, later, 60.0, 0.5, is_append_time=True)


@pytest.mark.parametrize(
    ("committed", "start", "end", "first"),
    [
        pytest.param(None, 5, 20, 5, id="no-commit-begins-at-the-start"),
        pytest.param(12, 5, 20, 12, id="a-commit-is-gone-on-from"),
        pytest.param(20, 5, 20, 20, id="everything-moved"),
        pytest.param(1, 5, 20, 5, id="below-the-log"),
        pytest.param(10**9, 5, 20, 5, id="above-the-log-all-of-it-is-new"),
        pytest.param(7, 0, 0, 0, id="an-empty-log"),
    ],
)
def test_a_position_outside_of_the_log_begins_at_its_start(committed: int | None, start: int, end: int, first: int) -> None:
    """D08, but from the start: RocketMQ goes on at the nearest end, past what it has not delivered."""
    assert first_offset(committed, start, end) == first


class Publisher:
    """Keeps what was published; `answer` may refuse."""

    def __init__(self) -> None:
        self.sent: list[Copy] = []
        self.answer: Callable[[Copy], PublishUnavailable | PublishRefused | None] = lambda copy: None

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        answers = [self.answer(copy) for copy in copies]
        self.sent += [copy for copy, answer in zip(copies, answers, strict=True) if answer is None]
        return answers


class Desk:
    """A line of level 10s on a desk, where time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.publisher = Publisher()
        self.counts = DelayCounts()
        self.line = DelayLine(
            NAMES.delays[1], 2, 5, names=NAMES, levels=LEVELS, publisher=self.publisher, clock=lambda: self.now, max_delay=100.0,
            counts=self.counts,
        )  # fmt: skip

    def put(
        self,
        *offsets: int,
        due: float = 0.0,
        headers: Headers | None = None,
        value: bytes | None = None,
        handler: str = "bill",
        timestamp: float | None = None,
    ) -> None:
        """Records due at `due`, in seconds, written now or at `timestamp`."""
        for offset in offsets:
            origin = Origin("orders", 2, offset + 100, 7)
            message = Delivery(*origin, b"key", value or b"%d" % offset, (("trace", b"t"),), origin)
            copy = retry_copy(
                message, topic=NAMES.delays[1], partition=2, group="billing", handler=handler,
                due=int(due * 1000), now_ms=0, reason="TypeError",
            )  # fmt: skip
            here = Origin(copy.topic, 2, offset, int((self.now if timestamp is None else timestamp) * 1000))
            self.line.offer([Delivery(*here, copy.key, copy.value, copy.headers if headers is None else headers, here)])

    async def turn(self) -> tuple[list[tuple[str, bytes | None]], int | None, float]:
        """Everything that was sent so far, what may be committed, and when to look again."""
        rest = await self.line.turn()
        return [(copy.topic, copy.value) for copy in self.publisher.sent], self.line.watermark.commit, rest


async def test_what_is_due_moves_to_the_retry_topic_and_what_is_not_stays() -> None:
    desk = Desk()
    desk.put(5)
    desk.put(6, due=1_004)
    assert await desk.turn() == ([("billing.retry", b"5")], 6, 0.0)
    assert (await desk.turn())[2] == 4.0
    desk.now = 1_004.0
    assert (await desk.turn())[:2] == ([("billing.retry", b"5"), ("billing.retry", b"6")], 7)


async def test_a_copy_is_moved_with_its_key_partition_and_headers_as_they_are() -> None:
    desk = Desk()
    headers = (("ackwise-version", b"0"), ("trace", None), ("ackwise-version", b"2"), ("ackwise-group", b"billing"), ("ackwise-due", b"3"))
    desk.put(5, headers=headers)
    await desk.turn()
    assert desk.publisher.sent == [Copy("billing.retry", 2, b"key", b"5", headers)]


async def test_what_is_left_of_a_longer_delay_is_waited_for_on_another_level() -> None:
    desk = Desk()
    desk.put(5, due=1_011.5)
    assert (await desk.turn())[0] == []
    desk.now = 1_010.0
    assert (await desk.turn())[:2] == ([("billing.delay.1s", b"5")], 6)


@pytest.mark.parametrize("_", [pytest.param(None, id="D06")])
async def test_when_the_head_can_not_be_published_the_same_one_is_tried_again_and_none_is_skipped(_: None) -> None:
    desk = Desk()
    desk.put(5, 6, 7)
    desk.publisher.answer = lambda copy: PublishUnavailable("no broker") if copy.value == b"5" else None
    _sent, commit, first_rest = await desk.turn()
    desk.put(8)
    sent, _commit, second_rest = await desk.turn()
    assert (commit, first_rest, second_rest) == (5, 0.5, 1.0)
    assert sent == [("billing.retry", b"6"), ("billing.retry", b"7")], "those that were acknowledged are not sent again, and 8 waits"
    desk.publisher.answer = lambda copy: None
    assert (await desk.turn())[1] == 8
    assert [value for _, value in (await desk.turn())[0]] == [b"6", b"7", b"5", b"8"]


@pytest.mark.parametrize(
    "headers",
    [
        (("trace", b"t"),),
        (("ackwise-version", b"x"),),
        (("ackwise-version", b"2"),),
        (("ackwise-version", b"2"), ("ackwise-due", b"3")),
        (("ackwise-version", b"2"), ("ackwise-group", b"billing"), ("ackwise-due", b"soon")),
        (("ackwise-version", b"2"), ("ackwise-group", b"billing"), ("ackwise-due", None)),
        (("ackwise-version", b"9"), ("ackwise-group", b"shipping"), ("ackwise-due", b"3")),
    ],
)
async def test_a_record_that_is_not_ours_becomes_a_dead_letter_and_blocks_nobody(headers: Headers) -> None:
    desk = Desk()
    desk.put(5, headers=headers)
    desk.put(6)
    assert (await desk.turn())[:2] == ([("billing.dlq", b"5"), ("billing.retry", b"6")], 7)
    letter = desk.publisher.sent[0]
    assert letter.headers[: len(headers)] == headers
    said = dict(letter.headers[len(headers) :])
    assert (said["ackwise-reason"], said["ackwise-origin-topic"]) == (b"foreign-copy", b"billing.delay.10s")


async def test_a_handler_name_that_fills_a_record_ends_as_a_dead_letter_that_fits() -> None:
    desk = Desk()
    desk.put(5, handler="h" * 900_000)
    desk.publisher.answer = lambda copy: (
        PublishRefused("too large") if sum(len(value or b"") for _, value in copy.headers) > BUDGET else None
    )
    for _ in range(4):
        await desk.turn()
    assert (await desk.turn())[:2] == ([("billing.dlq", None)], 6)
    assert dict(desk.publisher.sent[0].headers)["ackwise-dropped"] == b"value headers"


async def test_a_copy_from_a_clock_that_is_ahead_waits_for_its_level_and_no_longer() -> None:
    desk = Desk()
    desk.put(5, due=1_020, timestamp=10**8)
    desk.put(6)
    assert (await desk.turn())[0] == []
    desk.now = 1_010.0
    assert (await desk.turn())[:2] == ([("billing.delay.10s", b"5"), ("billing.retry", b"6")], 7)


async def test_a_due_time_beyond_max_delay_is_cut_once_written_on_alarmed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.put(5, 6, due=10**9)
    desk.put(7, due=1_100)
    desk.now = 1_010.0
    assert (await desk.turn())[:2] == ([("billing.delay.1m", b"5"), ("billing.delay.1m", b"6"), ("billing.delay.1m", b"7")], 8)
    dues = [dict(copy.headers)["ackwise-due"] for copy in desk.publisher.sent]
    assert dues == [b"1100000"] * 3
    assert desk.publisher.sent[0].headers[0] == ("trace", b"t")
    assert (desk.counts.cut, caplog.text.count("due later than max_delay allows")) == (2, 1)


@pytest.mark.parametrize("version", [b"1", b"9"])
async def test_a_copy_of_another_version_is_held_with_an_alarm_a_minute(caplog: pytest.LogCaptureFixture, version: bytes) -> None:
    desk = Desk()
    desk.put(5, headers=(("ackwise-version", version), ("ackwise-group", b"billing"), ("ackwise-due", b"0")))
    for _ in range(2):
        desk.put(6)
        assert (await desk.turn())[:2] == ([], 5)
    assert caplog.text.count("start a worker of the Ackwise") == 1
    desk.now += 60
    await desk.turn()
    assert caplog.text.count("start a worker of the Ackwise") == 2


async def test_a_copy_that_is_refused_for_good_becomes_a_dead_letter_that_is_cut_and_names_its_origin() -> None:
    desk = Desk()
    desk.put(5)
    desk.publisher.answer = lambda copy: PublishRefused("too large") if copy.value is not None else None
    for _ in range(2):
        await desk.turn()
    sent, commit, _rest = await desk.turn()
    assert (sent, commit) == ([("billing.dlq", None)], 6)
    said = dict(desk.publisher.sent[0].headers)
    assert (said["ackwise-reason"], said["ackwise-dropped"], said["ackwise-handler"]) == (b"too-large", b"value", b"bill")
    assert (said["ackwise-origin-topic"], said["ackwise-origin-offset"]) == (b"orders", b"105")


async def test_a_dead_letter_that_can_t_be_cut_further_is_tried_again_and_not_dropped() -> None:
    desk = Desk()
    desk.put(5)
    desk.publisher.answer = lambda copy: PublishRefused("never")
    for _ in range(9):
        assert (await desk.turn())[:2] == ([], 5)
    desk.publisher.answer = lambda copy: None
    assert (await desk.turn())[:2] == ([("billing.dlq", None)], 6)


async def test_what_was_fetched_twice_is_moved_once() -> None:
    desk = Desk()
    desk.put(5, 6)
    await desk.turn()
    desk.put(5, 6, 7)
    assert [value for _, value in (await desk.turn())[0]] == [b"5", b"6", b"7"]


async def test_a_line_is_full_until_half_of_it_is_gone() -> None:
    desk = Desk()
    desk.put(*range(5, 205))
    desk.put(*range(205, 305), due=2_000)
    desk.put(*range(305, 505), due=3_000)
    assert desk.line.is_full(paused=False)
    await desk.turn()
    assert (desk.line.is_full(paused=False), desk.line.is_full(paused=True)) == (False, True)
    desk.now = 2_000
    await desk.turn()
    assert not desk.line.is_full(paused=True)


async def test_a_line_is_full_of_a_few_large_records_as_well() -> None:
    desk = Desk()
    desk.put(5, 6, due=2_000, value=b"x" * 600_000)
    assert desk.line.is_full(paused=False)
    desk.now = 2_000
    await desk.turn()
    assert not desk.line.is_full(paused=True)


async def test_a_stopped_line_finishes_what_it_publishes_and_begins_nothing_more() -> None:
    desk = Desk()
    asked, go_on = asyncio.Event(), asyncio.Event()
    publish = desk.publisher.publish

    async def slow(copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        asked.set()
        await go_on.wait()
        return await publish(copies)

    desk.publisher.publish = slow  # type: ignore[method-assign]  # a broker that takes its time
    desk.line.start()
    desk.put(5)
    await asked.wait()
    desk.put(6)
    desk.line.stop()
    go_on.set()
    assert desk.line.task is not None
    await desk.line.task
    assert desk.line.watermark.commit == 6


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event) -> None:
        self.events.append(event)

    async def flush(self) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


#: Seconds after which a test gives up on a real broker; the longest timeout of a client in these tests, that of publishing.
PATIENCE, LONGEST_TIMEOUT = 60.0, 10.0


class Group:
    """A group with topics of its own on a real broker, a publisher, and a look past the code that is tested."""

    def __init__(self, raw_kafka: RawKafka) -> None:
        self.raw = raw_kafka
        self.settings = HostSettings(
            raw_kafka.bootstrap, raw_kafka.new_group(), session_timeout=6.0, commit_interval=0.2,
            client_options={"metadata_max_age_ms": 5000},
        )  # fmt: skip
        self.levels = DelayLevels("200ms 1s")
        self.names = TopicNames(self.settings.group, self.levels)
        self.publisher = KafkaPublisher(self.settings)
        self.sink = Sink()

    async def send(self, *values: int, delay: float, level: int = 1, partition: int = 0) -> None:
        """Copies that are due `delay` seconds from now, on the topic of `level`."""
        due = int((time.time() + delay) * 1000)
        for value in values:
            origin = Origin("orders", partition, value, 0)
            copy = retry_copy(
                Delivery(*origin, b"k", b"%d" % value, (("due", b"%d" % due),), origin),
                topic=self.names.delays[level - 1], partition=partition, group=self.settings.group, handler="bill",
                due=due, now_ms=0, reason="",
            )  # fmt: skip
            assert await self.publisher.publish([copy]) == [None]

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[asyncio.Task[None]]:
        stop = asyncio.Event()
        batches, cancellations = RecordBatches(self.settings), CancelTopic(self.settings, self.names.cancel)
        relay = DelayRelay(self.settings, self.names, self.levels, batches, sink=self.sink, cancellations=cancellations)
        task = asyncio.create_task(relay.run(stop))
        try:
            yield task
        finally:
            stop.set()
            await task

    async def read(self, topic: str, count: int) -> list[Any]:
        """Everything in `topic`, once that is at least `count` records with different values."""
        async with asyncio.timeout(PATIENCE):
            while True:
                records = await self.raw.records(topic)
                if len({record.value for record in records}) >= count:
                    return records
                await asyncio.sleep(0.05)


@pytest.fixture
async def group(raw_kafka: RawKafka) -> AsyncIterator[Group]:
    group = Group(raw_kafka)
    source = await raw_kafka.new_topic(2)
    await ensure_topics(group.settings, group.names, [source], levels=group.levels)
    await set_append_time(group.settings, [group.names.retry])  # when a copy came is for the broker to say
    await group.publisher.start()
    yield group
    await group.publisher.stop()


async def test_copies_come_back_when_they_are_due_and_not_before(group: Group) -> None:
    await group.send(*range(20), delay=0.3)
    await group.send(*range(20, 30), delay=1.5, level=2, partition=1)
    async with group.relay():
        await group.send(30, delay=0.9)
        records = await group.read(group.names.retry, 31)
    assert sorted(int(record.value) for record in records) == list(range(31))
    assert all(record.timestamp >= int(dict(record.headers)["due"]) for record in records)
    assert [int(record.value) for record in records if record.partition == 1] == list(range(20, 30))


async def test_a_relay_that_comes_later_moves_what_was_sent_before_and_nothing_twice(group: Group) -> None:
    await group.send(1, 2, 3, delay=0)
    async with group.relay():
        await group.read(group.names.retry, 3)
    assert (await group.raw.committed(group.names.relay_group))[TopicPartition(group.names.delays[0], 0)] == 3
    await group.send(4, delay=0)
    async with group.relay():
        records = await group.read(group.names.retry, 4)
    assert [record.value for record in records] == [b"1", b"2", b"3", b"4"]


async def test_two_relays_share_the_partitions_and_lose_nothing_when_one_leaves(group: Group) -> None:
    async with group.relay():
        async with group.relay():
            for number in range(20):
                await group.send(number, delay=0.1, partition=number % 2)
        for number in range(20, 30):
            await group.send(number, delay=0.1, partition=number % 2)
        assert {int(record.value) for record in await group.read(group.names.retry, 30)} == set(range(30))


async def test_a_foreign_record_on_a_delay_topic_ends_among_the_dead_letters(group: Group) -> None:
    await group.publisher.publish([Copy(group.names.delays[0], 0, None, b"what am I", ())])
    await group.send(1, delay=0)
    async with group.relay():
        (record,) = await group.read(group.names.retry, 1)
        (letter,) = await group.read(group.names.dead_letter, 1)
    assert (record.value, letter.value, dict(letter.headers)["ackwise-reason"]) == (b"1", b"what am I", b"foreign-copy")


async def test_the_ends_of_the_logs_are_told_with_what_is_committed(group: Group) -> None:
    await group.send(1, 2, delay=0)
    async with group.relay():
        await group.read(group.names.retry, 2)
    last = {(event.topic, event.partition): event for event in group.sink.events}
    assert {event.code for event in group.sink.events} == {EventCode.BROKER_OFFSETS}
    assert {event.role for event in group.sink.events} == {"delay"}
    assert sorted(last) == [(topic, partition) for topic in sorted(group.names.delays) for partition in range(2)]
    ends = {at: (event.offset, event.range_end, json.loads(event.attrs or "")) for at, event in last.items()}
    assert ends[(group.names.delays[0], 0)] == (0, 2, {"committed": 2})
    assert ends[(group.names.delays[1], 1)] == (0, 0, {"committed": 0})


async def test_a_committed_position_that_the_log_no_longer_has_begins_at_its_start(group: Group) -> None:
    await group.send(1, 2, 3, 4, delay=0)
    async with group.relay():
        await group.read(group.names.retry, 4)
    partition = TopicPartition(group.names.delays[0], 0)
    await group.send(5, 6, 7, delay=0)
    admin = AIOKafkaAdminClient(bootstrap_servers=group.settings.brokers)
    await admin.start()
    await admin.delete_records({partition: RecordsToDelete(6)})
    await admin.close()
    async with group.relay():
        records = await group.read(group.names.retry, 5)
    assert [record.value for record in records] == [b"1", b"2", b"3", b"4", b"7"]


async def test_a_relay_that_is_stopped_while_it_starts_leaves_no_connection_open(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    send: Any = AIOKafkaConnection.send

    async def held(connection: AIOKafkaConnection, request: Any) -> Any:
        asked.set()
        await answer.wait()
        return await send(connection, request)

    def sending(connection: AIOKafkaConnection, request: Any, **more: Any) -> Any:
        is_first_question = isinstance(request, MetadataRequest) and not answer.is_set()
        return held(connection, request) if is_first_question else send(connection, request, **more)

    before = set(open_connections())
    with monkeypatch.context() as patch:
        patch.setattr(AIOKafkaConnection, "send", sending)
        async with group.relay():
            await asked.wait()
            asyncio.get_running_loop().call_later(0.05, answer.set)
    assert set(open_connections()) <= before


def open_connections() -> list[int]:
    return [id(each) for each in gc.get_objects() if isinstance(each, AIOKafkaConnection) and each.connected()]


@pytest.mark.slow
async def test_a_broker_that_is_killed_and_comes_back_costs_time_and_no_copy(group: Group, kafka: LocalKafka) -> None:
    async with group.relay() as task:
        await group.send(*range(10), delay=0)
        await group.read(group.names.retry, 10)
        await group.send(*range(10, 20), delay=2)
        await asyncio.to_thread(kafka.kill)
        await asyncio.to_thread(kafka.start)
        await group.send(*range(20, 30), delay=0)
        assert {int(record.value) for record in await group.read(group.names.retry, 30)} == set(range(30))
        assert not task.done()


@pytest.mark.slow
async def test_a_broker_that_is_away_for_longer_than_every_timeout_of_the_client_costs_time_and_no_copy(
    group: Group, kafka: LocalKafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.settings = copy.copy(group.settings)
    object.__setattr__(group.settings, "client_options", {"request_timeout_ms": 1000, "metadata_max_age_ms": 1000})  # not for users to set
    monkeypatch.setattr(delay, "_BEGIN_ANEW", (0.2, 0.5))
    async with group.relay() as task:
        await group.send(*range(10), delay=0)
        await group.read(group.names.retry, 10)
        await group.send(*range(10, 20), delay=2)
        await asyncio.to_thread(kafka.kill)
        away = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(delayfetch, "_FETCH_TIMEOUT", 0.1)  # so that this membership ends while there is no broker
            async with asyncio.timeout(PATIENCE):
                while caplog.text.count("the delay relay lost its broker") < 3 or time.monotonic() < away + LONGEST_TIMEOUT:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await asyncio.to_thread(kafka.start)
        await group.send(*range(20, 30), delay=0)
        assert {int(record.value) for record in await group.read(group.names.retry, 30)} == set(range(30))
        assert not task.done()
