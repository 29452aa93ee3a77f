"""The relay comes back from whatever its client does, begins nowhere on an answer that is none, and stops in bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, GroupAuthorizationFailedError, GroupLoadInProgressError, KafkaConnectionError
from tests.plugin.group.producers import Factory
from tests.plugin.lines import until
from tests.plugin.relay.client import Client, Cluster

from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.wire import Copy, retry_copy
from ackwise.plugin.client import closing as farewell
from ackwise.plugin.client.rawrecords import RawRecords
from ackwise.plugin.group import quarantine
from ackwise.plugin.group.publisher import KafkaPublisher
from ackwise.plugin.group.relaycounts import DelayStanding
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.relay import fetching as delayfetch
from ackwise.plugin.relay import member as delaymember
from ackwise.plugin.relay import relay as delay
from ackwise.plugin.relay.relay import DelayRelay
from ackwise.plugin.settings.hostsettings import HostSettings

LEVELS = DelayLevels("1s 10s")
NAMES = TopicNames("billing", LEVELS)
FIRST = TopicPartition(NAMES.delays[0], 0)

#: Seconds after which a test gives up.
PATIENCE = 20.0


class Relay:
    """A relay on a cluster in memory, whose due copies are published to a list."""

    def __init__(self, patch: pytest.MonkeyPatch, partitions: int = 1) -> None:
        self.cluster = Cluster(NAMES.delays, partitions)
        self.sent: list[Copy] = []
        self.harm_publishing: Callable[[], None] = lambda: None
        self.stop = asyncio.Event()
        self.relay = DelayRelay(HostSettings("localhost:1", "billing", commit_interval=0.0), NAMES, LEVELS, self)
        patch.setattr(self.relay, "_consumer", self.cluster.client)
        patch.setattr(delay, "_BEGIN_ANEW", (0.0, 0.0))
        patch.setattr(delaymember, "_ASK_AGAIN", 0.0)
        patch.setattr(delaymember, "_POLL", 0.01)

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        self.harm_publishing()
        self.sent += copies
        return [None] * len(copies)

    def put(self, *values: int, partition: TopicPartition = FIRST) -> None:
        """Copies that are due."""
        for value in values:
            origin = Origin("orders", partition.partition, value, 0)
            copy = retry_copy(
                Delivery(*origin, b"k", b"%d" % value, (), origin),
                topic=partition.topic, partition=partition.partition, group="billing", handler="bill", due=0, now_ms=0, reason="",
            )  # fmt: skip
            self.cluster.write(partition, copy.value, copy.headers, int(time.time() * 1000))

    @property
    def moved(self) -> list[int]:
        return [int(copy.value or b"") for copy in self.sent]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.relay.run(self.stop))
        try:
            yield task
        finally:
            self.stop.set()
            async with asyncio.timeout(PATIENCE):
                await task

    async def committed(self, offset: int, partition: TopicPartition = FIRST) -> None:
        """Wait until the relay has committed that."""
        await until(lambda: self.cluster.committed.get(partition) == offset)


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Relay:
    return Relay(monkeypatch)


def on(call: str, error: BaseException, times: int = 1) -> Callable[[str], None]:
    """A harm that raises `error` in the first `times` calls of that name."""
    left = times

    def harm(made: str) -> None:
        nonlocal left
        if made == call and left:
            left -= 1
            raise error

    return harm


@pytest.mark.parametrize("call", ["start", "getmany", "drained", "commit", "starts", "ends", "committed", "stop"])
async def test_whatever_a_call_of_the_client_ends_with_the_relay_goes_on(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    for error in (KafkaConnectionError("gone"), OSError("gone"), asyncio.CancelledError(), ValueError("odd")):
        relay = Relay(monkeypatch)
        relay.put(1, 2)
        relay.cluster.harm = on(call, error)
        async with relay.running() as task:
            await relay.committed(2)
            relay.put(3)
            await relay.committed(3)
            assert not task.done(), error
        assert set(relay.moved) == {1, 2, 3}
        assert all(client.is_closed for client in relay.cluster.clients), "no connection is left open"


async def test_a_client_that_is_cancelled_from_inside_while_it_closes_does_not_end_the_relay(relay: Relay) -> None:
    """aiokafka's `Fetcher.close` does so in an outage: a membership ends, and closing it leaks a cancellation."""
    outage = [on("getmany", KafkaConnectionError("gone"), 10), on("stop", asyncio.CancelledError(), 5)]  # two raise until one ends

    def harm(call: str) -> None:
        for each in outage:
            each(call)

    relay.cluster.harm = harm
    relay.put(1)
    async with relay.running() as task:
        await until(lambda: relay.moved == [1])
        assert not task.done()
    assert len(relay.cluster.clients) == 6


async def test_a_line_that_ends_though_nobody_told_it_to_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (asyncio.CancelledError(), ValueError("odd")):
        relay = Relay(monkeypatch)
        relay.put(1, 2)
        harm = on("publish", error)
        relay.harm_publishing = lambda harm=harm: harm("publish")  # type: ignore[misc]
        async with relay.running():
            await until(lambda: relay.moved == [1, 2])  # noqa: B023
        assert len(relay.cluster.clients) == 2, error


async def test_a_client_that_never_ends_does_not_keep_a_worker_from_stopping(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((delay, "_CANCEL"), (delaymember, "_LEAVE_TIMEOUT"), (delaymember, "_COMMIT_TIMEOUT"), (farewell, "_CLOSE")):
        monkeypatch.setattr(module, name, 0.01)
    client, calls = relay.cluster.client(), list[str]()

    async def never(*_: Any, **__: Any) -> None:
        calls.append("called")
        while True:  # it does not even heed a cancellation
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if released:
                    raise

    released = False
    monkeypatch.setattr(relay.relay, "_consumer", lambda: client)
    for name in ("commit", "stop", "close"):
        monkeypatch.setattr(client, name, never)
    relay.put(1)
    async with relay.running():
        await until(lambda: relay.moved == [1])
    assert len(calls) >= 3
    released = True
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_a_coordinator_that_is_loading_makes_nobody_publish_again_what_was_moved(relay: Relay) -> None:
    relay.put(1, 2, 3)
    relay.cluster.committed[FIRST] = 2
    relay.cluster.error_code = GroupLoadInProgressError.errno
    async with relay.running():
        await until(lambda: relay.cluster.asked["committed"] > 5)
        assert relay.moved == []
        relay.cluster.error_code = 0
        await relay.committed(3)
    assert relay.moved == [3]


async def test_an_answer_about_commits_from_before_a_rebalance_opens_no_line(relay: Relay) -> None:
    """The owner in between has committed more."""
    relay.put(1, 2, 3)
    rebalances = list[None]()

    def client() -> Client:
        made = relay.cluster.client()
        ask = made._send_req

        async def answered_late(request: Any) -> Any:
            answer = await ask(request)
            if not rebalances:
                rebalances.append(None)
                relay.cluster.committed[FIRST] = 2
                await made._listener.on_partitions_revoked(relay.cluster.partitions)
                await made._listener.on_partitions_assigned(relay.cluster.partitions)
            return answer

        made._send_req = answered_late  # type: ignore[method-assign]
        return made

    relay.relay._consumer = client  # type: ignore[assignment,method-assign]
    async with relay.running():
        await relay.committed(3)
    assert relay.moved == [3]


async def test_an_end_below_the_commit_is_looked_at_again_before_everything_is_moved_again(relay: Relay) -> None:
    relay.put(1, 2)
    relay.cluster.committed[FIRST] = 3  # and the new leader does not know of the third record yet
    relay.cluster.harm = lambda call: relay.put(3) if call == "ends" and relay.cluster.asked["ends"] == 3 else None
    async with relay.running():
        await until(lambda: bool(relay.cluster.clients and FIRST in relay.cluster.clients[0].positions))
        relay.put(4)
        await until(lambda: relay.moved == [4])


@pytest.mark.slow  # opens eighteen hundred partitions
async def test_opening_eighteen_hundred_partitions_takes_three_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One to the coordinator and two to each broker, after the callback: heartbeats are sent meanwhile."""
    levels = DelayLevels()
    names = TopicNames("billing", levels)
    cluster = Cluster(names.delays, 100)
    relay = DelayRelay(HostSettings("localhost:1", "billing"), names, levels, Relay(monkeypatch))
    monkeypatch.setattr(relay, "_consumer", cluster.client)
    committed, stop = asyncio.Event(), asyncio.Event()
    cluster.harm = lambda call: committed.set() if call == "commit" else None
    running = asyncio.create_task(relay.run(stop))
    async with asyncio.timeout(PATIENCE):
        await committed.wait()
    stop.set()
    await running
    assert (cluster.asked["committed"], cluster.asked["starts"], cluster.asked["ends"]) == (1, 1, 1)
    assert len(cluster.committed) == 1_800


SECOND = TopicPartition(NAMES.delays[0], 1)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Relay:
    """With two partitions; a search for an unreadable one, and the wait until it is asked again, take no time."""
    monkeypatch.setattr(delayfetch, "_ROUND", 0.0)
    monkeypatch.setattr(delayfetch, "_SEARCH", 0.2)
    monkeypatch.setattr(quarantine, "_BACK_OFF", (0.01, 0.01))
    return Relay(monkeypatch, partitions=2)


async def test_a_record_that_can_t_be_read_holds_its_own_partition_alone(two: Relay, caplog: pytest.LogCaptureFixture) -> None:
    two.put(1, 2, 3)
    two.put(11, 12, 13, partition=SECOND)
    two.cluster.unreadable[SECOND, 1] = CorruptRecordException("checksum")
    async with two.running():
        await two.committed(3)
        await two.committed(1, SECOND)
        await until(lambda: "a partition can't be read" in caplog.text)
        two.put(4)
        await two.committed(4)
        assert set(two.moved) == {1, 2, 3, 4, 11}, "what is before it is moved, and what is behind it waits"
        del two.cluster.unreadable[SECOND, 1]  # as by a mended replica, or a command that passes it
        await two.committed(3, SECOND)
    assert sorted(two.moved) == [1, 2, 3, 4, 11, 12, 13], "nothing is lost, and nothing moved twice"
    assert len(two.cluster.clients) == 1


async def test_a_header_name_that_is_no_utf_8_makes_a_dead_letter_and_holds_nobody(two: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    two.put(11, 12, 13, partition=SECOND)
    two.cluster.unreadable[SECOND, 1] = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a header name")

    async def read_raw(client: Any, partition: TopicPartition, position: int) -> RawRecords:
        assert (partition, position) == (SECOND, 1)
        record = two.cluster.logs[SECOND][1]
        record.headers = (("\udcff", b"theirs"), *record.headers)
        return RawRecords([record], 2)

    monkeypatch.setattr(delayfetch, "read_raw", read_raw)
    async with two.running():
        await two.committed(3, SECOND)
    assert [(copy.topic, copy.value) for copy in two.sent] == [(NAMES.retry, b"11"), (NAMES.dead_letter, b"12"), (NAMES.retry, b"13")]
    said = dict(two.sent[1].headers)
    assert (said["ackwise-reason"], "\udcff" in said) == (b"foreign-copy", False)


async def test_what_the_client_drops_without_a_word_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for puts_more, moved in ((True, [1, 2, 3]), (False, [1, 2])):
        monkeypatch.setattr(delayfetch, "_COMPARE", 1000.0 if puts_more else 0.0)
        relay, losses = Relay(monkeypatch), [True]
        relay.put(1, 2)

        def drops(relay: Relay = relay, losses: list[bool] = losses) -> bool:
            return bool(losses) and relay.cluster.clients[0].positions.get(FIRST) == 2 and losses.pop()

        relay.cluster.drops = drops
        async with relay.running():
            await until(lambda: not losses)  # noqa: B023
            if puts_more:
                relay.put(3)
            await until(lambda: len(relay.moved) == len(moved))  # noqa: B023
        assert relay.moved == moved


async def test_a_client_that_is_cancelled_from_inside_while_it_joins_is_replaced_at_once(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's start waits for an assignment then, for ever."""

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    def client() -> Client:
        made = relay.cluster.client()
        if len(relay.cluster.clients) == 1:
            monkeypatch.setattr(made, "start", never)
            made._coordination_task = asyncio.get_running_loop().create_future()
            made._coordination_task.cancel()
        return made

    monkeypatch.setattr(relay.relay, "_consumer", client)
    monkeypatch.setattr(delaymember, "_START_GRACE", 0.0)
    relay.put(1)
    async with relay.running():
        await until(lambda: relay.moved == [1])
    assert len(relay.cluster.clients) == 2


async def test_a_rebalance_in_the_middle_of_a_fetch_leaves_no_partition_paused_for_good(relay: Relay) -> None:
    """What is fetched then goes to the line of before, which nobody empties any more."""
    relay.put(*range(1200))
    rebalances = list[None]()

    def client() -> Client:
        made = relay.cluster.client()
        real = made.getmany

        async def getmany(*partitions: TopicPartition, **asked: Any) -> dict[TopicPartition, Any]:
            if FIRST in made.positions and not rebalances:
                rebalances.append(None)
                await made._listener.on_partitions_revoked(relay.cluster.partitions)
                made._paused.clear()
                await made._listener.on_partitions_assigned(relay.cluster.partitions)
            return await real(*partitions, **asked)

        made.getmany = getmany  # type: ignore[method-assign]
        return made

    relay.relay._consumer = client  # type: ignore[assignment,method-assign]
    async with relay.running():
        await relay.committed(1200)
    assert sorted(set(relay.moved)) == [*range(1200)]


async def test_a_relay_that_kafka_refuses_says_so_once_a_minute_and_moves_all_once_it_is_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for call in ("start", "getmany"):
        caplog.clear()
        relay = Relay(monkeypatch)
        relay.put(1, 2)
        relay.cluster.harm = on(call, GroupAuthorizationFailedError("billing.relay"), 20)
        async with relay.running():
            await relay.committed(2)
        assert caplog.text.count("Kafka refuses the delay relay, copies wait and nothing is lost until it lets it in") == 1
        assert "lost its broker" not in caplog.text


async def test_commits_of_the_relay_that_kafka_refuses_are_an_alarm_and_are_made_good(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.put(1, 2)
    relay.cluster.harm = on("commit", GroupAuthorizationFailedError("billing.relay"), 5)
    async with relay.running():
        await relay.committed(2)
    assert caplog.text.count("Kafka refuses the commits of the delay relay, it goes on and tries each again") == 1
    assert relay.moved == [1, 2]


async def test_nothing_is_committed_of_a_topic_that_is_gone(relay: Relay) -> None:
    """The client would repeat the commit until the topic is made again, and pass over the first records of that."""
    async with relay.running():
        await until(lambda: relay.cluster.clients and relay.cluster.clients[0].seeks)
        (client,) = relay.cluster.clients
        known, client.cluster.partitions_for_topic = client.cluster.partitions_for_topic, lambda topic: None
        relay.put(1, 2)
        await until(lambda: relay.moved == [1, 2])
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert relay.cluster.committed.get(FIRST) is None
        client.cluster.partitions_for_topic = known
        await relay.committed(2)


class Hops(Relay):
    """A relay whose copies arrive where they are published to, also those of which nobody is told so. `now` is the time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.now = time.time()
        self.is_silent = False
        self.relay._clock = lambda: self.now

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        await asyncio.sleep(0)
        for copy in copies:
            if copy.topic in NAMES.delays:
                self.cluster.write(TopicPartition(copy.topic, copy.partition), copy.value, copy.headers, int(self.now * 1000))
            else:
                self.sent.append(copy)
        return [PublishUnavailable("no answer") if self.is_silent else None for _ in copies]

    def put_due(self, value: int, after: float) -> None:
        """A copy on the last level, whose delay is over, which is due in so many seconds: it hops."""
        last, now_ms = TopicPartition(NAMES.delays[-1], 0), int(self.now * 1000)
        origin = Origin("orders", 0, value, 0)
        copy = retry_copy(
            Delivery(*origin, b"k", b"%d" % value, (), origin),
            topic=last.topic, partition=0, group="billing", handler="bill", due=now_ms + int(after * 1000), now_ms=now_ms, reason="",
        )  # fmt: skip
        self.cluster.write(last, copy.value, copy.headers, now_ms - 10_000)


async def test_an_outage_in_the_middle_of_a_hop_loses_no_copy_and_brings_none_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.relay.line._FIRST_WAIT", 0.001)
    relay, last = Hops(monkeypatch), TopicPartition(NAMES.delays[-1], 0)
    relay.relay._longest_rest = 0.01  # the time that is looked at is that of the test
    for value in range(5):
        relay.put_due(value, after=4.0)
    relay.is_silent = True  # the broker takes what it is given, and goes away before it says so
    async with relay.running():
        await until(lambda: len(relay.cluster.logs[FIRST]) >= 5)
        relay.cluster.harm = on("getmany", KafkaConnectionError("gone"), 6)  # two raise until a membership ends
        await until(lambda: len(relay.cluster.clients) > 3)
        assert not relay.cluster.committed.get(last)
        relay.is_silent = False
        await relay.committed(5, last)
        assert relay.moved == []
        relay.now += 5.0
        await until(lambda: relay.cluster.committed.get(FIRST) == len(relay.cluster.logs[FIRST]))
    assert set(relay.moved) == {*range(5)}


async def test_a_relay_whose_producer_is_gone_for_good_goes_on_with_another(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> None:
    monkeypatch.setattr("ackwise.plugin.relay.line._FIRST_WAIT", 0.001)
    factory = Factory()
    monkeypatch.setattr("ackwise.plugin.group.publisher.AIOKafkaProducer", factory)
    publisher = KafkaPublisher(HostSettings("localhost:1", "billing"))
    await publisher.start()
    relay.relay._publisher = publisher
    relay.put(1, 2)
    async with relay.running():
        await relay.committed(2)
        factory.made[0]._sender.sender_task.cancel()
        factory.raise_once("start", KafkaConnectionError("gone"))
        relay.put(3, 4)
        await relay.committed(4)
    await publisher.stop()
    assert [producer.sent for producer in factory.made if producer.sent] == [[b"1", b"2"], [b"3", b"4"]]
    assert len(relay.cluster.clients) == 1, "no membership ended for it"


async def test_a_relay_that_is_cancelled_while_its_membership_does_not_end_closes_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, asked_to_end, may_end, closed = (asyncio.Event() for _ in range(4))

    class Stubborn:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def relay(self) -> None:
            begun.set()
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    asked_to_end.set()

        async def close(self) -> None:
            closed.set()

        def standing(self) -> list[DelayStanding]:
            return []

    monkeypatch.setattr(delay, "DelayMember", Stubborn)
    relay = Relay(monkeypatch)
    running = asyncio.create_task(relay.relay.run(relay.stop))
    await begun.wait()
    relay.stop.set()
    await asked_to_end.wait()
    running.cancel()
    await asyncio.wait({running})
    may_end.set()
    assert closed.is_set()


async def test_a_delay_topic_that_is_made_again_is_read_from_its_start_though_it_has_grown_past_the_commit(relay: Relay) -> None:
    relay.put(*range(3))
    async with relay.running():
        await relay.committed(3)
    relay.stop.clear()
    relay.cluster.topic_id, relay.cluster.logs[FIRST][:] = 2, []
    relay.put(*range(10, 15))
    async with relay.running():
        await relay.committed(5)
    assert relay.moved == [*range(3), *range(10, 15)]


async def test_a_delay_topic_that_is_made_again_while_nothing_is_fetched_of_it_is_read_from_its_start(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delaymember, "_IDS_EVERY", 0.01)
    relay.put(*range(3))
    async with relay.running():
        await relay.committed(3)
        relay.cluster.topic_id, relay.cluster.logs[FIRST][:] = 2, []
        relay.put(*range(10, 15))
        await until(lambda: set(range(10, 15)) <= {*relay.moved})
