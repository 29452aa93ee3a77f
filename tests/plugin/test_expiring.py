"""Messages that expire, in each host: what runs, what is a dead letter, and what the audit says of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from tests.plugin.simpleconsumer.conftest import GROUP, TOPIC, receive
from tests.servers import RawKafka
from tests.tables import each
from tests.waiting import PATIENCE, until

from ackwise import App, Broadcasting, ConsumeLater, Dedup, Event, EventCode, Later, Message, SimpleConsumer, reliable
from ackwise.errors import ConfigurationError
from ackwise.middleware.message.message import Delivery, Origin
from ackwise.middleware.message.wire import retry_copy
from ackwise.plugin.settings.config import Config, read_config
from ackwise.plugin.web.workermeasures import CountedEvents, Counts
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.reference.oracle import rule
from ackwise.spark.vocabulary import Flag, Verdict
from ackwise.stores.memory import MemoryStore
from ackwise.testing import MemoryKafka, Place, TestApp

SECOND = 1_000_000

PAST = [("expires", b"1600000000000")]


def at(worker: TestApp, seconds: float) -> list[tuple[str, bytes]]:
    """The header of a message that expires so much later."""
    return [("expires", b"%d" % round((worker.clock() + seconds) * 1000))]


def judged(events: list[Event], offset: int) -> tuple[Verdict, Flag]:
    """The verdict on the message at `offset` of `orders`/0 by the plain algebra."""
    rows = []
    for seq, event in enumerate(events):
        found = event._asdict() | {"event_type": int(event.code), "writer_id": 1, "seq": seq, "group_id": "billing"}
        rows.append(found | {"event_ts": (1000 + seq) * SECOND, "record_ts": None, "due_ts": None})
    ruling = rule(rows, ReconcileConfig(grace=600.0, writer_timeout=100_000.0))
    (verdict,) = {found for (_, _, _, place), found in ruling.messages.items() if place == offset}
    return verdict


def shop(events: list[Event], config: Config | None = None, **options: Any) -> App:
    """Values are keys; `later` comes an hour later."""
    app = App("billing", config=config or Config())
    app.use(Dedup("redis://nobody-is-there:1", key=lambda message: message.raw), ConsumeLater(5), events.append)

    async def bill(message: Message[bytes]) -> None:
        if message.value == b"later":
            raise Later("1h")

    app.agent("orders", **options)(bill)
    return app


async def test_a_message_past_its_header_does_not_run_and_one_of_its_key_that_is_in_time_does() -> None:
    events: list[Event] = []
    async with TestApp(shop(events, expires=True)) as worker:
        fates = [
            await worker.deliver("orders", b"a", headers=at(worker, -1)),
            await worker.deliver("orders", b"a", headers=at(worker, 60)),
            await worker.deliver("orders", b"a", headers=at(worker, -1)),
        ]
        assert [(fate.kind, fate.error) for fate in fates] == [("dead", "expired"), ("done", None), ("duplicate", None)]
        assert [letter.value for letter in worker.dead_letters] == [b"a"]
    assert judged(events, 0) == (Verdict.DEAD_LETTERED, Flag(0))
    assert judged(events, 1) == (Verdict.EXACTLY_ONCE, Flag(0))
    assert judged(events, 2)[0] is Verdict.DUPLICATE_SUPPRESSED


async def test_a_copy_expires_while_it_waits_and_is_a_dead_letter_of_its_second_attempt() -> None:
    events: list[Event] = []
    async with TestApp(shop(events, max_age="1h")) as worker:
        later = await worker.deliver("orders", b"later")
        dead = await worker.redeliver(later)
        assert (later.kind, dead.kind, dead.error, dead.attempt) == ("later", "dead", "expired", 2)
    assert judged(events, 0) == (Verdict.DEAD_LETTERED, Flag.HAD_FAILURES | Flag.RETRIED)
    assert [event.code for event in events].count(EventCode.FAILED) == 1


async def test_a_variable_sets_the_age_of_an_agent_and_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, options, kind in (("1h", {}, "dead"), ("0", {"max_age": "1h"}, "done")):
        monkeypatch.setenv("ACKWISE_AGENTS__BILL__MAX_AGE", given)
        async with TestApp(shop([], read_config(), **options)) as worker:
            worker.kafka.produce("orders", b"old", timestamp=worker.clock() - 3601)
            fate = await worker.fate(Place("orders", 0, 0))
            assert fate.kind == kind


@each(
    ("options", "sentence"),
    [
        ({"expires": "ttl"}, "expires of agent 'bill' is 'ttl'; write True, and the header `expires` of each message says when"),
        ({"max_age": -1}, "max_age is -1; it must be from 0 to 100 years"),
        ({"max_age": "soon"}, "max_age is 'soon', which is not a duration"),
    ],
)
def test_what_can_not_be_meant_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        shop([], **options)
    if "max_age" in options:
        with pytest.raises(ConfigurationError, match=sentence):
            SimpleConsumer("billing", "orders", store=MemoryStore(), **options)
        with pytest.raises(ConfigurationError, match=sentence):
            reliable(cast(AIOKafkaConsumer, None), "orders", **options)


async def test_an_instance_that_broadcasts_drops_what_has_expired() -> None:
    events, seen = list[Event](), list[bytes]()
    app = App("billing", config=Config())
    app.use(Broadcasting("one"), events.append)

    @app.agent("orders", expires=True)
    async def show(message: Message[bytes]) -> None:
        seen.append(message.value)

    async with TestApp(app) as worker:
        fates = [await worker.deliver("orders", value, headers=at(worker, by)) for value, by in ((b"old", -1), (b"new", 60))]
    assert [(fate.kind, fate.error) for fate in fates] == [("dropped", "expired"), ("done", None)]
    assert seen == [b"new"]


async def test_a_receiver_gets_no_message_that_has_expired_nor_a_copy_of_one() -> None:
    async with MemoryKafka(longest_fetch=0.05) as kafka:
        kafka.create_topic(TOPIC)
        kafka.produce(TOPIC, b"old", headers=PAST)
        kafka.produce(TOPIC, b"new")
        consumer = SimpleConsumer(GROUP, TOPIC, store=MemoryStore(), brokers=kafka.bootstrap, expires=True, commit_interval=0.05)
        async with consumer:
            (received,) = await receive(consumer, 1)
            assert received.value == b"new"
            await consumer.ack(received)
            origin = Origin(TOPIC, 0, 0, 0)
            copy = retry_copy(
                Delivery(*origin, None, b"copy", tuple(PAST), origin), topic=f"{GROUP}.retry", partition=0, group=GROUP, handler="receiver",
                due=0, now_ms=0, reason="",
            )  # fmt: skip
            kafka.produce(copy.topic, copy.value, headers=copy.headers)
            while len(kafka.records(f"{GROUP}.dlq")) < 2:
                assert await consumer.receive(1, invisible="10s", wait=0.2) == []
        found = {(letter.value, dict(letter.headers)["ackwise-reason"]) for letter in kafka.records(f"{GROUP}.dlq")}
        assert found == {(b"old", b"expired"), (b"copy", b"expired")}
        await until(lambda: (committed := kafka.committed(GROUP).get((TOPIC, 0))) is not None and committed.offset == 2)


@pytest.mark.kafka
async def test_a_loop_gets_no_message_that_has_expired(raw_kafka: RawKafka) -> None:
    topic, group, seen = await raw_kafka.new_topic(), raw_kafka.new_group(), list[bytes]()
    await raw_kafka.produce(topic, b"old", headers=PAST)
    await raw_kafka.produce(topic, b"new", headers=[("expires", b"%d" % ((time.time() + 3600) * 1000))])
    consumer = AIOKafkaConsumer(
        bootstrap_servers=raw_kafka.bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="none"
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE), consumer, reliable(consumer, topic, expires=True, start="earliest") as batches:
        async for batch in batches:
            async with batch:
                seen += [message.value for message in batch]
            break
    assert seen == [b"new"]
    (letter,) = await raw_kafka.records(f"{group}.dlq")
    assert (letter.value, dict(letter.headers)["ackwise-reason"]) == (b"old", b"expired")


def test_the_metric_of_outcomes_has_expired_messages_apart() -> None:
    counts = Counts()
    for reason in ("expired", "rejected", "expired"):
        CountedEvents(counts, None).record(Event(EventCode.DEAD_LETTERED, "orders", 0, 7, handler="bill", error=reason))
    assert counts.messages == {("bill", "expired"): 2, ("bill", "dead"): 1}
    assert counts.dead == {("bill", "expired"): 2, ("bill", "rejected"): 1}
