"""What brokers say of a quota that is used up: counted from the answers of every client, and logged once a minute."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from tests.fakes import Clock

from ackwise.middleware.log import LogThrottle
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.throttling import THROTTLING, Throttling, watch_throttling
from ackwise.plugin.operate.brokerchecks import judge_throttling
from ackwise.testing import MemoryKafka
from ackwise.testing.kafka import frames


@pytest.fixture
def throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that delay each answer by 250 ms, as they say."""
    monkeypatch.setitem(frames._DEFAULTS, "throttle_time_ms", 250)


@pytest.mark.usefixtures("throttled")
async def test_the_answers_to_each_kind_of_client_are_counted() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        before = THROTTLING.seconds
        async with opened(AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
            await producer.send_and_wait("orders", b"v")
        assert THROTTLING.seconds == before + 0.25
        async with opened(AIOKafkaConsumer("orders", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")) as consumer:
            assert (await consumer.getone()).value == b"v"
        after_consumer = THROTTLING.seconds
        assert after_consumer >= before + 0.5
        async with opened(AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
            await admin.list_topics()
        assert THROTTLING.seconds > after_consumer


async def test_brokers_that_delay_nothing_count_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        before = THROTTLING.seconds
        async with opened(AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
            await producer.send_and_wait("orders", b"v")
        assert THROTTLING.seconds == before
    assert caplog.text == ""


@pytest.mark.usefixtures("throttled")
async def test_a_client_that_is_watched_twice_is_counted_once() -> None:
    async with MemoryKafka() as kafka:
        kafka.create_topic("orders")
        async with opened(AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)) as producer:
            watch_throttling(producer)
            before = THROTTLING.seconds
            await producer.send_and_wait("orders", b"v")
            assert THROTTLING.seconds == before + 0.25


async def test_an_answer_that_says_nothing_of_a_delay_reaches_who_asked_and_a_client_without_connections_is_let_be() -> None:
    class Connections:
        async def send(self, broker: int, request: object) -> object:
            return request

    class Client:
        client = Connections()

    throttling, client = Throttling(), Client()
    for fake in (None, object(), client):
        watch_throttling(fake, throttling)
    for delay in (None, "250", 1e9):
        asked = SimpleNamespace(throttle_time_ms=delay)
        assert await client.client.send(1, asked) is asked
    await client.client.send(1, SimpleNamespace(throttle_time_ms=250))
    assert throttling.seconds == 0.25


def test_there_is_one_line_a_minute_with_the_seconds_since_the_last(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    throttling = Throttling(LogThrottle(clock=clock))
    for _ in range(600):
        throttling.note("billing", 1, 100)
        clock.now += 0.3
    assert throttling.seconds == pytest.approx(60)
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields[0] == {"client": "billing", "broker": 1, "seconds": 0.1}
    assert [each["seconds"] for each in fields[1:]] == [20.0, 20.0]


def test_the_doctor_names_a_quota_that_is_used_up() -> None:
    assert judge_throttling(0.0, "billing").verdict == "ok"
    found = judge_throttling(1.25, "billing")
    assert (found.verdict, "by 1.2 s" in found.found, "client id 'billing'" in found.found) == ("warning", True, True)
    assert found.advice == "raise it with kafka-configs.sh, or let the group send and read less"
