"""`reliable`: a loop of the user's own, on a real Kafka, with a consumer of the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import BaseModel
from tests.servers import RawKafka
from tests.tables import each
from tests.waiting import PATIENCE, until

from ackwise import CONSUME_LATER, Batch, ConsumeLater, ConsumeStatus, DeadLetter, Dedup, Event, EventCode, Reject, reliable
from ackwise.errors import AckwiseError, ConfigurationError, InvalidRuling
from ackwise.middleware.pipeline.settlement import Undecided
from ackwise.plugin.loop import Reliable
from ackwise.plugin.loopbatch import Handover, LoopBatch

SOON = ConsumeLater(2, levels="100ms 200ms")


class Order(BaseModel):
    id: str


@asynccontextmanager
async def consumer_of(kafka: RawKafka, group: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    told = {"enable_auto_commit": False, "auto_offset_reset": "none", "session_timeout_ms": 6000, **options}
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, **told)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def committed(kafka: RawKafka, group: str, topic: str) -> int | None:
    async with consumer_of(kafka, group) as consumer:
        offset: int | None = await consumer.committed(TopicPartition(topic, 0))
        return offset


async def test_a_batch_whose_body_ends_is_committed_and_an_observer_sees_it(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", b"b", b"c")
    seen, events = list[bytes](), list[Event]()
    async with (
        asyncio.timeout(PATIENCE),
        consumer_of(raw_kafka, group) as consumer,
        reliable(consumer, topic, SOON, events.append) as batches,
    ):
        async for batch in batches:
            async with batch:
                seen += [message.value for message in batch]
            if len(seen) == 3:
                break
    assert seen == [b"a", b"b", b"c"]
    assert [event.offset for event in events if event.code is EventCode.SUCCEEDED] == [0, 1, 2]
    assert await committed(raw_kafka, group, topic) == 3


async def test_a_body_that_raises_fails_its_batch_and_the_loop_goes_on(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b'{"id": "a"}')
    attempts: list[int] = []
    async with (
        asyncio.timeout(PATIENCE),
        consumer_of(raw_kafka, group) as consumer,
        reliable(consumer, [topic], SOON, model=Order) as batches,
    ):
        async for batch in batches:
            async with batch:
                attempts += [message.reconsume_times for message in batch]
                if len(attempts) < 2:
                    raise ConnectionError("not now")
            if len(attempts) == 2:
                break
    assert attempts == [0, 1]
    assert await committed(raw_kafka, group, topic) == 1
    assert await raw_kafka.records(f"{group}.dlq") == []


async def test_rulings_in_the_body_and_what_can_not_be_decoded_count_as_in_a_handler(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b'{"id": "good"}', b"\xff", b'{"id": "bad"}', b'{"id": "late"}')
    done: list[str] = []
    async with (
        asyncio.timeout(PATIENCE),
        consumer_of(raw_kafka, group) as consumer,
        reliable(consumer, topic, SOON, DeadLetter(), model=Order) as batches,
    ):
        async for batch in batches:
            async with batch:
                for message in batch:
                    match message.value.id:
                        case "bad":
                            batch.dead(message, "no price")
                        case "late" if message.reconsume_times == 0:
                            batch.later(message)
                        case id:
                            done.append(id)
            if done == ["good", "late"]:
                break
    assert {letter.value for letter in await raw_kafka.records(f"{group}.dlq")} == {b"\xff", b'{"id": "bad"}'}
    assert await committed(raw_kafka, group, topic) == 4


@each(("outcome", "dead"), [(CONSUME_LATER, False), (Reject("no price"), True), (None, False)])
async def test_run_does_with_a_handler_what_an_agent_does(
    raw_kafka: RawKafka, outcome: ConsumeStatus | Exception | None, dead: bool
) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")
    calls = 0

    async def handler(batch: Batch[bytes]) -> ConsumeStatus | None:
        nonlocal calls
        calls += 1
        if calls > 1:
            return None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    wanted = 2 if outcome is CONSUME_LATER else 1
    async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON) as batches, asyncio.timeout(PATIENCE):
        async for batch in batches:
            await batch.run(handler)
            if calls == wanted:
                break
    assert len(await raw_kafka.records(f"{group}.dlq")) == dead
    assert await committed(raw_kafka, group, topic) == 1


async def test_a_batch_that_nobody_decides_is_not_committed_and_comes_up_again(
    raw_kafka: RawKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")
    seen: list[int] = []
    claims = Dedup(f"sqlite:///{tmp_path}/claims.db")
    async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON, claims) as batches, asyncio.timeout(PATIENCE):
        async for batch in batches:
            seen.append(batch[0].reconsume_times)
            if len(seen) == 3:
                break
    assert seen == [0, 0, 0], "no attempt is charged"
    assert await committed(raw_kafka, group, topic) == 0
    assert sum("neither entered" in record.getMessage() for record in caplog.records) == 2

    async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON, claims) as batches, asyncio.timeout(PATIENCE):
        async for batch in batches:
            async with batch:
                break
    assert await committed(raw_kafka, group, topic) == 1, "its claim was given back: the next loop had it at once"


async def test_a_loop_may_be_iterated_without_a_context_and_drains_when_it_is_closed(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")
    async with consumer_of(raw_kafka, group) as consumer, asyncio.timeout(PATIENCE):
        iteration = aiter(reliable(consumer, topic, SOON))
        async with await anext(iteration):
            pass
        await iteration.aclose()  # type: ignore[attr-defined]  # an async generator, by type an iterator
        assert consumer.subscription() == frozenset()
    assert await committed(raw_kafka, group, topic) == 1


async def test_stop_ends_the_iteration_once_what_is_open_is_settled(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(partitions=2), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", partition=0)
    await raw_kafka.produce(topic, b"b", partition=1)
    seen: list[bytes] = []
    async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON) as batches, asyncio.timeout(PATIENCE):
        async for batch in batches:
            async with batch:
                batches.stop()
                seen += [message.value for message in batch]
    assert len(seen) == 1, "the other partition's batch is left for whoever comes next"
    async with consumer_of(raw_kafka, group) as consumer:
        assert {await consumer.committed(TopicPartition(topic, number)) for number in (0, 1)} == {0, 1}


async def test_batches_may_be_open_side_by_side(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(partitions=2), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", partition=0)
    await raw_kafka.produce(topic, b"b", partition=1)
    both = asyncio.Barrier(2)

    async def handler(batch: Batch[bytes]) -> None:
        await both.wait()

    async with (
        asyncio.timeout(PATIENCE),
        consumer_of(raw_kafka, group) as consumer,
        reliable(consumer, topic, SOON) as batches,
        asyncio.TaskGroup() as tasks,
    ):
        opened = 0
        async for batch in batches:
            tasks.create_task(batch.run(handler))
            opened += 1
            if opened == 2:
                break
    async with consumer_of(raw_kafka, group) as consumer:
        assert [await consumer.committed(TopicPartition(topic, number)) for number in (0, 1)] == [1, 1]


async def test_a_loop_that_is_cancelled_in_a_body_leaves_the_batch_undecided_and_commits_what_was_done(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", b"b")
    in_second = asyncio.Event()

    async def consume() -> None:
        async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON, max_batch=1) as batches:
            async for batch in batches:
                async with batch:
                    if batch[0].value == b"b":
                        in_second.set()
                        await asyncio.Event().wait()

    consuming = asyncio.create_task(consume())
    async with asyncio.timeout(PATIENCE):
        await in_second.wait()
        consuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consuming
    assert await committed(raw_kafka, group, topic) == 1


async def test_an_exit_in_a_body_passes_and_nothing_is_committed(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")

    async def consume() -> None:
        async with consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON) as batches, asyncio.timeout(PATIENCE):
            async for batch in batches:
                async with batch:
                    raise SystemExit(3)

    with pytest.raises(SystemExit):
        await consume()
    assert await committed(raw_kafka, group, topic) == 0


async def test_a_task_that_is_cancelled_before_it_began_leaves_its_batch_undecided(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")
    calls = 0

    async def handler(batch: Batch[bytes]) -> None:
        nonlocal calls
        calls += 1

    async with asyncio.timeout(PATIENCE), consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON) as batches:
        taken = 0
        async for batch in batches:
            task = asyncio.create_task(batch.run(handler))
            taken += 1
            if taken == 1:
                task.cancel()
            await asyncio.wait({task})
            if taken == 2:
                break
    assert (taken, calls) == (2, 1)
    assert await committed(raw_kafka, group, topic) == 1


async def test_a_second_loop_on_a_consumer_is_refused_until_the_first_has_ended(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", b"b")
    async with asyncio.timeout(PATIENCE), consumer_of(raw_kafka, group) as consumer:
        second = reliable(consumer, topic, SOON, max_batch=1)
        async with reliable(consumer, topic, SOON, max_batch=1) as first:
            with pytest.raises(ConfigurationError, match=r"another reliable\(\) uses this consumer"):
                await second.__aenter__()
            async for batch in first:
                async with batch:
                    break
        async with second:
            async for batch in second:
                async with batch:
                    assert batch[0].value == b"b"
                    break
    assert await committed(raw_kafka, group, topic) == 2


async def test_a_rebalance_waits_for_the_body_and_what_it_did_is_not_run_again(
    raw_kafka: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a", b"b")
    caplog.set_level("INFO", "ackwise")
    inside, go = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async def consume() -> None:
        patient = consumer_of(raw_kafka, group, rebalance_timeout_ms=40_000)
        async with patient as consumer, reliable(consumer, topic, SOON, max_batch=1) as batches:
            async for batch in batches:
                async with batch:
                    seen.append(batch[0].value)
                    inside.set()
                    await go.wait()

    async with asyncio.timeout(PATIENCE):
        members = [asyncio.create_task(consume())]
        await inside.wait()
        members.append(asyncio.create_task(consume()))
        await until(lambda: any("draining" in record.getMessage() for record in caplog.records))
        assert seen == [b"a"]
        go.set()
        await until(lambda: len(seen) == 2)
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    assert seen == [b"a", b"b"]


async def test_a_consumer_that_is_stopped_too_early_is_an_error_with_a_sentence(raw_kafka: RawKafka) -> None:
    topic, group = await raw_kafka.new_topic(), raw_kafka.new_group()
    await raw_kafka.produce(topic, b"a")

    async def consume() -> None:
        async with asyncio.timeout(PATIENCE), consumer_of(raw_kafka, group) as consumer, reliable(consumer, topic, SOON) as batches:
            async for batch in batches:
                async with batch:
                    await consumer.stop()

    with pytest.raises(AckwiseError, match="the consumer was stopped while reliable"):
        await consume()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"group_id": None}, "it has no group; give it a group_id"),
    ({"enable_auto_commit": True}, "it commits by itself"),
    ({"value_deserializer": bytes.decode}, "it has a deserializer"),
    ({"auto_offset_reset": "latest"}, "its auto_offset_reset is 'latest', which skips messages silently"),
    ({}, "it was not started"),
]


@each(("options", "why"), REFUSED)
async def test_a_consumer_that_would_break_a_promise_is_refused_and_says_why(options: dict[str, Any], why: str) -> None:
    told: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "none", **options}
    consumer = AIOKafkaConsumer(**told)
    with pytest.raises(ConfigurationError, match=rf"reliable\(\) can't use this consumer: {why}"):
        reliable(consumer, "orders")
    consumer._closed = None  # it never was opened


async def test_a_consumer_with_a_subscription_is_refused() -> None:
    consumer = AIOKafkaConsumer("orders", group_id="g", enable_auto_commit=False, auto_offset_reset="none")
    with pytest.raises(ConfigurationError, match="it has a subscription already"):
        reliable(consumer, "orders")
    consumer._closed = None


def test_anything_but_a_consumer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"reliable\(\) was given a str; give it an AIOKafkaConsumer"):
        reliable("localhost:9092", "orders")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # what is tested


async def started(**options: Any) -> AIOKafkaConsumer:
    consumer: Any = AIOKafkaConsumer(group_id="g", enable_auto_commit=False, auto_offset_reset="none", **options)
    consumer._fetcher = object()  # as if it had been started: nothing is fetched here
    consumer._closed = None
    return cast(AIOKafkaConsumer, consumer)


async def middleware(batch: Batch[bytes], call_next: Any) -> None:
    await call_next(batch)


@each(
    ("arguments", "settings", "why"),
    [
        (
            ("orders", middleware),
            {},
            "middleware 'middleware' takes a batch, and your own loop has no handler to wrap; write it into the loop",
        ),
        (("orders", SOON, SOON), {}, "ConsumeLater was used twice"),
        ((), {"topics": []}, "agent 'loop' has no topic"),
        (("g.retry",), {}, "a topic that group 'g' writes itself"),
        (("orders",), {"max_batch": 0}, "max_batch of agent 'loop' is 0"),
        (("orders",), {"name": ""}, "name of an agent is ''"),
        (("orders",), {"revoke_timeout": 6}, "revoke_timeout is 6 s, above half of the consumer's rebalance timeout of 10 s"),
        (("orders",), {"brokers": "x:1"}, "has no setting 'brokers'; it has clock_skew"),
        (("orders",), {"modle": Order}, "has no setting 'modle'; did you mean 'model'?"),
        (("orders",), {"model": object()}, "which pydantic can't decode"),
    ],
)
async def test_what_can_not_work_is_refused_at_the_start(arguments: tuple[Any, ...], settings: dict[str, Any], why: str) -> None:
    make: Any = reliable
    consumer = await started()
    with pytest.raises(ConfigurationError, match=why):
        make(consumer, *arguments, **settings)


async def test_brokers_and_credentials_are_those_of_the_consumer() -> None:
    consumer = await started(
        bootstrap_servers=["a:1", "b:2"],
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username="user",
        sasl_plain_password="secret",
        rebalance_timeout_ms=40_000,
    )
    settings = reliable(consumer, "orders")._settings
    assert (settings.brokers, settings.group, settings.revoke_timeout) == ("a:1,b:2", "g", 20.0)
    assert settings.client_options["sasl_plain_password"] == "secret"
    assert "secret" not in repr(reliable(consumer, "orders"))


async def test_an_entry_of_the_environment_counts_but_for_what_the_consumer_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKWISE_AGENTS__LOOP__MAX_BATCH", "7")
    monkeypatch.setenv("ACKWISE_COMMIT_INTERVAL", "1s")
    monkeypatch.setenv("ACKWISE_BROKERS", "elsewhere:1")
    monkeypatch.setenv("ACKWISE_DEDUP__STORE", "memory://")
    batches = reliable(await started(bootstrap_servers="a:1"), "orders")
    assert (batches._agent.max_batch, batches._settings.commit_interval, batches._settings.brokers) == (7, 1.0, "a:1")
    assert batches._slots.dedup is not None


async def test_a_loop_is_entered_once() -> None:
    batches: Reliable[bytes] = reliable(await started(), "orders")
    batches._hosting = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(ConfigurationError, match="was entered or iterated before"):
        async with batches:
            pass


async def test_a_stop_after_the_end_leaves_no_loop_waiting() -> None:
    handover = Handover()
    handover.end()
    handover.close()
    async with asyncio.timeout(PATIENCE):
        assert [await handover.take(), await handover.take()] == [None, None]


async def test_a_batch_of_a_partition_that_was_cut_off_is_undecided_and_no_loop_gets_it() -> None:
    handover, gone, kept = Handover(), LoopBatch[bytes]([]), LoopBatch[bytes]([])
    gone._assignment = cast(Any, SimpleNamespace(cut_off=True))
    offered = [asyncio.create_task(handover(batch)) for batch in (gone, kept)]
    async with asyncio.timeout(PATIENCE):
        assert await handover.take() is kept
        with pytest.raises(Undecided):
            await offered[0]
        async with kept:
            pass
        await offered[1]


async def test_a_batch_is_taken_once() -> None:
    batch: LoopBatch[bytes] = LoopBatch([])
    async with batch:
        with pytest.raises(InvalidRuling, match="was taken before"):
            async with batch:
                pass


async def test_what_the_loop_does_after_it_was_called_off_decides_nothing() -> None:
    batch: LoopBatch[bytes] = LoopBatch([])
    deciding = asyncio.create_task(batch.decision())
    async with batch:
        await asyncio.sleep(0)
        deciding.cancel()
        await asyncio.wait({deciding})
        assert batch.is_over
    assert deciding.cancelled()


class Panic(BaseException):
    """What code in another language may raise."""


GROUP_OF_STOPS = BaseExceptionGroup("", [SystemExit(3), BaseExceptionGroup("", [KeyboardInterrupt()])])


async def _in_body(batch: LoopBatch[bytes], error: BaseException) -> None:
    async with batch:
        raise error


async def _in_handler(batch: LoopBatch[bytes], error: BaseException) -> None:
    async def handler(batch: Batch[bytes]) -> None:
        raise error

    await batch.run(handler)


@each("raising", [_in_body, _in_handler])
@each(
    ("error", "is_decided"),
    [
        (GROUP_OF_STOPS, True),
        (Panic(), True),
        (BaseExceptionGroup("", [Panic(), ValueError()]), True),
        (asyncio.CancelledError(), False),
        (GeneratorExit(), False),
        (BaseExceptionGroup("", [asyncio.CancelledError(), ValueError()]), False),
    ],
    ids=repr,
)
async def test_whatever_is_raised_but_a_cancellation_is_what_becomes_of_a_batch(
    raising: Any, error: BaseException, is_decided: bool
) -> None:
    batch: LoopBatch[bytes] = LoopBatch([])
    with pytest.raises(type(error)) as raised:
        await raising(batch, error)
    assert raised.value is error, "it goes its way"
    with pytest.raises(type(error) if is_decided else Undecided):
        await batch.decision()


async def test_a_group_of_exits_in_a_body_ends_the_loop_as_one_does() -> None:
    handover, batch = Handover(), LoopBatch[bytes]([])
    handling = asyncio.create_task(handover(batch))
    with pytest.raises(BaseExceptionGroup):
        await _in_body(batch, GROUP_OF_STOPS)
    with pytest.raises(BaseExceptionGroup):
        await handling
    assert handover.stopped_by is GROUP_OF_STOPS
