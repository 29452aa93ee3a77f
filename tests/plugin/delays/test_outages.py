"""The relay comes back from whatever its client does, starts nowhere on an answer that is none, and stops in bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    BrokerResponseError,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
)
from tests.fakes import Sink
from tests.leaderless import Leaderless
from tests.waiting import PATIENCE, queued, until

from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.outgoing import Outgoing
from ackwise.middleware.message.wire import VERSION, retry_copy
from ackwise.middleware.policies.delaytopic import send_later, wait_of
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.delays import delayrelay
from ackwise.plugin.delays.cancellations import CANCELLED, CancelPartition
from ackwise.plugin.delays.delayrelay import DelayRelay
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.plugin.topics.topicnames import TopicNames
from ackwise.testing import MemoryKafka
from ackwise.testing.kafka.partition import PartitionLog

pytestmark = pytest.mark.slow  # a relay starts, is disturbed and ends in each

NAMES = TopicNames("billing")

#: A value of 4,000 bytes, which is far less once it is compressed.
BIG = int("1" * 4000)

#: The partitions of the rungs of 1 s, 5 s and 10 s.
ONE, FIVE, TEN = 3, 10, 1


class Scene:
    """A relay on a cluster in memory. `ahead`: seconds by which its clock is ahead of the machine's."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.ahead = 0.0
        self.stop = asyncio.Event()
        self.sink = Sink()
        client_options = {"metadata_max_age_ms": 500}
        self.settings = HostSettings(kafka.bootstrap, "billing", commit_interval=0.05, session_timeout=6.0, client_options=client_options)
        self.relay = DelayRelay(self.settings, NAMES, sink=self.sink, clock=lambda: time.time() + self.ahead)

    def put(self, *values: int, rung: int = ONE, due: float = 0.0, appended: float | None = None, version: int = VERSION) -> None:
        """Copies whose wait on their rung is over, unless they were `appended` (epoch seconds) later."""
        for value in values:
            origin = Origin("orders", value % 2, value, 0)
            copy = retry_copy(
                Delivery(*origin, b"k", b"%d" % value, (), origin), topic=NAMES.delay, partition=0, group="billing", handler="bill",
                due=round(due * 1000), now_ms=0, reason="",
            )  # fmt: skip
            at = time.time() + self.ahead - wait_of(rung) - 1 if appended is None else appended
            headers = [(name, b"%d" % version if name == "ackwise-version" else value) for name, value in copy.headers]
            self.kafka.produce(NAMES.delay, copy.value, key=copy.key, partition=rung, headers=headers, timestamp=at)

    def put_send(self, target: str, value: int, *, due: float, rung: int = ONE + 13) -> None:
        """A message for `target` whose wait on its rung is over."""
        message = Outgoing(target, b"%d" % value, b"k", message_id=f"id-{value}")
        sent = send_later(message, round(due * 1000), now_ms=0, group="billing", topic=NAMES.delay, clock_skew=0.0)
        at = time.time() + self.ahead - wait_of(rung) - 1
        self.kafka.produce(NAMES.delay, sent.value, key=sent.key, partition=rung, headers=sent.sent_headers, timestamp=at)

    def late(self, topic: str, due: Callable[[int], float]) -> list[float]:
        """Seconds by which what came to `topic` was later than it was due, the earliest first."""
        return sorted(record.timestamp / 1000 - due(int(record.value or b"")) for record in self.kafka.records(topic))

    @property
    def moved(self) -> list[int]:
        return [*self.moved_to(0), *self.moved_to(1)]

    def moved_to(self, partition: int) -> list[int]:
        return [int(record.value or b"") for record in self.kafka.records(NAMES.retry, partition)]

    def committed(self, rung: int = ONE) -> int | None:
        found = self.kafka.committed("billing.relay").get((NAMES.delay, rung))
        return None if found is None else found.offset

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.relay.run(self.stop))
        try:
            yield task
        finally:
            self.stop.set()
            async with asyncio.timeout(PATIENCE):
                await task


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(delayrelay, "_BEGIN_ANEW", (0.01, 0.05))
    monkeypatch.setattr("ackwise.plugin.consumer.fetching._FETCH_AGAIN", 0.01)
    async with MemoryKafka() as kafka:
        kafka.create_topic(NAMES.delay, partitions=27)
        kafka.create_topic(NAMES.retry, partitions=2, message_timestamp_type="LogAppendTime")
        kafka.create_topic(NAMES.dead_letter, partitions=2)
        yield Scene(kafka)


@pytest.mark.parametrize(
    "api", ["Fetch", "OffsetCommit", "ListOffsets", "OffsetFetch", "JoinGroup", "SyncGroup", "Heartbeat", "Produce", "LeaveGroup"]
)
async def test_whatever_becomes_of_a_request_the_relay_goes_on(scene: Scene, api: str) -> None:
    scene.put(1, 2)
    faults: list[Callable[[], object]] = [
        lambda: scene.kafka.faults.lose_request(api),
        lambda: scene.kafka.faults.lose_answer(api),
        lambda: scene.kafka.faults.refuse(api, _refusal_of(api)),
    ]
    async with scene.running() as task:
        for number, begin in enumerate(faults, 3):
            begin()
            scene.put(number)
            await until(lambda: set(scene.moved) == {*range(1, number + 1)})  # noqa: B023
            await until(lambda: scene.committed() == number)  # noqa: B023
            assert not task.done()
    assert set(scene.moved) == {1, 2, 3, 4, 5}


def _refusal_of(api: str) -> type[BrokerResponseError]:
    if api in ("Fetch", "ListOffsets"):
        return NotLeaderForPartitionError
    return LeaderNotAvailableError if api == "Produce" else GroupCoordinatorNotAvailableError


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("odd"), OSError("gone"), KafkaConnectionError("gone")], ids=repr)
async def test_whatever_ends_a_membership_another_one_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    poll, left = Polling.poll, [error]

    async def raising(self: Any) -> None:
        if left:
            raise left.pop()
        await poll(self)

    monkeypatch.setattr(Polling, "poll", raising)
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: scene.committed() == 2)
    assert scene.moved == [1, 2] or sorted(scene.moved) == [1, 2]


async def test_a_pipeline_that_raises_begins_anew_and_loses_nothing(scene: Scene) -> None:
    publish, left = scene.relay._publisher.publish, [ValueError("odd")]

    async def raising(copies: Any) -> Any:
        if left:
            raise left.pop()
        return await publish(copies)

    scene.relay._publisher.publish = raising  # type: ignore[method-assign]
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: scene.committed() == 2)
    assert sorted(scene.moved) == [1, 2]


async def test_a_client_that_never_ends_does_not_keep_a_worker_from_stopping(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_END", "_LEAVE"):
        monkeypatch.setattr(delayrelay, name, 0.05)
    monkeypatch.setattr("ackwise.plugin.kafka.clients._CLOSE", 0.05)
    is_released, calls = False, list[str]()

    async def never(*_: Any, **__: Any) -> None:
        calls.append("called")
        while True:  # it does not even heed a cancellation
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            if is_released:
                raise asyncio.CancelledError

    scene.put(1)
    consumer = scene.relay._consumer()
    monkeypatch.setattr(scene.relay, "_consumer", lambda: consumer)
    async with scene.running():
        await until(lambda: scene.moved == [1])
        reading: Any = scene.relay._cancellations._reader._admin  # type: ignore[attr-defined]  # what reads partition 0
        for kind, name in ((AIOKafkaConsumer, "commit"), (AIOKafkaConsumer, "stop"), (AIOKafkaAdminClient, "close")):
            monkeypatch.setattr(kind, name, never)
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    is_released = True
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if "never" in repr(task.get_coro()):
            task.cancel()
    monkeypatch.undo()
    await consumer.stop()
    await reading.close()


async def test_a_coordinator_that_is_loading_makes_nobody_publish_again_what_was_moved(scene: Scene) -> None:
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: scene.committed() == 2)
    scene.put(3)
    scene.stop.clear()
    loading = scene.kafka.faults.refuse("OffsetFetch", GroupLoadInProgressError, times=None)
    async with scene.running():
        await until(lambda: loading.met > 3)
        assert len(scene.moved) == 2
        loading.end()
        await until(lambda: scene.committed() == 3)
    assert sorted(scene.moved) == [1, 2, 3]


async def test_a_relay_that_kafka_refuses_says_so_once_a_minute_and_moves_all_once_it_is_let_in(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.put(1, 2)
    refused = scene.kafka.faults.refuse("JoinGroup", GroupAuthorizationFailedError, times=None)
    async with scene.running():
        await until(lambda: refused.met > 5)
        refused.end()
        await until(lambda: scene.committed() == 2)
    assert caplog.text.count("Kafka refused the delay relay") == 1
    assert "lost the broker" not in caplog.text


async def test_commits_of_the_relay_that_kafka_refuses_are_an_alarm_and_are_made_good(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.put(1, 2)
    refused = scene.kafka.faults.refuse("OffsetCommit", GroupAuthorizationFailedError, times=None)
    async with scene.running():
        await until(lambda: refused.met > 3 and len(scene.moved) == 2)
        refused.end()
        await until(lambda: scene.committed() == 2)
    assert caplog.text.count("Kafka refused a commit") == 1
    assert "group=billing.relay" in caplog.text
    assert sorted(scene.moved) == [1, 2]


async def test_an_outage_in_the_middle_of_a_hop_loses_no_copy_and_brings_none_early(scene: Scene) -> None:
    """The broker takes what it is given, and goes away before it says so."""
    due = time.time() + 3.0
    scene.put(*range(5), rung=TEN, due=due)
    lost = scene.kafka.faults.lose_answer("Produce", times=3, topic=NAMES.delay)
    async with scene.running():
        await until(lambda: lost.met == 3)
        await until(lambda: {*scene.moved} == {*range(5)})
    assert all(record.timestamp >= due * 1000 for record in scene.kafka.records(NAMES.retry))


async def test_a_relay_whose_producer_is_gone_for_good_goes_on_with_another(scene: Scene) -> None:
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: scene.committed() == 2)
        producer: Any = scene.relay._publisher._producer
        producer._sender.sender_task.cancel()
        scene.put(3, 4)
        await until(lambda: scene.committed() == 4)
    assert sorted(scene.moved) == [1, 2, 3, 4]


async def test_a_delay_topic_that_is_made_again_is_read_from_its_start_though_it_has_grown_past_the_commit(scene: Scene) -> None:
    scene.put(*range(3))
    async with scene.running():
        await until(lambda: scene.committed() == 3)
    scene.stop.clear()
    scene.kafka.delete_topic(NAMES.delay)
    scene.kafka.create_topic(NAMES.delay, partitions=27)
    scene.put(*range(10, 15))
    async with scene.running():
        await until(lambda: scene.committed() == 5)
    assert sorted(scene.moved) == [*range(3), *range(10, 15)]


async def test_nothing_is_committed_of_a_topic_that_is_gone(scene: Scene) -> None:
    """The client would repeat the commit until the topic is made again, and pass over the first records of that."""
    consumer: Any = scene.relay._consumer()
    scene.relay._consumer = lambda: consumer  # type: ignore[method-assign]
    held = scene.kafka.faults.hold("Produce", topic=NAMES.retry)
    scene.put(1, 2, 3)
    async with scene.running():
        await until(lambda: held.met)
        scene.kafka.delete_topic(NAMES.delay)
        await until(lambda: consumer._client.cluster.partitions_for_topic(NAMES.delay) is None)
        held.end()
        await until(lambda: len(scene.moved) == 3)
        await asyncio.sleep(0.3)  # several times the interval of commits
        scene.kafka.create_topic(NAMES.delay, partitions=27)
        scene.put(*range(10, 15))
        await until(lambda: {*scene.moved} == {1, 2, 3, *range(10, 15)})


async def test_a_partition_that_is_added_is_read_within_seconds(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayrelay, "_METADATA_AGE", 500)
    scene.kafka.delete_topic(NAMES.delay)
    scene.kafka.create_topic(NAMES.delay, partitions=4)
    scene.put(1)
    async with scene.running():
        await until(lambda: scene.committed() == 1)
        scene.kafka._cluster.topic(NAMES.delay).partitions += [PartitionLog() for _ in range(10)]
        scene.put(2, rung=FIVE)
        await until(lambda: scene.committed(FIVE) == 1)
    assert scene.moved == [1, 2] or sorted(scene.moved) == [1, 2]
    assert scene.committed() == 1, "a commit stays valid when partitions are added"


@pytest.mark.slow  # a partition is silent for five seconds
async def test_one_rung_without_a_leader_keeps_no_copy_from_hopping(scene: Scene) -> None:
    due, before = time.time() + 10.4, queued()
    scene.put(1, 2, rung=FIVE, due=due)
    Leaderless(scene.kafka, (NAMES.delay, TEN))
    async with scene.running():
        await until(lambda: sorted(scene.moved) == [1, 2])
    late = scene.late(NAMES.retry, lambda _: due)
    assert late[0] >= 0
    assert late[-1] <= 1.0 + queued() - before


@pytest.mark.slow  # a partition is silent for five seconds
async def test_a_rung_without_a_leader_a_copy_of_a_newer_version_and_a_missing_target_make_nothing_else_late(scene: Scene) -> None:
    scene.kafka.create_topic("reminders", message_timestamp_type="LogAppendTime")
    async with scene.running():
        await until(lambda: scene.committed(FIVE) == scene.committed(FIVE + 13) == 0)
        Leaderless(scene.kafka, (NAMES.delay, FIVE), (NAMES.delay, FIVE + 13))
        now, before = time.time(), queued()
        soon, later = now + 4.0, now + 8.0
        for rung in (ONE, TEN):
            scene.put(*range(10 * rung, 10 * rung + 10), rung=rung, due=soon)
            scene.put(100 * rung, rung=rung, due=0.0, version=VERSION + 1)
            scene.put(*range(200 + 10 * rung, 210 + 10 * rung), rung=rung, due=later)  # by the rung without a leader
        scene.put_send("nowhere", 1, due=now)
        scene.put_send("reminders", 2, due=soon)
        scene.put_send("reminders", 200, due=later)
        await until(lambda: len(scene.moved) >= 40 and len(scene.kafka.records("reminders")) == 2)
    late = [each for topic in (NAMES.retry, "reminders") for each in scene.late(topic, lambda value: later if value >= 200 else soon)]
    assert late[0] >= 0
    assert late[-1] <= 1.0 + queued() - before


@pytest.mark.slow  # looks for a topic that is missing
async def test_while_the_retry_topic_is_missing_delayed_sends_and_hops_are_in_time(scene: Scene) -> None:
    scene.kafka.create_topic("reminders", message_timestamp_type="LogAppendTime")
    scene.kafka.delete_topic(NAMES.retry)
    async with scene.running():
        await until(lambda: scene.committed() == scene.committed(ONE + 13) == 0)
        due, before = time.time() + 3.0, queued()
        scene.put(1, 2, due=0.0)
        scene.put(3, due=due + 60.0)
        scene.put_send("reminders", 2, due=due)
        await until(lambda: scene.kafka.records("reminders") and scene.kafka.records(NAMES.delay, TEN + 1))
        assert 0 <= scene.late("reminders", lambda _: due)[0] <= 1.0 + queued() - before
        scene.kafka.create_topic(NAMES.retry, partitions=2)
        await until(lambda: sorted(scene.moved) == [1, 2])


@pytest.mark.slow  # what can't be moved is held for ten seconds
async def test_one_retry_partition_without_a_leader_holds_none_of_the_others(scene: Scene) -> None:
    leaderless = Leaderless(scene.kafka, (NAMES.retry, 1))
    scene.put(*range(6))
    async with scene.running():
        await until(lambda: scene.moved_to(0) == [0, 2, 4])
        due, before = time.time(), queued()
        scene.put(8, due=due)
        await until(lambda: 8 in scene.moved_to(0))
        assert scene.late(NAMES.retry, lambda _: due)[-1] <= 1.0 + queued() - before
        await until(lambda: (scene.committed() or 0) >= 7)
        leaderless.places.clear()
        scene.ahead = 1_000.0
        await until(lambda: {*scene.moved} == {*range(6), 8})


@pytest.mark.slow  # the drain waits for the copy that is held
async def test_the_next_owner_of_a_rung_moves_nothing_again_that_went_past_a_copy_which_is_held(scene: Scene) -> None:
    leaderless = Leaderless(scene.kafka, (NAMES.retry, 1))
    scene.put(*range(6))
    async with scene.running():
        await until(lambda: scene.moved_to(0) == [0, 2, 4])
        await until(lambda: scene.committed() == 1)
    leaderless.places.clear()
    scene.relay, scene.stop = DelayRelay(scene.settings, NAMES, sink=scene.sink), asyncio.Event()
    async with scene.running():
        await until(lambda: scene.committed() == 6)
    assert scene.moved_to(0) == [0, 2, 4]
    assert {*scene.moved_to(1)} == {1, 3, 5}


async def test_without_partition_0_nothing_moves_with_an_alarm_and_nothing_is_lost(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    leaderless = Leaderless(scene.kafka, (NAMES.delay, 0))
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: "cancellations could not be read" in caplog.text)
        assert scene.relay._counts.is_halted
        await until(lambda: scene.committed() == 0)
        assert scene.moved == []
        leaderless.places.clear()
        await until(lambda: scene.committed() == 2)
        assert not scene.relay._counts.is_halted
    assert scene.moved == [2, 1]


async def test_while_partition_0_raises_what_nobody_expects_nothing_moves_and_then_all_does(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def read(_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(CancelPartition, "read", read)
    scene.put(1, 2)
    async with scene.running():
        await until(lambda: "cancellations could not be read" in caplog.text)
        assert scene.relay._counts.is_halted
        assert scene.moved == []
        monkeypatch.undo()
        await until(lambda: scene.committed() == 2)
    assert {*scene.moved} == {1, 2}


async def test_a_copy_that_fits_once_it_is_compressed_is_moved(scene: Scene) -> None:
    scene.relay = DelayRelay(replace(scene.settings, producer_options={"compression_type": "gzip"}), NAMES)
    scene.kafka._cluster.topics[NAMES.retry].configs["max.message.bytes"] = "2000"
    scene.put(BIG, 2)
    async with scene.running():
        await until(lambda: scene.committed() == 2)
    assert (sorted(scene.moved), scene.kafka.records(NAMES.dead_letter)) == ([2, BIG], [])


async def test_a_relay_that_was_halted_and_has_nothing_to_move_any_more_finds_that_cancellations_can_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackwise.plugin.delays.delayrelay._READ_AGAIN", 0.01)
    async with scene.running():
        scene.relay._counts.is_halted = True
        await until(lambda: not scene.relay._counts.is_halted)


async def test_cancellations_that_the_log_does_not_have_any_more_are_forgotten(scene: Scene) -> None:
    cancelled = CancelPartition(scene.settings, NAMES.delay)
    for key in (b"1", b"2", b"3"):
        scene.kafka.produce(NAMES.delay, CANCELLED, key=key, partition=0)
    try:
        await cancelled.read()
        assert cancelled.keys == {b"1", b"2", b"3"}
        scene.kafka._cluster.log(NAMES.delay, 0).trim(2)
        await cancelled.read()
        assert cancelled.keys == {b"3"}
    finally:
        await cancelled.close()
