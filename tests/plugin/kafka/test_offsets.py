"""What is believed of brokers that are asked where to start: only what they said, of each partition."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from tests.leaderless import Leaderless
from tests.waiting import turns

from ackwise.plugin.consumer.aiokafkaclient import AiokafkaClient
from ackwise.plugin.kafka.brokeroffsets import EARLIEST, Committed, Standing, Topic, ask
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.timeouts import answer
from ackwise.testing import MemoryKafka
from ackwise.testing.hostile.client import hostile_client

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)
ID = uuid.UUID(int=1)
TOPIC = Topic("AAAAAAAAAAAAAAAAAAAAAQ", 2)
METADATA = 3
LOADING = GroupLoadInProgressError.errno

Offsets = Mapping[TopicPartition, int | BrokerResponseError | None]
Say = Callable[[list[TopicPartition]], Offsets | Awaitable[Offsets]]


class Brokers:
    """What a client is answered; each answer can be replaced, and each request is counted."""

    def __init__(self) -> None:
        self.error_code = 0
        self.committed: list[tuple[int, int, str, int]] = [(0, 7, "from us", 0), (1, -1, "", 0)]
        self.starts: Say = lambda partitions: dict.fromkeys(partitions, 3)
        self.ends: Say = lambda partitions: dict.fromkeys(partitions, 9)
        self.true_ends: Say = self.ends
        self.asked: list[str] = []
        self.is_coordinator_dead = False
        self.leaders: Mapping[TopicPartition, int] = {}
        self.looked_for_leaders = 0
        self._fetcher = SimpleNamespace(_isolation_level=1)
        self._coordinator = self
        self._client = SimpleNamespace(
            cluster=SimpleNamespace(leader_for_partition=lambda partition: self.leaders.get(partition, 0)),
            get_random_node=lambda: 0,
            force_metadata_update=self._look_for_leaders,
            send=self._say,
        )
        self.width = 2

    def _look_for_leaders(self) -> None:
        self.looked_for_leaders += 1

    async def _say(self, node: int, request: Any) -> Any:
        if request.API_KEY == METADATA:
            return self._say_topics(request)
        asked = {TopicPartition(topic, number): time for topic, parts in request._topics for number, time in parts}
        (time,) = {*asked.values()}
        what = "starts" if time == EARLIEST else "ends" if request._isolation_level else "true_ends"
        self.asked.append(what)
        said = getattr(self, what)([*asked])
        offsets = await said if isinstance(said, Awaitable) else said
        return SimpleNamespace(topics=[(each.topic, [_answered(each.partition, offset)]) for each, offset in offsets.items()])

    def _say_topics(self, request: Any) -> Any:
        self.asked.append("topics")
        partitions = [{"partition": number} for number in range(self.width)]
        topics = [{"error_code": 0, "topic": topic, "topic_id": ID, "partitions": partitions} for _, topic, _ in request._topics]
        return SimpleNamespace(to_object=lambda: {"topics": topics})

    async def ensure_coordinator_known(self) -> None:
        self.is_coordinator_dead = False

    def coordinator_dead(self) -> None:
        self.is_coordinator_dead = True

    async def _send_req(self, request: Any) -> Any:
        self.asked.append("committed")
        return SimpleNamespace(error_code=self.error_code, topics=[("orders", self.committed)] if self.committed else [])

    def answer(self, partitions: Iterable[TopicPartition] = (ORDERS, OTHERS), *, within: float = 0.05) -> Any:
        return ask(self, "billing", list(partitions), within=within)


def _answered(partition: int, offset: int | BrokerResponseError | None) -> tuple[int, int, int, int]:
    """As a broker answers: partition, error, time and offset."""
    if isinstance(offset, BrokerResponseError):
        return partition, offset.errno, -1, -1
    return partition, 0, -1, -1 if offset is None else offset


async def test_where_to_begin_is_asked_for_all_partitions_with_one_request_of_each_kind() -> None:
    brokers, partitions = many()
    known, unknown = await brokers.answer(partitions)
    assert (len(known), unknown) == (1000, {})
    assert sorted(brokers.asked) == ["committed", "ends", "starts", "topics"]


async def test_a_commit_comes_with_its_metadata_and_a_group_without_one_has_none() -> None:
    known, _ = await Brokers().answer()
    ours = Committed(7, "from us")
    assert known == {ORDERS: Standing(ours, 3, 9, TOPIC), OTHERS: Standing(None, 3, 9, TOPIC, [ours])}


async def test_a_coordinator_that_can_not_answer_is_not_a_group_that_never_committed() -> None:
    for what, error_code, committed, known in (
        ("an error about the whole answer", LOADING, [], set()),
        ("an error about the whole answer beside partitions", LOADING, [(0, -1, "", 0), (1, -1, "", 0)], set()),
        ("an error about each partition", 0, [(0, -1, "", LOADING), (1, -1, "", LOADING)], set()),
        ("an empty answer", 0, [], set()),
        ("an error about one partition", 0, [(0, 7, "", 0), (1, -1, "", LOADING)], {ORDERS}),
        ("a partition is left out", 0, [(0, 7, "", 0)], {ORDERS}),
    ):
        brokers = Brokers()
        brokers.error_code, brokers.committed = error_code, committed
        found, unknown = await brokers.answer()
        assert (set(found), set(unknown)) == (known, {ORDERS, OTHERS} - known), what


async def test_a_coordinator_that_has_moved_is_looked_for_again() -> None:
    brokers = Brokers()
    brokers.error_code = NotCoordinatorForGroupError.errno
    await brokers.answer()
    assert brokers.is_coordinator_dead


async def test_an_answer_about_the_logs_that_is_empty_or_short_or_a_refusal_is_none() -> None:
    def refuse(_: object) -> Offsets:
        raise TopicAuthorizationFailedError("orders")

    says: list[Say] = [lambda _: {}, lambda _: {ORDERS: -1}, lambda _: {ORDERS: None}, lambda _: {OTHERS: 5}, refuse]
    for which in ("starts", "ends"):
        for say in says:
            brokers = Brokers()
            setattr(brokers, which, say)
            assert set((await brokers.answer([ORDERS])).unknown) == {ORDERS}


async def test_a_partition_without_a_leader_keeps_no_other_from_beginning_and_nobody_waits_for_it() -> None:
    for is_known in (True, False):  # to the client, or to the broker alone
        brokers = Brokers()
        brokers.leaders = {OTHERS: -1} if is_known else {}
        brokers.ends = lambda partitions: {each: LeaderNotAvailableError() if each == OTHERS else 9 for each in partitions}
        known, unknown = await brokers.answer(within=60)
        assert set(known) == {ORDERS}
        assert isinstance(unknown[OTHERS], LeaderNotAvailableError)
        assert sorted({*brokers.asked}) == ["committed", "ends", "starts", "topics"]
        assert brokers.asked.count("ends") == 1, "nothing is asked twice"
        assert brokers.looked_for_leaders >= 1


async def test_on_a_kafka_each_log_is_asked_for_once_beside_one_that_nobody_leads() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=3)
        Leaderless(kafka, ("orders", 1))
        consumer: Any = AIOKafkaConsumer("orders", bootstrap_servers=kafka.bootstrap, group_id="billing", auto_offset_reset="none")
        async with opened(consumer):
            with hostile_client() as plan:
                known, unknown = await ask(consumer, "billing", [TopicPartition("orders", number) for number in range(3)], within=60)
    assert ({each.partition for each in known}, {each.partition for each in unknown}) == ({0, 2}, {1})
    assert plan.calls["worker.ListOffsets"] == 2


def many() -> tuple[Brokers, list[TopicPartition]]:
    """Brokers with a thousand partitions."""
    brokers = Brokers()
    brokers.committed = [(number, 7, "", 0) for number in range(1000)]
    return brokers, [TopicPartition("orders", number) for number in range(1000)]


async def never(*_: object) -> Any:
    await asyncio.Event().wait()


async def test_a_broker_that_is_away_is_asked_once() -> None:
    brokers, partitions = many()
    brokers.ends = never
    known, unknown = await brokers.answer(partitions)
    assert (known, set(unknown)) == ({}, set(partitions))
    assert all(isinstance(error, KafkaTimeoutError) for error in unknown.values())
    assert brokers.asked.count("ends") == 1


async def test_whether_a_broker_that_hangs_still_leads_anything_is_asked_at_once_and_not_minutes_later() -> None:
    brokers = Brokers()
    brokers.ends = never
    await brokers.answer()
    assert brokers.looked_for_leaders >= 1
    brokers, silent = Brokers(), Brokers()
    silent._client.send = never
    await silent.answer()
    await brokers.answer()
    assert (silent.looked_for_leaders >= 1, brokers.looked_for_leaders) == (True, 0)


async def test_a_broker_that_is_away_has_the_others_asked_as_ever() -> None:
    def ends(partitions: list[TopicPartition]) -> Offsets | Awaitable[Offsets]:
        return never() if away.intersection(partitions) else dict.fromkeys(partitions, 9)

    brokers, partitions = many()
    brokers.leaders = {partition: partition.partition % 3 for partition in partitions}
    away = {partition for partition in partitions if brokers.leaders[partition] == 1}
    brokers.ends = ends
    known, unknown = await brokers.answer(partitions)
    assert (set(known), set(unknown)) == (set(partitions) - away, away)
    assert brokers.asked.count("starts") == 3
    assert brokers.asked.count("ends") == 3


async def test_where_logs_end_is_shown_beside_one_that_nobody_leads_and_one_whose_broker_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.kafka.brokeroffsets._SHOWN_WITHIN", 0.05)
    brokers, partitions = Brokers(), [TopicPartition("orders", number) for number in range(4)]
    led, also_led, leaderless, silent = partitions
    brokers.leaders = {leaderless: -1, silent: 1}
    for which, offset in (("starts", 3), ("ends", 9)):
        setattr(brokers, which, lambda asked, offset=offset: never() if silent in asked else dict.fromkeys(asked, offset))
    client = AiokafkaClient(cast(Any, brokers), "billing")
    assert await client.end_offsets(partitions) == {led: 9, also_led: 9}
    assert await client.beginning_offsets(partitions) == {led: 3, also_led: 3}


async def test_a_partition_that_times_out_keeps_none_of_a_thousand_from_beginning() -> None:
    brokers, partitions = many()
    brokers.ends = lambda partitions: {each: RequestTimedOutError() if each == OTHERS else 9 for each in partitions}
    known, unknown = await brokers.answer(partitions, within=60)
    assert (set(known), set(unknown)) == ({*partitions} - {OTHERS}, {OTHERS})


async def test_brokers_that_never_answer_are_waited_for_only_so_long() -> None:
    brokers = Brokers()
    setattr(brokers, "ensure_coordinator_known", never)  # noqa: B010  # mypy takes no assignment to a method
    known, unknown = await brokers.answer()
    assert known == {}
    assert isinstance(unknown[ORDERS], KafkaTimeoutError)


async def test_a_call_that_the_client_cancels_itself_is_an_error_and_ends_nobody() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(KafkaConnectionError):
        await answer(cancelled(), within=1)


async def test_a_call_that_swallows_its_cancellation_holds_nobody_up() -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(KafkaTimeoutError):
        await answer(stubborn(), within=0.01)
    may_end.set()


async def test_who_is_cancelled_while_it_waits_for_an_answer_is_cancelled() -> None:
    waiting = asyncio.ensure_future(answer(asyncio.Event().wait(), within=60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_log_ends_where_it_does_and_not_where_an_open_transaction_begins() -> None:
    for true_end, end in ((12, 12), (8, 9)):  # a transaction is open; the log lost its end
        brokers, asked = Brokers(), list[list[TopicPartition]]()
        brokers.committed = [(0, 11, "", 0), (1, 7, "", 0)]

        def true_ends(partitions: list[TopicPartition], asked: Any = asked, true_end: int = true_end) -> Offsets:
            asked.append(partitions)
            return dict.fromkeys(partitions, true_end)

        brokers.true_ends = true_ends
        known, _ = await brokers.answer()
        assert known == {ORDERS: Standing(Committed(11, ""), 3, end, TOPIC), OTHERS: Standing(Committed(7, ""), 3, 9, TOPIC)}
        assert asked == [[ORDERS]], "asked of that one alone, and of all records"


async def test_a_commit_behind_an_end_that_nobody_can_say_truly_is_not_believed_to_be_outside() -> None:
    brokers = Brokers()
    brokers.committed = [(0, 11, "", 0), (1, 7, "", 0)]
    brokers.true_ends = never
    known, unknown = await brokers.answer()
    assert (known.keys(), unknown.keys()) == ({OTHERS}, {ORDERS})


async def test_a_call_that_fails_as_whoever_waits_for_it_is_cancelled_leaves_no_error_behind(caplog: pytest.LogCaptureFixture) -> None:
    for moments in range(6):
        go = asyncio.Event()

        async def failing(go: asyncio.Event = go) -> None:
            await go.wait()
            raise KafkaConnectionError("gone")

        asking = asyncio.create_task(answer(failing(), within=60.0))
        await turns(5)
        go.set()
        await turns(moments)
        asking.cancel()
        with pytest.raises((asyncio.CancelledError, KafkaConnectionError)):
            await asking
        del asking
        await turns(5)
        gc.collect()
        assert "never retrieved" not in caplog.text, moments
