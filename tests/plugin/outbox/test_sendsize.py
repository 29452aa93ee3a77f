"""How much of an outbox is sent at once over links of any speed, and which rows are said to have failed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.produce import ProduceRequest
from tests.fakes import Clock
from tests.plugin.outbox.desk import Desk, Sender, fields, lost, refused
from tests.waiting import PATIENCE

from ackwise.middleware.message.outgoing import Acked, Outgoing, SendAnswer, SendFailed
from ackwise.middleware.storage.outbox import MOST_BYTES
from ackwise.plugin.kafka.aiokafkainternals import AIOKafkaClient
from ackwise.plugin.outbox.sendsize import SendSize
from ackwise.plugin.producer.sender import Sender as KafkaSender
from ackwise.plugin.settings.hostsettings import HostSettings
from ackwise.testing import MemoryKafka

AWAY = SendFailed("no producer can be started now", retriable=True, error="PublishUnavailable")
NOT_TRIED = SendFailed("an earlier message of its partition was not acknowledged", retriable=True)

Judge = Callable[[Sequence[Outgoing], Outgoing], SendFailed | None]


def size_of(messages: Sequence[Outgoing]) -> int:
    return sum(len(message.value or b"") for message in messages)


class Brokers:
    """Answers a send by `judge`, which is asked for each message in its company. Behind a failure nothing of a partition is written.

    A topic has as many partitions as `partitions` says, by the first byte of the key.
    """

    def __init__(self, judge: Judge, *, partitions: int = 1) -> None:
        self.judge = judge
        self.calls: list[list[str]] = []
        self.written: list[Outgoing] = []
        self.are_there = True
        self.asked = 0
        self._partitions = partitions

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        assert stop_keys
        self.calls.append([message.message_id for message in messages])
        failed: set[tuple[str, int]] = set()
        refused_keys: set[bytes | None] = set()
        answers: list[SendAnswer] = []
        for message in messages:
            place = message.topic, (message.key or b"\0")[0] % self._partitions
            if place in failed or message.key in refused_keys:
                answers.append(NOT_TRIED)
            elif (failure := self.judge(messages, message)) is not None:
                answers.append(failure)
                failed |= {place} if failure.retriable else set()
                refused_keys |= {message.key} - {None}
            else:
                self.written.append(message)
                answers.append(Acked(*place, len(self.written), 0, message.message_id))
        return answers

    async def answer(self) -> bool:
        self.asked += 1
        return self.are_there


def messages_of(topic: str, count: int, size: int = 1000, *, keys: int = 0) -> list[Outgoing]:
    """Messages with ids of the topic and their number; with `keys` of as many keys."""
    return [
        Outgoing(topic, bytes(size), bytes([number % keys]) if keys else None, message_id=f"{topic}-{number}") for number in range(count)
    ]


def link(takes: int) -> Judge:
    """A link over which a send of more bytes than that has no answer in time."""
    return lambda company, message: lost() if size_of(company) > takes else None


async def send(
    size: SendSize, brokers: Brokers, messages: Sequence[Outgoing], may_go_on: Callable[[], bool] = lambda: True
) -> list[SendAnswer]:
    return await size.send(brokers, messages, may_go_on=may_go_on, brokers_answer=brokers.answer)


def failed(answers: Sequence[SendAnswer], messages: Sequence[Outgoing]) -> list[str]:
    """The ids of those that failed by themselves, which is what gains an attempt."""
    return [
        message.message_id for message, answer in zip(messages, answers, strict=True) if isinstance(answer, SendFailed) and answer.error
    ]


@pytest.mark.parametrize("takes", [1000, 2500, 7000, 50_000, 10**9])
async def test_what_times_out_in_company_is_sent_with_fewer_bytes_at_once_until_all_is_there(
    takes: int, caplog: pytest.LogCaptureFixture
) -> None:
    brokers, size = Brokers(link(takes)), SendSize("shop")
    messages = messages_of("orders", 100)
    assert all(isinstance(answer, Acked) for answer in await send(size, brokers, messages))
    assert brokers.written == messages
    assert bool(fields(caplog, "outbox send size reduced")) == (takes < 100_000)
    before = len(brokers.calls)
    assert all(isinstance(answer, Acked) for answer in await send(size, brokers, messages_of("bills", 20)))
    assert len(brokers.calls) - before <= 20, "what is known of the link is used by the next send"


async def test_after_32_portions_that_succeed_twice_as_much_is_sent_at_once() -> None:
    brokers, size = Brokers(link(1000)), SendSize("shop")
    await send(size, brokers, messages_of("orders", 10))
    brokers.judge, brokers.calls = link(10**9), []
    await send(size, brokers, messages_of("bills", 400))
    sizes = [len(call) for call in brokers.calls]
    assert sizes[:33] == [*[1] * 32, 2]
    assert sorted(sizes[:-1]) == sizes[:-1]
    assert max(sizes) == 8
    for _ in range(32 * 15):
        await send(size, brokers, messages_of("drops", 1))
    assert size._most == MOST_BYTES


async def test_only_a_row_that_fails_alone_has_failed_and_its_company_is_there() -> None:
    brokers, size = Brokers(lambda _, message: lost() if message.message_id == "orders-7" else None), SendSize("shop")
    messages = messages_of("orders", 30)
    answers = await send(size, brokers, messages)
    assert failed(answers, messages) == ["orders-7"]
    assert answers[7] == lost()
    assert brokers.written == [message for message in messages if message.message_id != "orders-7"]
    assert ["orders-7"] in brokers.calls


async def test_a_partition_that_is_silent_costs_few_time_outs_and_no_other_topic_a_row(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    brokers, size = Brokers(lambda _, message: lost() if message.topic == "dead" else None), SendSize("shop", clock)
    messages = [each for pair in zip(messages_of("dead", 200), messages_of("orders", 200), strict=True) for each in pair]
    answers = await send(size, brokers, messages)
    assert [message.topic for message in brokers.written] == ["orders"] * 200
    assert failed(answers, messages) == ["dead-0", "dead-1"]
    assert len(brokers.calls) <= 4, "each is a time-out"
    brokers.calls = []
    answers = await send(size, brokers, messages)
    assert failed(answers, messages) == ["dead-0"], "the others are not parked for it"
    assert len(brokers.calls) == 1, "it is known for a while"
    clock.now += 600
    brokers.judge = link(5000)
    assert all(isinstance(answer, Acked) for answer in await send(size, brokers, messages))
    assert fields(caplog, "outbox send size reduced")


async def test_while_no_broker_answers_nothing_is_sent_again() -> None:
    brokers, size = Brokers(lambda *_: lost()), SendSize("shop")
    brokers.are_there = False
    answers = await send(size, brokers, messages_of("orders", 50))
    assert not any(isinstance(answer, Acked) for answer in answers)
    assert (len(brokers.calls), brokers.asked) == (1, 1)


async def test_a_link_so_full_that_no_broker_answers_beside_a_send_is_no_outage_for_ever() -> None:
    brokers, size = Brokers(link(3000)), SendSize("shop")
    brokers.are_there = False
    messages = messages_of("orders", 50)
    for _ in range(8):
        rest = [message for message in messages if message not in brokers.written]
        assert failed(await send(size, brokers, rest), rest) == []
        brokers.are_there |= bool(brokers.written)
    assert len(brokers.written) == 50


async def test_without_a_client_the_other_portions_are_not_tried() -> None:
    brokers, size = Brokers(link(1000)), SendSize("shop")
    await send(size, brokers, messages_of("orders", 10))
    brokers.judge, brokers.calls = (lambda *_: AWAY), []
    answers = await send(size, brokers, messages_of("orders", 10))
    assert answers[0] == AWAY
    assert all(isinstance(answer, SendFailed) and answer.retriable for answer in answers)
    assert len(brokers.calls) == 1


async def test_nothing_is_sent_once_it_may_not_go_on() -> None:
    brokers, size, allowed = Brokers(link(1000)), SendSize("shop"), iter([True, True, True])
    messages = messages_of("orders", 10)
    answers = await send(size, brokers, messages, lambda: next(allowed, False))
    assert len(brokers.calls) == 3
    assert failed(answers, messages) == []


@pytest.mark.parametrize("seed", range(20))
async def test_no_message_overtakes_one_of_its_key_whatever_fails(seed: int) -> None:
    rng = random.Random(seed)

    def judge(company: Sequence[Outgoing], message: Outgoing) -> SendFailed | None:
        if size_of(company) > takes or rng.random() < failing:
            return rng.choice(
                [lost(), lost(), SendFailed("it failed by itself", retriable=True, error="CorruptRecordException"), refused()]
            )
        return None

    takes, failing = rng.choice([1500, 20_000, 10**9]), rng.choice([0.0, 0.02, 0.2])
    brokers, size = Brokers(judge, partitions=3), SendSize("shop")
    messages = messages_of("orders", 60, keys=7)
    answers = await send(size, brokers, messages)
    acked = {message.message_id for message, answer in zip(messages, answers, strict=True) if isinstance(answer, Acked)}
    assert [message.message_id for message in brokers.written if message.message_id in acked]
    assert Counter(message.message_id for message in brokers.written).keys() == acked
    assert len(brokers.written) == len(acked)
    for key in range(7):
        own = [message for message in messages if message.key == bytes([key])]
        written = [message for message in brokers.written if message.key == bytes([key])]
        assert written == own[: len(written)], "behind one that failed nothing of its key is sent"


async def test_over_a_slow_link_no_row_gains_an_attempt() -> None:
    class SlowLink(Sender):
        async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
            if len(messages) > 1:
                return [lost()] * len(messages)
            return await super().send_many(messages, stop_keys=stop_keys)

    desk = Desk(max_attempts=1, lease=600.0)
    attempts: set[int] = set()
    desk._new_sender = lambda: SlowLink(desk.log, lambda message: None, lambda: None)  # type: ignore[method-assign]
    desk.table.add(*desk.orders(5, 10))
    async with desk.running(desk.relay()):
        while not desk.is_empty():
            attempts |= {row.attempts for row in desk.table.rows.values()}
            await asyncio.sleep(0)
    assert attempts == {0}
    assert not desk.table.causes
    assert all(desk.log.of_key(b"key-%d" % key) == [b"%d" % number for number in range(10)] for key in range(5))


@pytest.fixture
async def slow_kafka(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryKafka]:
    """A Kafka behind a link of 500 kB/s, which all connections share; a request that waits for longer than 300 ms is given up."""
    line, send = asyncio.Lock(), cast(Any, AIOKafkaClient.send)

    async def pass_on(size: int) -> None:
        for _ in range(-(-size // 5000)):
            async with line:  # whoever waits has a turn before the next piece
                await asyncio.sleep(0.01)

    async def slowly(self: Any, node: int, request: Any, **options: Any) -> Any:
        topics = request._topics if isinstance(request, ProduceRequest) else ()
        size = sum(len(data) for _, partitions in topics for _, data in partitions)
        try:
            await asyncio.wait_for(pass_on(size), 0.3)
        except TimeoutError:
            raise RequestTimedOutError from None
        return await send(self, node, request, **options)

    monkeypatch.setattr(AIOKafkaClient, "send", slowly)
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=8)
        yield kafka


@pytest.mark.slow  # waits for the line
async def test_over_a_real_client_and_a_slow_link_large_rows_of_many_partitions_arrive(slow_kafka: MemoryKafka) -> None:
    sender, size = KafkaSender(HostSettings(slow_kafka.bootstrap, "shop"), timeout=0.4), SendSize("shop")
    await sender.start()
    messages = [Outgoing("orders", bytes(50_000), b"%d" % (number % 16)) for number in range(48)]

    async def answers() -> bool:
        return True

    async with asyncio.timeout(PATIENCE):
        found = await size.send(sender, messages, may_go_on=lambda: True, brokers_answer=answers)
    assert [answer for answer in found if not isinstance(answer, Acked)] == []
    await sender.stop()


async def test_many_silent_topics_cost_a_few_time_outs_and_not_two_each() -> None:
    clock = Clock()

    def judge(company: Sequence[Outgoing], message: Outgoing) -> SendFailed | None:
        if message.topic == "orders":
            return None
        clock.now += 10.0 / sum(each.topic != "orders" for each in company)
        return lost()

    brokers, began = Brokers(judge), clock.now
    silent = [message for number in range(20) for message in messages_of(f"silent-{number}", 4)]
    sizes = SendSize("shop", clock)
    for _ in range(3):
        await sizes.send(brokers, [*silent, *messages_of("orders", 5)], may_go_on=lambda: True, brokers_answer=brokers.answer)
    assert {message.topic for message in brokers.written} == {"orders"}
    assert clock.now - began < 100.0
