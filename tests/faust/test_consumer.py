"""What Ackwise changes in Faust's consumer and producer: who may fetch, who takes partitions on, and what counts as sent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError, KafkaError, KafkaStorageError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Producer
from faust.types import TP
from faust.types.tuples import FutureMessage
from mode.threads import MethodQueue
from tests.plugin.kafka.broker import Broker
from tests.waiting import PATIENCE

from ackwise.middleware.errors import AckwiseError, Unavailable
from ackwise.plugin.consumer.fetching import Fetched
from ackwise.plugin.faust.faustconsumer import ReliableConsumer, ReliableProducer
from ackwise.plugin.faust.fausthost import _Client
from ackwise.plugin.faust.fetchthread import ReliableThread
from ackwise.plugin.kafka import brokeroffsets
from ackwise.plugin.kafka.brokeroffsets import Asked, Committed, Standing

ORDERS = TopicPartition("orders", 0)


def client_of(**fields: Any) -> SimpleNamespace:
    """What is asked of aiokafka's consumer, which has nothing and stands nowhere."""
    made = {
        "_client": SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda partition: 1)),
        "_closed": False,
        "_coordinator": SimpleNamespace(),
        "_fetcher": SimpleNamespace(_fetch_task=SimpleNamespace(done=lambda: False), _isolation_level=0, _records=OrderedDict()),
        "_subscription": SimpleNamespace(subscription=None),
        "assignment": set,
    }
    return SimpleNamespace(**{**made, **fields})


def at(position: SimpleNamespace) -> SimpleNamespace:
    """The subscription of a client that stands there with all partitions."""
    return SimpleNamespace(subscription=SimpleNamespace(assignment=SimpleNamespace(state_value=lambda partition: position)))


class Stand:
    """A lane, as far as it is asked where reading of its partition stands."""

    is_stopping = False
    unreadable: str | None = None

    def __init__(self, position: int, left_at: int | None = None) -> None:
        self.position = position
        self.left_at = left_at


def thread_of(**lanes: Stand) -> Any:
    thread: Any = ReliableThread.__new__(ReliableThread)
    reading = SimpleNamespace(lanes={TopicPartition(topic, 0): (lane,) for topic, lane in lanes.items()}, awaits=lambda partition: False)
    thread.consumer = SimpleNamespace(flow_active=True)
    thread.app = SimpleNamespace(ackwise=reading, conf=SimpleNamespace(id="billing"))
    return thread


async def test_no_fetch_begins_beside_one_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answered = [], asyncio.Event()

    async def fetch(self: object, consumer: object, partitions: object, **_: object) -> dict[Any, Any]:
        begun.append(partitions)
        await answered.wait()
        return {}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    thread, client = thread_of(), client_of()
    given_up = asyncio.create_task(thread._fetch_records(client, {("before", 0)}))
    await asyncio.sleep(0)
    beside = await thread._fetch_records(client, {("after", 0)})
    assert (beside, beside.lanes, begun) == ({}, {}, [{("before", 0)}])
    answered.set()
    await given_up
    await thread._fetch_records(client, {("after", 0)})
    assert begun == [{("before", 0)}, {("after", 0)}]


@pytest.mark.parametrize(("start", "is_lost"), [(5, True), (0, False)], ids=["the-log-was-cut", "only-markers-were-there"])
async def test_a_position_that_moved_without_a_record_is_looked_at(monkeypatch: pytest.MonkeyPatch, start: int, is_lost: bool) -> None:
    state = SimpleNamespace(position=3, has_valid_position=True)

    async def fetch(self: object, consumer: object, partitions: object, **_: object) -> dict[Any, Any]:
        state.position = 9
        return {}

    async def ask(client: object, partitions: list[TopicPartition], **_: object) -> Asked:
        return Asked(dict.fromkeys(partitions, Standing(None, start, 9)), {})

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", ask)
    lane = Stand(3, left_at=3)
    fetched = await thread_of(orders=lane)._fetch_records(client_of(assignment=lambda: {ORDERS}, _subscription=at(state)), {ORDERS})
    assert fetched.lost == ([ORDERS] if is_lost else [])
    assert (fetched.lanes, fetched.left_at[ORDERS]) == ({} if is_lost else {ORDERS: lane}, 9)


async def test_a_broker_that_does_not_say_what_a_log_holds_is_asked_again_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calm, sought, asked = TopicPartition("calm", 0), [], []

    async def fetch(self: object, consumer: object, partitions: set[Any], **_: object) -> dict[Any, Any]:
        asked.append(partitions)
        return {}

    answers = iter([KafkaConnectionError(), None])

    async def ask(client: object, partitions: list[TopicPartition], **_: object) -> Asked:
        if (error := next(answers)) is not None:
            return Asked({}, dict.fromkeys(partitions, error))
        return Asked(dict.fromkeys(partitions, Standing(None, 3, 3)), {})

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", ask)
    lanes = {"orders": Stand(3), "calm": Stand(3, left_at=3)}
    thread, now = thread_of(**lanes), [100.0]
    thread.clock = lambda: now[0]
    client = client_of(
        assignment=lambda: {ORDERS, calm},
        seek=lambda partition, offset: sought.append((partition, offset)),
        _subscription=at(SimpleNamespace(position=3, has_valid_position=True)),
    )
    for _ in range(2):  # it is not asked again at once
        unanswered = await thread._fetch_records(client, {ORDERS, calm})
        assert (unanswered.lanes, unanswered.left_at, sought) == ({calm: lanes["calm"]}, {calm: 3}, [])
    now[0] += 1.0
    assert (await thread._fetch_records(client, {ORDERS, calm})).lanes.keys() == {ORDERS, calm}
    assert sought == [(ORDERS, 3)]
    assert asked == [{calm}, {calm}, {ORDERS, calm}]
    assert caplog.text.count("log offsets could not be read") == 1


async def test_a_broker_that_is_slow_to_say_what_a_log_holds_keeps_the_others_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    async def reaches(client: object, partitions: list[TopicPartition], **_: object) -> Any:
        now[0] += 5.0
        return {}, dict.fromkeys(partitions, KafkaConnectionError())

    monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", reaches)
    lane: Any = Stand(3)
    thread = thread_of(orders=lane)
    thread.clock = lambda: now[0]
    fetching = thread.source_of(client_of()).fetching
    assert await fetching._look_for({ORDERS: lane}, Fetched()) == set()
    assert fetching._look_at[lane] == 110.0


async def test_a_position_behind_an_open_transaction_is_in_the_log_and_waits_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sought, asked = [], 0

    async def fetch(self: object, consumer: object, partitions: object, **_: object) -> dict[Any, Any]:
        return {}

    async def ends(broker: int, request: Any) -> Any:
        nonlocal asked
        asked += 1
        ((topic, [(number, time)]),) = request._topics
        offset = 0 if time == brokeroffsets.EARLIEST else 5 if request._isolation_level else 9
        return SimpleNamespace(topics=[(topic, [(number, 0, -1, offset)])])

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    lane = Stand(7)
    client = client_of(
        assignment=lambda: {ORDERS},
        seek=lambda partition, offset: sought.append((partition, offset)),
        _subscription=at(SimpleNamespace(position=7, has_valid_position=True)),
    )
    client._fetcher._isolation_level = 1
    client._client.send, client._client.force_metadata_update = ends, lambda: None
    thread = thread_of(orders=lane)
    for _ in range(3):
        fetched = await thread._fetch_records(client, {ORDERS})
        assert (fetched.lost, fetched.lanes) == ([], {ORDERS: lane})
    assert (sought, asked) == ([(ORDERS, 7)], 2)


async def test_a_partition_that_was_served_waits_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, calm = TopicPartition("orders", 0), TopicPartition("orders", 1)

    async def fetch(self: object, consumer: object, partitions: object, **_: object) -> dict[Any, Any]:
        return {busy: [SimpleNamespace(offset=0)]}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    client = client_of()
    client._fetcher._records = OrderedDict({busy: "more of it", calm: "a few"})
    await thread_of()._fetch_records(client, {busy, calm})
    assert list(client._fetcher._records) == [calm, busy]


async def test_a_poll_takes_no_more_than_lanes_have_room_for_and_what_a_table_recovers_from_has_no_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes, asked = TopicPartition("shop-stock-changelog", 0), list[int | None]()

    async def fetch(self: object, consumer: object, partitions: object, *, timeout: object, max_records: int | None) -> dict[Any, Any]:
        asked.append(max_records)
        return {}

    monkeypatch.setattr(AIOKafkaConsumerThread, "_fetch_records", fetch)
    lane = Stand(0, left_at=0)
    client = client_of(assignment=lambda: {ORDERS, changes}, _subscription=at(SimpleNamespace(position=0, has_valid_position=True)))
    for polled, configured in ((ORDERS, None), (ORDERS, 50), (changes, None)):
        await thread_of(orders=lane)._fetch_records(client, {polled}, timeout=0.0, max_records=configured)
    assert asked == [500, 50, None]


def asks_its_thread(thread: Any) -> Any:
    """`thread`, which calls at once what it is told to call."""

    async def call_thread(call: Any, *args: Any) -> Any:
        return await call(*args)

    thread.call_thread = call_thread
    return thread


async def test_faust_seeks_with_one_request_and_asks_nothing_of_what_ackwise_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [TopicPartition("orders", number) for number in range(121)]
    theirs = [TopicPartition("shop-changelog", number) for number in range(121)]
    waits = TopicPartition("paid", 0)
    asked, sought = [], []

    async def fetch_committed(coordinator: object, group: str, partitions: list[TopicPartition]) -> dict[Any, Any]:
        asked.append(partitions)
        return {**dict.fromkeys(partitions), theirs[0]: Committed(7, "")}

    monkeypatch.setattr(brokeroffsets, "_fetch_committed", fetch_committed)
    thread = asks_its_thread(thread_of())
    thread.app.ackwise.lanes = {partition: (Stand(5),) for partition in mine}
    thread.app.ackwise.awaits = lambda partition: partition == waits
    thread._consumer = client_of(
        assignment=lambda: [*mine, *theirs, waits],
        seek=lambda partition, offset: sought.append((partition, offset)),
    )
    assert await thread.seek_to_committed() == {**dict.fromkeys(mine, 5), **dict.fromkeys(theirs), theirs[0]: 7, waits: None}
    assert (asked, sought) == ([theirs], [(theirs[0], 7)])


async def test_faust_begins_nowhere_on_an_answer_of_the_coordinator_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = TopicPartition("shop-leader", 0)
    answers: list[dict[Any, Any]] = [{}, {there: KafkaStorageError()}, {there: Committed(7, "")}]

    async def fetch_committed(*_: object) -> dict[Any, Any]:
        return answers.pop(0)

    monkeypatch.setattr(brokeroffsets, "_fetch_committed", fetch_committed)
    monkeypatch.setattr("ackwise.plugin.faust.fetchthread._LOOK", 0.0)
    thread = asks_its_thread(thread_of())
    thread.app.ackwise.awaits = lambda partition: False
    thread._consumer = client_of(assignment=lambda: [there], seek=lambda partition, offset: None)
    assert await thread.seek_to_committed() == {there: 7}
    assert caplog.text.count("offsets for Faust could not be read") == 1


async def test_a_table_waits_until_the_end_of_each_of_its_changelogs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [TP("shop-changelog", number) for number in range(2)]
    answers: list[Any] = [{}, {changes[0]: 5}, KafkaStorageError(), {changes[0]: 5, changes[1]: 9}]

    async def ends(broker: int, request: Any) -> Any:
        if isinstance(answer := answers.pop(0), KafkaStorageError):
            raise answer
        return SimpleNamespace(topics=[(topic, [(number, 0, -1, offset)]) for (topic, number), offset in answer.items()])

    monkeypatch.setattr("ackwise.plugin.faust.fetchthread._LOOK", 0.0)
    thread = asks_its_thread(thread_of())
    thread._consumer = client_of()
    thread._consumer._client.send, thread._consumer._client.force_metadata_update = ends, lambda: None
    assert await thread.highwaters(*changes) == {changes[0]: 5, changes[1]: 9}
    assert answers == []


async def test_a_look_at_logs_leaves_out_what_nobody_leads_and_holds_up_the_thread_for_none() -> None:
    leads, leaderless = (TopicPartition("orders", number) for number in range(2))

    async def ends(broker: int, request: Any) -> Any:
        return SimpleNamespace(topics=[(topic, [(number, 0, -1, 9) for number, _ in parts]) for topic, parts in request._topics])

    client = client_of()
    client._client.send, client._client.force_metadata_update = ends, lambda: None
    client._client.cluster.leader_for_partition = {leads: 0, leaderless: -1}.__getitem__

    async def call(ask: Any, *args: Any) -> Any:
        return await ask(client, *args)

    looking = _Client("billing", cast(Any, SimpleNamespace(call=call)))
    assert await looking.end_offsets([leads, leaderless]) == await looking.beginning_offsets([leads, leaderless]) == {leads: 9}


def hears(client: SimpleNamespace, errors: list[KafkaError]) -> Any:
    """A thread whose client has `errors` to tell."""

    def check() -> None:
        if errors:
            raise errors.pop(0)

    client._coordinator = SimpleNamespace(check_errors=check, _coordination_task=asyncio.get_running_loop().create_future())
    return thread_of()


async def test_what_keeps_the_client_out_of_its_group_is_heard_so_that_it_tries_again_unless_the_group_refuses_or_has_lost_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, errors = client_of(), [KafkaError("UnknownError()"), KafkaError("UnknownError()")]
    thread = hears(client, errors)
    thread._hear(client)
    thread._hear(client)
    assert errors == []
    assert caplog.text.count("worker could not join its group") == 1
    with pytest.raises(AckwiseError, match=r"the group of app 'billing' refuses this worker .*GroupAuthorizationFailed"):
        hears(client, [GroupAuthorizationFailedError("billing")])._hear(client)
    thread = hears(client, [])
    client._coordinator._coordination_task.cancel()  # from inside, while it joins
    with pytest.raises(AckwiseError, match="has left the group and does not come back"):
        thread._hear(client)


async def test_a_worker_that_leaves_takes_no_partitions_on_and_an_error_as_they_are_taken_on_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, ours, orders = list[Any](), list[Any](), {TP("orders", 0)}

    async def by_faust(self: object, assigned: set[TP], generation_id: int) -> None:
        told.append(assigned)

    async def by_us(assigned: set[TP]) -> None:
        ours.append(assigned)

    async def away(assigned: set[TP]) -> None:
        raise Unavailable("the store is unavailable")

    monkeypatch.setattr(Consumer, "on_partitions_assigned", by_faust)
    for leaves in (True, False):
        consumer = consumer_of(SimpleNamespace(should_stop=leaves, ackwise=SimpleNamespace(assigned=by_us)))
        await consumer.on_partitions_assigned(orders, 1)
    assert (told, ours) == ([orders, orders], [orders])
    with pytest.raises(Unavailable):
        await consumer_of(SimpleNamespace(should_stop=False, ackwise=SimpleNamespace(assigned=away))).on_partitions_assigned(orders, 1)


def consumer_of(app: SimpleNamespace) -> Any:
    consumer: Any = ReliableConsumer.__new__(ReliableConsumer)
    consumer.app = app
    consumer._stopped, consumer._crashed = asyncio.Event(), asyncio.Event()
    consumer._loop = asyncio.get_running_loop()
    return consumer


async def test_a_partition_that_is_taken_away_while_the_broker_is_asked_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned = {ORDERS}

    async def ask(client: object, partitions: list[TopicPartition], **_: object) -> Asked:
        assigned.clear()
        return Asked(dict.fromkeys(partitions, Standing(None, 0, 9)), {})

    def seek(partition: TopicPartition, offset: int) -> None:
        raise AssertionError("it is not assigned")

    monkeypatch.setattr("ackwise.plugin.faust.fetchthread.reaches", ask)
    lane: Any = Stand(3)
    fetching = thread_of(orders=lane).source_of(client_of(assignment=lambda: assigned, seek=seek)).fetching
    assert await fetching._stand({ORDERS: lane}, Fetched()) == {}
    assert lane.left_at is None


def producer_that_flushes_at_once(monkeypatch: pytest.MonkeyPatch, *, stopped: bool) -> Any:
    """One whose buffer has handed everything out, so that Faust's flush has nothing to wait for."""

    async def flush(self: object) -> None:
        pass

    monkeypatch.setattr(Producer, "flush", flush)
    producer: Any = ReliableProducer.__new__(ReliableProducer)
    producer._buffered = set()
    producer.buffer = SimpleNamespace(put=lambda fut: None, should_stop=stopped)
    return producer


async def test_what_the_buffer_has_handed_out_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_that_flushes_at_once(monkeypatch, stopped=False)
    change: Any = FutureMessage(message=cast(Any, None))
    producer.send_soon(change)
    delivering = asyncio.create_task(producer.deliver())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not delivering.done()
    change.set_result(None)
    await delivering
    assert not producer._buffered


async def test_what_can_not_be_sent_any_more_is_not_taken_for_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_that_flushes_at_once(monkeypatch, stopped=True)
    producer.send_soon(FutureMessage(message=cast(Any, None)))
    with pytest.raises(AckwiseError, match="1 changes of tables"):
        await producer.deliver()


async def test_a_buffer_that_has_stopped_does_not_keep_the_rest_from_being_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []

    async def flush() -> None:
        flushed.append("client")

    async def by_faust(self: object) -> None:
        raise RuntimeError("Cannot flush: Producer not Running")

    producer = producer_that_flushes_at_once(monkeypatch, stopped=True)
    monkeypatch.setattr(Producer, "flush", by_faust)
    producer._producer = SimpleNamespace(flush=flush, _sender=SimpleNamespace(sender_task=None), client=SimpleNamespace(_sync_task=None))
    await producer.flush()
    assert flushed == ["client"]


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_client_that_sends_nothing_any_more_does_not_keep_the_app_from_stopping(
    monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    async def flush(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    producer = producer_that_flushes_at_once(monkeypatch, stopped=stopped)
    monkeypatch.setattr(Producer, "flush", flush)
    producer._producer = SimpleNamespace(flush=flush, _sender=SimpleNamespace(sender_task=ended), client=SimpleNamespace(_sync_task=None))
    await asyncio.wait_for(producer.flush(), PATIENCE)
    producer.send_soon(FutureMessage(message=cast(Any, None)))
    delivering = asyncio.create_task(producer.deliver())
    await asyncio.sleep(0)
    producer.buffer.should_stop = True  # as the worker stops
    with pytest.raises(AckwiseError, match="1 changes of tables"):
        await delivering


async def test_what_is_settled_is_committed_though_the_producer_has_stopped_and_not_where_the_client_has() -> None:
    committed, told = list[object](), list[object]()

    async def call_thread(commit: object, offsets: object) -> None:
        committed.append(offsets)

    async def flush() -> None:
        raise RuntimeError("Cannot flush: Producer not Running")

    consumer: Any = ReliableConsumer.__new__(ReliableConsumer)
    consumer.app = SimpleNamespace(
        producer=SimpleNamespace(flush=flush),
        tables=SimpleNamespace(on_commit=told.append),
        monitor=SimpleNamespace(on_tp_commit=told.append),
    )
    consumer._thread = SimpleNamespace(call_thread=call_thread, commit_exactly=None, tp_last_committed_at={}, should_stop=False)
    consumer._committed_offset = {}
    offsets = {TopicPartition("orders", 0): OffsetAndMetadata(7, "who committed it")}
    await consumer.commit_settled(offsets)
    assert committed == [offsets]
    assert told == [{TopicPartition("orders", 0): 7}] * 2, "tables and monitor know of offsets only"
    consumer._thread.should_stop = True
    with pytest.raises(KafkaError, match="thread"):
        await consumer.commit_settled(offsets)
    assert committed == [offsets]


@asynccontextmanager
async def calling(monkeypatch: pytest.MonkeyPatch, *, is_stopping: bool = False) -> AsyncIterator[ReliableThread]:
    """A thread whose calls run in this loop."""
    monkeypatch.setattr(ReliableThread, "should_stop", is_stopping)
    thread = cast(Any, ReliableThread.__new__(ReliableThread))
    thread.parent_loop = asyncio.get_running_loop()
    thread._method_queue = MethodQueue(loop=thread.parent_loop)
    async with thread._method_queue:
        yield thread


async def give_up() -> None:
    raise asyncio.CancelledError  # what a request has ended with


async def test_a_call_that_the_client_cancels_itself_is_an_error_to_the_task_of_faust_that_waits_unless_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_stopping, error in ((False, KafkaConnectionError), (True, asyncio.CancelledError)):
        async with calling(monkeypatch, is_stopping=is_stopping) as thread:
            with pytest.raises(error):
                await thread.call_thread(give_up)


async def test_a_task_of_faust_that_is_cancelled_while_it_waits_for_a_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await may_end.wait()

    async with calling(monkeypatch) as thread:
        waiting = asyncio.create_task(thread.call_thread(wait))
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_end.set()


async def test_a_producer_that_gives_up_half_way_as_the_app_stops_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    async with broker.serving():
        producer = producer_that_flushes_at_once(monkeypatch, stopped=True)
        producer.transport = SimpleNamespace(_topic_waiters={})
        producer._producer = client = AIOKafkaProducer(bootstrap_servers=broker.address)
        await client.start()
        assert await client.client.ready(1)
        monkeypatch.setattr(client._sender, "close", give_up)
        with pytest.raises(asyncio.CancelledError):
            await producer.on_stop()
        assert len(broker.open) == 2


async def test_a_client_leaves_its_group_in_its_own_thread_though_the_group_rebalances_as_the_app_stops() -> None:
    """Faust would close it in the app's event loop then, where it can do neither that nor close its connections."""
    stopped = []

    async def stop() -> None:
        stopped.append(client._closed)

    async def close() -> None: ...

    part = SimpleNamespace(close=close)
    client = client_of(stop=stop, _client=part, _coordinator=part, _fetcher=part)
    consumer, thread = ReliableConsumer.__new__(ReliableConsumer), thread_of()
    consumer._thread = thread
    thread._consumer = client
    thread.app.loop = asyncio.get_running_loop()
    consumer.close()
    await thread.on_thread_stop()
    assert stopped == [False]
