"""What the host takes from a client that raises: nothing that it drained is lost, and who raises is left alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
)
from aiokafka.record.util import calc_crc32c
from tests.fakes import Sink
from tests.plugin.lines import Line
from tests.plugin.logs import Logs, batch, corrupt, endless, reading
from tests.waiting import PATIENCE, turns, until

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import EventCode
from ackwise.middleware.flow.flowcontrol import FlowControl
from ackwise.middleware.message.message import TopicPartition as Place
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.middleware.runs.run import Run, Stage
from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.consumer.assignment import Opening
from ackwise.plugin.consumer.fetching import Fetched, _FetchFailed, give
from ackwise.plugin.consumer.lane import Lane
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.consumer.polling import Polling
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.kafka.aiokafkainternals import idle_wait, keep_awake
from ackwise.plugin.kafka.fetchbuffer import Taking
from ackwise.plugin.kafka.recordbatches import read_raw
from ackwise.plugin.settings.hostsettings import HostSettings

BAD, GOOD, OTHER = (TopicPartition(topic, 0) for topic in ("bad", "good", "other"))


class Desk:
    """A member that fetches from logs; `given` are the offsets that its lanes took, `now` is the time."""

    def __init__(self, logs: Logs, *, line: Any = None, **settings: Any) -> None:
        self.line: Any = line or Line()
        self.now = 100.0
        self.items: list[Run] = []
        self.logs = logs
        self.consumer: Any = reading(logs)
        self.sink = Sink()
        host_settings = HostSettings(brokers="nowhere:1", group="billing", **settings)
        self.member = Member(host_settings, [], Parts(ConsumeLater(), DeadLetter(), sink=self.sink))
        self.member.leases = None
        self.given: dict[TopicPartition, list[int]] = {partition: [] for partition in logs.logs}
        for partition in logs.logs:
            self.add_lane(partition, 0)
        client = AiokafkaClient(self.consumer, "billing", wait=50)
        self.taking = client._taking
        self.polling = Polling(self.member, client, Opening(self.member, client), clock=lambda: self.now)
        self.fetching = self.polling.fetching

    async def poll(self) -> None:
        keep_awake(self.consumer)  # as hosts do
        await self.polling.poll()

    def add_lane(self, partition: TopicPartition, position: int) -> None:
        def make(place: Place, records: Sequence[Any]) -> list[Run]:
            runs = [Run(place, [record], self.line) for record in records]
            self.given[partition] += [run.first for run in runs]
            self.items += runs
            return runs

        self.consumer.seek(partition, position)
        lane = self.member.lane(*partition, "source", position, make=make)
        self.member.add_lanes(partition, (lane,), from_commit=position)

    async def close(self) -> None:
        lanes = self.member.abandon_lanes()
        await asyncio.gather(*(lane.task for lane in lanes if lane.task is not None))
        await self.consumer._fetcher.close()
        self.consumer._closed = True

    def gaps(self) -> list[tuple[str | None, int | None, int | None]]:
        return [(event.topic, event.offset, event.range_end) for event in self.sink.events if event.code is EventCode.GAP]


#: What `three` has that is well.
ALL = {GOOD: [*range(40)], BAD: [*range(30)], OTHER: [*range(40)]}


def has_all(desk: Desk) -> Callable[[], bool]:
    return lambda: desk.given == ALL


def _more_than(asked: int, logs: Logs) -> bool:
    return logs.asked.count(BAD) > asked


@asynccontextmanager
async def polling(logs: Logs, **told: Any) -> AsyncIterator[Desk]:
    desk = Desk(logs, **told)
    task = asyncio.create_task(desk.poll())
    try:
        yield desk
    finally:
        desk.member.stop.set()
        await asyncio.wait({task}, timeout=60)
        await desk.close()
        if not task.cancelled():
            task.result()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.fetching._FETCH_AGAIN", 0.0)
    monkeypatch.setattr("ackwise.plugin.consumer.polling._LOOK_AGAIN", 0.0)


TEN = [b"%d" % number for number in range(10)]
WELL, CORRUPT = batch(10, *TEN), corrupt(batch(10, *TEN))


def three(bad: tuple[int, bytes] = WELL) -> Logs:
    """A partition with `bad` in its middle beside two that are well."""
    good = [batch(first, *TEN) for first in range(0, 40, 10)]
    return Logs({GOOD: good, BAD: [batch(0, *TEN), bad, batch(20, *TEN)], OTHER: good})


def with_codec(made: tuple[int, bytes], codec: int) -> tuple[int, bytes]:
    """The batch as if it were compressed with `codec`, under a checksum that holds."""
    after, raw = made
    changed = raw[:21] + codec.to_bytes(2, "big") + raw[23:]
    return after, changed[:17] + calc_crc32c(changed[21:]).to_bytes(4, "big") + changed[21:]


async def test_a_partition_that_raises_costs_the_others_nothing_and_is_not_passed(caplog: pytest.LogCaptureFixture) -> None:
    for bad in (CORRUPT, *(with_codec(WELL, codec) for codec in (1, 2, 3, 4, 7))):
        caplog.clear()
        async with polling(three(bad)) as desk:
            await until(lambda: len(desk.given[GOOD]) == len(desk.given[OTHER]) == 40)
            await until(lambda: "partition unreadable" in caplog.text)
            (lane,) = desk.member.lanes[BAD]
            await until(lambda: lane.watermark.commit == 10)  # noqa: B023
        assert desk.given == ALL | {BAD: [*range(10)]}
        assert desk.gaps() == []
        assert lane.unreadable is not None


async def test_what_comes_before_a_record_that_raises_is_given_though_the_client_hides_it_behind_the_error() -> None:
    """As aiokafka's own `getmany` does, which drops what it had drained."""
    async with polling(three(CORRUPT)) as desk:
        desk.taking._is_known = False
        (lane,) = desk.member.lanes[BAD]
        await until(lambda: lane.unreadable is not None and lane.watermark.commit == 10)
    assert desk.given == ALL | {BAD: [*range(10)]}


async def test_bytes_without_a_whole_batch_put_their_partition_in_quarantine_and_are_not_passed(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(
        {
            GOOD: [batch(first, *TEN) for first in range(0, 6000, 10)],
            BAD: [batch(0, *TEN), endless(batch(10, *TEN)), batch(20, *TEN)],
        }
    )
    async with polling(logs) as desk:
        await until(lambda: "partition unreadable" in caplog.text and len(desk.given[GOOD]) == 6000)
        (lane,) = desk.member.lanes[BAD]
        assert lane.unreadable == "RecordTooLargeError"
        assert desk.given[BAD] == [*range(10)]
        logs.logs[BAD][1] = batch(10, *TEN)
        desk.now += 1.01
        await until(lambda: len(desk.given[BAD]) == 30)
    assert desk.given[BAD] == [*range(30)]
    assert desk.gaps() == []


async def test_an_error_that_the_client_has_still_to_raise_is_not_dropped_by_a_seek() -> None:
    """The poll that finds it drains another partition first, and the position has moved for it."""
    logs = Logs({GOOD: [batch(0, *TEN)], BAD: [endless(batch(0, *TEN))]})
    desk = Desk(logs)
    lanes = {partition: lane for partition, (lane,) in desk.member.lanes.items()}
    while len(desk.consumer._fetcher._records) < 2:
        await desk.fetching._stand(lanes, Fetched())
        await asyncio.sleep(0)
    desk.consumer._fetcher._records.move_to_end(BAD)
    fetched = Fetched()
    await desk.fetching._fetch_together(lanes, (), fetched, 0.0, 500, is_all=True)
    assert ({*fetched}, {*fetched.left_at}) == ({GOOD}, {GOOD})
    give(desk.member, fetched, lambda _: False)
    with pytest.raises(_FetchFailed, match="larger than the fetch size"):
        await desk.fetching._fetch_together(lanes, (), fetched, 0.0, 500, is_all=True)
    assert desk.given[BAD] == []
    await desk.close()


async def test_a_partition_in_quarantine_is_asked_again_with_back_off_and_goes_on_where_it_stood(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logs = three(CORRUPT)
    async with polling(logs) as desk:
        await until(lambda: desk.consumer.paused() == {BAD})
        for waits in (1.0, 2.0, 4.0):
            asked = logs.asked.count(BAD)
            desk.now += waits - 0.01
            await asyncio.sleep(0.01)
            assert logs.asked.count(BAD) == asked
            desk.now += 0.01
            await until(partial(_more_than, asked, logs))
            await until(lambda: desk.consumer.paused() == {BAD})
        logs.logs[BAD][1] = WELL
        desk.now += 8.0
        await until(lambda: len(desk.given[BAD]) == 30)
        await until(lambda: "partition read again" in caplog.text)
    assert desk.given[BAD] == [*range(30)]
    assert desk.gaps() == []


async def test_a_partition_that_gave_something_after_an_error_is_not_left_alone_for_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    raise_at, logs = [0, 0, 10], Logs({GOOD: [batch(0, *TEN)], BAD: [batch(0, *TEN)]})
    async with polling(logs) as desk:
        take = desk.taking.take

        async def raising(*args: Any, **keywords: Any) -> Any:
            found = await take(*args, **keywords)
            if BAD in found and found[BAD][0].offset in raise_at[:1]:
                del raise_at[0]
                raise KafkaConnectionError
            return found

        desk.taking.take = raising  # type: ignore[method-assign]
        desk.fetching._source.answered_at = lambda _: 1  # type: ignore[method-assign]  # all answers come within a millisecond
        await until(lambda: desk.given[BAD] == [*range(10)])
        logs.logs[BAD].append(batch(10, *TEN))
        await until(lambda: desk.given[BAD] == [*range(20)] or "partition unreadable" in caplog.text)
    assert raise_at == []
    assert "partition unreadable" not in caplog.text


async def test_a_partition_that_answered_after_an_error_that_it_has_nothing_is_not_left_alone_for_the_next_one() -> None:
    logs = Logs({BAD: []})
    desk = Desk(logs)
    (lane,) = desk.member.lanes[BAD]

    async def fetch_until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await desk.fetching.fetch(timeout=0.0)
                await asyncio.sleep(0)

    for _ in range(2):
        logs.errors[BAD] = TopicAuthorizationFailedError.errno
        await fetch_until(lambda: lane in desk.fetching._doubted)
        logs.errors.clear()
        await fetch_until(lambda: lane not in desk.fetching._doubted)
    assert lane.unreadable is None
    await desk.close()


async def test_an_error_that_is_about_no_partition_backs_off_and_puts_none_in_quarantine(caplog: pytest.LogCaptureFixture) -> None:
    async with polling(three()) as desk:
        failures = iter(range(5))

        def check_errors() -> None:
            if next(failures, None) is not None:
                raise KafkaConnectionError

        desk.consumer._coordinator.check_errors = check_errors
        await until(has_all(desk))
    assert "fetch failed: group=billing error=KafkaConnectionError" in caplog.text
    assert "partition unreadable" not in caplog.text


async def test_whatever_the_client_raises_after_it_moved_is_fetched_again(caplog: pytest.LogCaptureFixture) -> None:
    for error in (asyncio.CancelledError(), AssertionError(), UnicodeDecodeError("utf-8", b"secret", 0, 1, "no"), KafkaConnectionError()):
        async with polling(three()) as desk:
            take, raised = desk.taking.take, list[Any]()

            async def raising(*args: Any, take: Any = take, raised: Any = raised, error: Any = error, **keywords: Any) -> Any:
                found = await take(*args, **keywords)
                if found and len(raised) < 3:
                    raised.append(found)
                    raise error
                return found

            desk.taking.take = raising  # type: ignore[method-assign]

            def all_given(desk: Desk = desk) -> bool:
                desk.now += 0.1
                return desk.given == ALL

            await until(all_given)
        assert (desk.gaps(), len(raised)) == ([], 3), error
    assert "secret" not in caplog.text


async def test_each_codec_that_a_producer_may_choose_is_read() -> None:
    """gzip, snappy, lz4 and zstd."""
    values = [b"%d" % number * 100 for number in range(10)]
    batches = [batch(10 * at, *values, codec=codec) for at, codec in enumerate((1, 2, 3, 4))]
    async with polling(Logs({GOOD: batches})) as desk:
        await until(lambda: desk.given[GOOD] == [*range(40)])


async def test_a_header_name_that_is_not_utf8_costs_nobody_anything_and_its_record_is_read() -> None:
    for producer, aborted in ((-1, range(0)), (7, range(10, 20))):
        bad = batch(20, *TEN, header=b"caf\xe9")
        logs = Logs({GOOD: [batch(0, *TEN), batch(10, *TEN, producer=producer), bad, batch(30, *TEN)], OTHER: [batch(0, *TEN)]})
        logs.aborted[GOOD] = [(7, 10)]
        async with polling(logs) as desk:
            await until(lambda: desk.given[GOOD][-1:] == [39] and len(desk.given[OTHER]) == 10)
            names = {run.first: run.delivery.headers for run in desk.items if run.delivery.headers}
        assert desk.given == {GOOD: [offset for offset in range(40) if offset not in aborted], OTHER: [*range(10)]}
        assert names == {29: (("caf\udce9", b"1"),)}


async def test_what_was_fetched_for_a_lane_of_before_is_no_proof_of_a_hole_for_the_one_that_begins_earlier() -> None:
    logs, moved = Logs({GOOD: [batch(0, *TEN)]}), list[int]()
    async with polling(logs) as desk:
        take = desk.taking.take

        async def assigned_anew(*args: Any, **keywords: Any) -> Any:
            found = await take(*args, **keywords)
            if found and not moved and found[GOOD][0].offset == 10:
                moved.append(10)
                desk.add_lane(GOOD, 5)
            return found

        desk.taking.take = assigned_anew  # type: ignore[method-assign]
        await until(lambda: desk.given[GOOD] == [*range(10)])
        logs.logs[GOOD].append(batch(10, *TEN))
        await until(lambda: desk.given[GOOD][-1] == 19)
    assert (moved, desk.given[GOOD], desk.gaps()) == ([10], [*range(10), *range(5, 20)], [])


async def test_what_was_read_past_the_client_for_a_lane_of_before_is_not_given_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = list[int]()

    async def assigned_anew(consumer: Any, partition: TopicPartition, position: int) -> Any:
        found = await read_raw(consumer, partition, position)
        if not moved:
            moved.append(position)
            desk.add_lane(GOOD, 5)
        return found

    monkeypatch.setattr("ackwise.plugin.consumer.aiokafkaclient.read_raw", assigned_anew)
    async with polling(Logs({GOOD: [batch(0, *TEN), batch(10, *TEN, header=b"caf\xe9"), batch(20, *TEN)]})) as desk:
        await until(lambda: desk.given[GOOD][-1:] == [29])
    assert (moved, desk.given[GOOD], desk.gaps()) == ([19], [*range(19), *range(5, 30)], [])


async def test_a_cancellation_that_was_asked_for_ends_the_polling() -> None:
    desk = Desk(three())
    task = asyncio.create_task(desk.poll())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await desk.close()


async def test_a_position_that_moved_behind_our_back_is_sought_back_and_a_fetching_task_that_ends_is_begun_anew() -> None:
    async with polling(three()) as desk:
        desk.consumer.seek(GOOD, 35)
        desk.consumer._fetcher._fetch_task.cancel()
        await asyncio.wait({desk.consumer._fetcher._fetch_task})
        await until(has_all(desk))


async def test_markers_aborted_records_and_compaction_are_holes_that_were_proved() -> None:
    logs = Logs(
        {
            GOOD: [batch(0, b"a"), batch(5, b"b")],  # compacted between
            OTHER: [batch(0, b"a", b"b", producer=7), batch(2, b"c")],
            BAD: [batch(0, b"a"), corrupt(batch(1, b"b"))],
        }
    )
    logs.aborted[OTHER] = [(7, 0)]
    async with polling(logs) as desk:
        await until(lambda: desk.given[GOOD] == [0, 5] and desk.given[OTHER] == [2] and desk.given[BAD] == [0])
    assert sorted(desk.gaps()) == [("good", 1, 5), ("other", 0, 2)]
    assert all(event.proved for event in desk.sink.events if event.code is EventCode.GAP)


async def test_nothing_of_a_client_that_its_owner_has_closed_is_begun_anew() -> None:
    desk = Desk(three())
    await desk.close()
    ended = desk.consumer._fetcher._fetch_task
    with pytest.raises(ConsumerStoppedError):
        async with asyncio.timeout(PATIENCE):
            await desk.poll()
    assert desk.consumer._fetcher._fetch_task is ended


async def test_a_client_that_has_left_the_group_for_good_ends_the_worker_with_a_sentence() -> None:
    desk = Desk(three())
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    desk.consumer._coordinator._coordination_task = ended
    with pytest.raises(
        AckwiseError, match="the Kafka client of group 'billing' has left the group and does not come back; the worker stops"
    ):
        await desk.poll()
    await desk.close()


async def test_a_defect_of_ours_is_not_taken_for_one_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(three())

    def broken(*_: object, **__: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(desk.member, "offer", broken)
    with pytest.raises(ValueError, match="ours"):
        await desk.poll()
    await desk.close()


async def test_a_client_that_is_cancelled_from_inside_while_it_joins_does_not_keep_its_worker_waiting() -> None:
    """aiokafka tells those who wait for an assignment of errors alone."""
    desk = Desk(Logs({}))
    coordination = asyncio.get_running_loop().create_future()
    desk.consumer._coordinator._coordination_task = coordination
    desk.consumer._subscription._subscription = None
    task = asyncio.create_task(desk.poll())
    await until(lambda: bool(desk.consumer._subscription._assignment_waiters))
    coordination.cancel()
    with pytest.raises(AckwiseError, match="has left the group and does not come back; the worker stops"):
        async with asyncio.timeout(PATIENCE):
            await task
    await desk.close()


def joining(patch: pytest.MonkeyPatch, error: KafkaError) -> Desk:
    """Fetches nothing yet, since joining the group comes to `error` once."""
    desk, errors = Desk(Logs({})), [error]

    def check() -> None:
        if errors:
            raise errors.pop()

    patch.setattr(desk.consumer._coordinator, "check_errors", check)
    return desk


async def test_a_worker_whom_the_group_refuses_as_it_joins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for refusal in (GroupAuthorizationFailedError("billing"), InconsistentGroupProtocolError(), UnsupportedVersionError()):
        desk = joining(monkeypatch, refusal)
        with pytest.raises(type(refusal)):
            async with asyncio.timeout(PATIENCE):
                await desk.poll()
        await desk.close()


async def test_a_worker_that_can_t_join_now_says_so_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number, error in enumerate((KafkaError("UnknownError()"), KafkaConnectionError("gone")), 1):
        desk = joining(monkeypatch, error)
        polling = asyncio.create_task(desk.poll())
        await until(lambda: desk.fetching._has_joined or polling.done())  # noqa: B023
        desk.member.stop.set()
        await polling
        await desk.close()
        assert caplog.text.count("fetch failed") == number


def refused(patch: pytest.MonkeyPatch, desk: Desk, error: KafkaError, times: int) -> list[KafkaError]:
    """The next fetches of `desk` raise `error`, as aiokafka does once that has ended its heartbeats; returns what is left of them."""
    left = [error] * times

    def check() -> None:
        if left:
            desk.now += 5.0
            raise left.pop()

    patch.setattr(desk.consumer._coordinator, "check_errors", check)
    return left


async def test_an_error_that_ended_a_task_beside_the_membership_makes_the_client_join_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka starts neither again, and raises that error in each fetch from then on."""
    for task in ("_heartbeat_task", "_commit_refresh_task"):
        async with polling(three()) as desk:
            coordinator = desk.consumer._coordinator
            await until(has_all(desk))
            ended, error = asyncio.get_running_loop().create_future(), KafkaError("Unexpected exception in heartbeat task")
            ended.set_exception(error)
            setattr(coordinator, task, ended)
            left = refused(monkeypatch, desk, error, 10**6)

            def join(coordinator: Any = coordinator, task: str = task, left: Any = left) -> None:
                setattr(coordinator, task, None)
                left.clear()

            coordinator.request_rejoin = join
            await until(lambda: len(left) < 10**6)  # noqa: B023
            desk.logs.logs[GOOD].append(batch(40, b"x"))
            await until(lambda: desk.given[GOOD][-1:] == [40])


async def test_a_member_that_kafka_lets_in_no_more_says_so_once_a_minute_and_goes_on_once_it_is_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with polling(three()) as desk:
        await until(lambda: desk.fetching._has_joined)
        left = refused(monkeypatch, desk, GroupAuthorizationFailedError("billing"), 26)
        await until(lambda: not left)
        desk.now += 20.0  # the search is over
        await until(lambda: sum(map(len, desk.given.values())) == 110)
    assert desk.gaps() == []
    assert caplog.text.count("Kafka revoked this member's access") == 3


async def test_a_read_past_the_client_that_is_cancelled_from_inside_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = list[TopicPartition]()

    async def leaking(consumer: Any, partition: TopicPartition, position: int) -> Any:
        if not cancelled:
            cancelled.append(partition)
            raise asyncio.CancelledError
        return await read_raw(consumer, partition, position)

    monkeypatch.setattr("ackwise.plugin.consumer.aiokafkaclient.read_raw", leaking)
    async with polling(Logs({GOOD: [batch(0, b"a", b"b", header=b"caf\xe9"), batch(2, b"c")]})) as desk:

        def all_given() -> bool:
            desk.now += 0.1
            return len(desk.given[GOOD]) == 3

        await until(all_given)
    assert (cancelled, desk.given[GOOD]) == ([GOOD], [0, 1, 2])


def take_away(desk: Desk, partition: TopicPartition) -> None:
    """The group has given `partition` to another member; the others are where they were."""
    subscription = desk.consumer._subscription
    left = {each: subscription.subscription.assignment.state_value(each).position for each in desk.consumer.assignment() - {partition}}
    subscription.assign_from_user([*left])
    for each, position in left.items():
        desk.consumer.seek(each, position)
    desk.member._let_go({partition: desk.member.lanes[partition]})


async def test_a_partition_that_goes_while_it_is_read_past_the_client_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unread(*_: object) -> None:
        if desk.member.lanes[BAD][0] in desk.fetching._doubted:  # it would be left alone now
            take_away(desk, BAD)
        raise KafkaConnectionError

    monkeypatch.setattr("ackwise.plugin.consumer.aiokafkaclient.read_raw", unread)
    logs = Logs({GOOD: [batch(0, *TEN)], BAD: [batch(0, b"0", header=b"caf\xe9")]})
    async with polling(logs) as desk:
        await until(lambda: BAD not in desk.member.lanes)
        logs.logs[GOOD].append(batch(10, *TEN))
        await until(lambda: desk.given[GOOD] == [*range(20)])


async def test_a_partition_that_goes_while_it_is_asked_alone_ends_nobody() -> None:
    logs = Logs({GOOD: [batch(0, *TEN)], BAD: []})
    async with polling(logs) as desk:
        take = desk.taking.take

        async def gone(*partitions: TopicPartition, **keywords: Any) -> Any:
            if partitions == (BAD,):
                take_away(desk, BAD)
                return {}
            return await take(*partitions, **keywords)

        desk.taking.take = gone  # type: ignore[method-assign]
        desk.fetching._searching_until = desk.now + 1.0
        await until(lambda: BAD not in desk.member.lanes)
        logs.logs[GOOD].append(batch(10, *TEN))
        await until(lambda: desk.given[GOOD] == [*range(20)])


async def test_what_a_partition_had_in_hand_is_not_kept_once_it_is_gone() -> None:
    async with polling(three(CORRUPT)) as desk:
        await until(lambda: desk.member.lanes[BAD][0].unreadable is not None)
        gone = [weakref.ref(desk.member.lanes.pop(partition)[0]) for partition in (GOOD, BAD)]
        for lane in gone:
            if (there := lane()) is not None and there.task is not None:
                there.cut()
                await there.task
                del there
        asked = len(desk.logs.asked)
        await until(lambda: len(desk.logs.asked) > asked + 20)
        gc.collect()
        assert [lane() for lane in gone] == [None, None]


async def test_a_client_that_was_cancelled_as_it_learned_its_metadata_asks_again_at_once_for_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackwise.plugin.kafka.aiokafkainternals._LEARN_AGAIN", 0.0)
    client: Any = AIOKafkaClient(metadata_max_age_ms=10)
    asked, now = list[None](), asyncio.Event()

    async def update(*_: object) -> bool:
        asked.append(None)
        client._metadata_max_age_ms = 300_000
        if len(asked) == 1:
            now.set()
            await asyncio.Event().wait()
        return True

    monkeypatch.setattr(client, "_metadata_update", update)
    client._sync_task = asyncio.create_task(client._md_synchronizer())
    keep_awake(SimpleNamespace(_client=client, _coordinator=None, _closed=False))
    async with asyncio.timeout(PATIENCE):
        await now.wait()
        waiting = client.force_metadata_update()
        client._sync_task.cancel()
        assert await waiting
    client._sync_task.cancel()


async def test_a_client_that_was_cancelled_as_it_learns_metadata_learns_again_with_one_task_though_it_is_kept_awake_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackwise.plugin.kafka.aiokafkainternals._LEARN_AGAIN", 0.0)
    desk, begun = Desk(Logs({})), list[None]()
    client: Any = desk.logs
    client._md_update_waiter = asyncio.get_running_loop().create_future()

    async def synchronize() -> None:
        begun.append(None)
        await asyncio.get_running_loop().create_future()

    client._md_synchronizer = synchronize
    client._sync_task = asyncio.create_task(synchronize())
    keep_awake(desk.consumer)
    polling = asyncio.create_task(desk.poll())  # keeps it awake as well
    await asyncio.sleep(0)
    client._sync_task.cancel()
    await until(lambda: len(begun) > 1)
    await turns(10)
    assert (len(begun), client._sync_task.done()) == (2, False)
    desk.member.stop.set()
    await polling
    client._sync_task.cancel()
    await desk.close()


def fetch_wait(desk: Desk) -> int:
    return int(desk.consumer._fetcher._fetch_max_wait_ms)


async def test_the_broker_may_keep_a_fetch_longer_while_no_lane_is_at_work_and_not_while_one_is_left_out() -> None:
    async with polling(Logs({GOOD: [batch(0, b"0")], OTHER: []}), line=(line := Line(is_open=False))) as desk:
        await until(lambda: desk.given[GOOD] == [0])
        assert fetch_wait(desk) == 50
        line.gate.set()
        await until(lambda: fetch_wait(desk) == 500)
        desk.consumer.pause(OTHER)
        desk.fetching.quarantine.admit(OTHER, desk.member.lanes[OTHER][0], KafkaError())
        desk.member.has_moved.set()  # who does that by itself looks at all partitions then
        await until(lambda: fetch_wait(desk) == 50)


async def test_while_nothing_is_at_work_no_partition_is_looked_at_until_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.consumer.polling._WAIT", 0.001)
    waits = looks = 0

    async def wait(self: Taking, within: float, wait: Any = Taking.wait) -> bool:
        nonlocal waits
        waits += 1
        return bool(await wait(self, within))

    def is_full(self: Lane, is_full: Any = Lane.is_full) -> bool:
        nonlocal looks
        looks += 1
        return bool(is_full(self))

    async with polling(Logs({GOOD: [], OTHER: []})) as desk:
        await until(lambda: fetch_wait(desk) == 500)
        monkeypatch.setattr(Taking, "wait", wait)
        await until(lambda: waits >= 1)
        monkeypatch.setattr(Lane, "is_full", is_full)
        await until(lambda: waits >= 50)
        assert looks == 0
        desk.logs.logs[GOOD].append(batch(0, b"0"))
        await until(lambda: desk.given[GOOD] == [0])
        await until(lambda: waits >= 100)
        desk.add_lane(GOOD, 1)
        looks = 0
        await until(lambda: looks > 0)


async def test_a_partition_that_can_be_read_again_and_has_nothing_leaves_quarantine_while_nothing_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rested_beside = set[str | None]()

    async def rest(_: Polling) -> None:
        rested_beside.add(lane.unreadable)

    monkeypatch.setattr(Polling, "_rest", rest)
    logs = Logs({GOOD: [], BAD: []})
    logs.errors[BAD] = TopicAuthorizationFailedError.errno
    async with polling(logs) as desk:
        (lane,) = desk.member.lanes[BAD]
        await until(lambda: lane.unreadable == "TopicAuthorizationFailedError")
        logs.errors.clear()
        desk.now += 10.01  # the search for it is over too
        await until(lambda: lane.unreadable is None)
    assert rested_beside <= {None}


async def test_what_is_paused_goes_on_once_time_has_passed_though_nothing_is_at_work_and_nobody_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a handler that a breaker has stopped."""
    is_shut = True
    monkeypatch.setattr(FlowControl, "is_quiet", False)
    monkeypatch.setattr(FlowControl, "is_shut", lambda *_: is_shut)
    monkeypatch.setattr("ackwise.plugin.consumer.polling._PASSED_OVER", 0.0)
    async with polling(Logs({GOOD: [], OTHER: []})) as desk:
        await until(lambda: desk.consumer.paused() == {GOOD, OTHER})
        is_shut = False
        await until(lambda: not desk.consumer.paused())


def test_the_more_partitions_are_idle_the_longer_a_fetch_of_all_of_them_may_last() -> None:
    assert [idle_wait(partitions) for partitions in (1, 500, 1_000, 9_000)] == [500, 1_000, 2_000, 4_000]


async def test_messages_that_wait_for_later_do_not_make_the_worker_fetch_more_often() -> None:
    def hold(run: Run) -> Stage:
        run.not_before = float("inf")
        return Stage.FETCHED

    line = Line()
    line.fate = hold
    async with polling(Logs({GOOD: [batch(0, b"0")], OTHER: []}), line=line) as desk:
        await until(lambda: any(lane.held for (lane,) in desk.member.lanes.values()))
        await until(lambda: fetch_wait(desk) == 500)


async def test_an_alarm_comes_each_minute_while_a_partition_is_in_quarantine(caplog: pytest.LogCaptureFixture) -> None:
    async with polling(three(CORRUPT)) as desk:
        for minute in range(1, 4):
            await until(lambda: caplog.text.count("partition unreadable") == minute)  # noqa: B023
            desk.now += 60.0
