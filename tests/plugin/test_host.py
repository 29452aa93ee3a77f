"""What the host believes of a broker's answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, GroupLoadInProgressError, KafkaConnectionError, KafkaError, OffsetOutOfRangeError

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.policies import DeadLetter, Transactional
from ackwise.middleware.retry import ConsumeLater
from ackwise.middleware.transaction import Progress
from ackwise.plugin.fetching import Fetching
from ackwise.plugin.host import Host
from ackwise.plugin.lane import Lane
from ackwise.plugin.positions import Positions
from ackwise.plugin.settings import HostSettings

LOADING = GroupLoadInProgressError.errno


def make_host(error_code: int, partitions: list[tuple[int, int, str, int]]) -> Host:
    async def committed(partition: TopicPartition) -> None:
        return None

    async def send(request: Any) -> Any:
        return SimpleNamespace(error_code=error_code, topics=[("orders", partitions)] if partitions else [])

    host = Host(HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter())
    consumer: Any = SimpleNamespace(committed=committed, _coordinator=SimpleNamespace(_send_req=send))
    host._positions = Positions(host._member, consumer)
    return host


@pytest.mark.parametrize(("error_code", "partitions"), [(LOADING, []), (0, [(0, -1, "", LOADING)])])
async def test_a_coordinator_that_can_not_answer_is_not_taken_for_a_group_that_never_committed(
    error_code: int, partitions: list[tuple[int, int, str, int]]
) -> None:
    with pytest.raises(KafkaError):
        await make_host(error_code, partitions)._positions.committed(TopicPartition("orders", 0))


@pytest.mark.parametrize(("offset", "committed"), [(-1, None), (7, 7)])
async def test_only_the_coordinator_says_that_a_group_never_committed(offset: int, committed: int | None) -> None:
    assert await make_host(0, [(0, offset, "", 0)])._positions.committed(TopicPartition("orders", 0)) == committed


@pytest.mark.parametrize(("topic", "position"), [("billing.retry", 3), ("orders", 9)])
async def test_S19_a_retry_topic_is_read_from_its_beginning_whatever_start_says(topic: str, position: int) -> None:
    async def beginning(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 3)

    async def end(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)

    settings = HostSettings(brokers="nowhere:1", group="billing", start="latest")
    host = Host(settings, [], later=ConsumeLater(), dead_letter=DeadLetter())
    consumer: Any = SimpleNamespace(beginning_offsets=beginning, end_offsets=end)
    host._positions = Positions(host._member, consumer)
    assert await host._positions.start_of(TopicPartition(topic, 0)) == position


class Events:
    """A sink that remembers what it was given, and whether it is durable."""

    def __init__(self) -> None:
        self.recorded: list[Event] = []
        self.durable: list[Event] = []

    async def open(self) -> None: ...

    def record(self, event: Event) -> None:
        self.recorded.append(event)

    async def flush(self) -> None:
        self.durable = list(self.recorded)

    async def close(self) -> None: ...


class Passed:
    """A database that has passed ten offsets of every partition."""

    async def take_over(self, owner: str, topic: str, partition: int, *, position: int) -> Progress:
        return Progress(10, 2)


def host_with_offsets(log_end: int, sink: Events | None = None) -> Host:
    async def end(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, log_end)

    database: Any = Passed()
    host = Host(
        HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter(),
        dedup=Transactional(database, mode="offsets"), inbox=database, sink=sink,
    )  # fmt: skip
    consumer: Any = SimpleNamespace(end_offsets=end)
    host._positions = Positions(host._member, consumer)
    return host


async def test_what_a_database_has_passed_is_durable_before_the_broker_can_be_told() -> None:
    sink = Events()
    host = host_with_offsets(12, sink)
    assert host._member.offsets is not None
    await host._positions.take_over(host._member.offsets, TopicPartition("orders", 0), 7, is_new=False)
    assert [(event.code, event.offset, event.range_end) for event in sink.durable] == [(EventCode.TX_SETTLED, 7, 10)]


async def test_a_topic_that_was_made_anew_is_not_taken_for_one_that_was_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.positions._LOOKS_AT_END", 1)
    host = host_with_offsets(9)
    assert host._member.offsets is not None
    with pytest.raises(ConfigurationError, match=r"orders/0 goes on at 10, and its log ends at 9: the topic was made anew"):
        await host._positions.take_over(host._member.offsets, TopicPartition("orders", 0), 0, is_new=True)


async def test_a_database_that_knows_more_than_a_group_without_offsets_is_believed_aloud(caplog: pytest.LogCaptureFixture) -> None:
    host = host_with_offsets(12)
    assert host._member.offsets is not None
    assert (await host._positions.take_over(host._member.offsets, TopicPartition("orders", 0), 0, is_new=True)).next == 10
    assert "the database is believed" in caplog.text


async def test_what_kafka_refuses_at_the_start_is_a_sentence_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object, **__: object) -> None:
        raise GroupAuthorizationFailedError("billing")

    monkeypatch.setattr("ackwise.plugin.member.ensure_topics", denied)
    host = Host(HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter())
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of group 'billing' \(.*\); ackwise doctor"):
        await host.run(asyncio.Event())


def fetching_of(host: Host) -> Fetching:
    return Fetching(host._member, host._consumer, host._begin_anew)


def out_of_range(host: Host, ask: Any) -> TopicPartition:
    """`host` has a partition whose position is outside of the log, and asks the broker with `ask` where it is."""
    partition = TopicPartition("orders", 0)

    async def getmany(*_: object, **__: object) -> None:
        raise OffsetOutOfRangeError({partition: 5})

    consumer: Any = SimpleNamespace(getmany=getmany, beginning_offsets=ask, end_offsets=ask, sought=[], paused=set, assignment=set)
    consumer._fetcher = SimpleNamespace(_fetch_task=asyncio.get_running_loop().create_future())
    consumer.seek = lambda *to: consumer.sought.append(to)
    host._consumer = consumer
    host._member.lanes[partition] = (Lane("orders", 0, "source", 5, make=lambda delivery: None, progressed=lambda lane: None),)
    return partition


async def test_a_broker_that_is_away_while_a_position_is_mended_ends_no_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(0, [])

    async def away(_: object) -> None:
        host._member.stop.set()
        raise KafkaConnectionError

    monkeypatch.setattr("ackwise.plugin.fetching._POLL_AGAIN", 0.0)
    out_of_range(host, away)
    await fetching_of(host).poll()
    assert "fetching failed, nothing is lost" in caplog.text


async def test_a_position_is_not_mended_for_a_partition_that_was_revoked_meanwhile() -> None:
    host = make_host(0, [])

    async def revoked(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        host._member.lanes.clear()
        return dict.fromkeys(partitions, 9)

    out_of_range(host, revoked)
    await fetching_of(host)._recover(OffsetOutOfRangeError({TopicPartition("orders", 0): 5}))
    consumer: Any = host._consumer
    assert consumer.sought == []


def a_log(monkeypatch: pytest.MonkeyPatch, host: Host, start: int, end: int, committed: int) -> Any:
    """A broker whose log reaches from `start` to before `end`, of which `host` has committed `committed`."""
    partition = TopicPartition("orders", 0)
    monkeypatch.setattr("ackwise.plugin.positions._LOOKS_AT_END", 1)

    async def answer(offset: int | None) -> Any:
        return offset if offset is None else {partition: offset}

    async def committed_offset(_: object) -> int:
        return committed

    consumer: Any = SimpleNamespace(
        committed=committed_offset,
        beginning_offsets=lambda _: answer(start),
        end_offsets=lambda _: answer(end),
        commit=lambda _: answer(None),
        assignment=lambda: {partition},
        sought=[],
    )
    consumer.seek = lambda *to: consumer.sought.append(to)
    host._consumer = consumer
    host._positions = Positions(host._member, consumer)
    return consumer


@pytest.mark.parametrize(("start", "end"), [(50, 60), (0, 3)])
async def test_a_position_outside_of_the_log_begins_at_its_start_since_what_is_there_may_be_new(
    start: int, end: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(0, [])
    host._member.sink = sink = Events()
    a_log(monkeypatch, host, start, end, committed=10)
    assert (await host._positions.find(TopicPartition("orders", 0))).next == start
    assert [(event.code, event.offset, event.range_end) for event in sink.recorded] == [(EventCode.SEEK, min(10, start), max(10, start))]
    assert "the position is outside of what the topic holds" in caplog.text


@pytest.mark.parametrize(("start", "end", "begins"), [(0, 3, 0), (7, 9, 7), (0, 9, None)])
async def test_a_partition_whose_position_was_lost_is_taken_up_anew_and_nothing_below_it_is_passed_over(
    start: int, end: int, begins: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old lane would take what the log has below its position for what it had before."""
    host = make_host(0, [])
    monkeypatch.setattr(host._member, "pipelines", {}, raising=False)
    monkeypatch.setattr(host._member, "leases", None, raising=False)
    monkeypatch.setattr(host._member, "routes", SimpleNamespace(from_source=lambda _: None, from_retry=lambda _: None), raising=False)
    consumer = a_log(monkeypatch, host, start, end, committed=5)
    monkeypatch.setattr(host._member, "_client", consumer, raising=False)
    partition = TopicPartition("orders", 0)
    old = host._member.lane(*partition, "source", 5)
    host._member.add_lanes(partition, (old,), from_commit=5)
    await fetching_of(host)._reposition(OffsetOutOfRangeError({partition: 5}))
    (lane,) = host._member.lanes[partition]
    assert (lane is old) == (begins is None)
    assert lane.watermark.commit == (5 if begins is None else begins)
    assert consumer.sought == [(partition, 5 if begins is None else begins)]
    await host._member.drain([partition], 1.0)
