"""What the host says of a broker that refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError

from ackwise.middleware.errors import AckwiseError, Unavailable
from ackwise.middleware.policies.policies import DeadLetter
from ackwise.middleware.policies.retry import ConsumeLater
from ackwise.plugin.aiokafkahost import AiokafkaHost
from ackwise.plugin.consumer.startup import Parts
from ackwise.plugin.settings.hostsettings import HostSettings


def a_host() -> AiokafkaHost:
    settings = HostSettings(brokers="nowhere:1", group="billing", drain_timeout=0.01)
    return AiokafkaHost(settings, [], Parts(ConsumeLater(), DeadLetter()))


async def test_what_kafka_refuses_at_the_start_is_a_sentence_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object, **__: object) -> None:
        raise GroupAuthorizationFailedError("billing")

    monkeypatch.setattr("ackwise.plugin.consumer.startup.ensure_topics", denied)
    host = a_host()
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of group 'billing' \(.*\); ackwise topics export prints the rights"):
        await host.run(asyncio.Event())


class Consumer:
    """A consumer of aiokafka whose start and stop end with `error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._client = self
        self.is_closed = False

    async def start(self) -> None:
        raise self._error

    async def stop(self) -> None:
        raise self._error

    async def close(self) -> None:
        self.is_closed = True


async def test_whatever_the_client_closes_with_a_worker_that_has_settled_everything_ends_in_order(caplog: pytest.LogCaptureFixture) -> None:
    for number, error in enumerate((asyncio.CancelledError(), KafkaConnectionError("gone"), ValueError("odd")), 1):
        host, consumer = a_host(), Consumer(error)
        host._consumer = consumer  # type: ignore[assignment]
        await host._leave()
        assert consumer.is_closed, error
        assert caplog.text.count("group could not be left") == number


async def test_a_client_that_can_t_connect_now_is_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (asyncio.CancelledError(), KafkaConnectionError("gone"), OSError("gone")):
        consumer = Consumer(error)
        monkeypatch.setattr("ackwise.plugin.aiokafkahost.AIOKafkaConsumer", lambda consumer=consumer, **_: consumer)
        with pytest.raises(Unavailable, match="do not answer a consumer"):
            await a_host()._connect()
        assert consumer.is_closed, error


async def test_a_worker_that_has_failed_and_does_not_come_to_its_end_raises_what_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error must not become exit code 0."""
    monkeypatch.setattr("ackwise.plugin.aiokafkahost._END_AFTER", 0.0)
    monkeypatch.setattr("ackwise.plugin.aiokafkahost._LEAVE_TIMEOUT", 0.0)
    host, failed, released = a_host(), asyncio.Event(), asyncio.Event()

    async def consume() -> None:
        raise AckwiseError("the Kafka client has left the group")

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            failed.set()
            while not released.is_set():  # whatever asks it to end
                with suppress(asyncio.CancelledError):
                    await released.wait()

    monkeypatch.setattr(host, "_consume", consume)
    monkeypatch.setattr(host._member, "opened", opened)
    stop = asyncio.Event()
    running = asyncio.create_task(host.run(stop))
    await failed.wait()
    assert not running.done()
    stop.set()
    await asyncio.wait({running})
    released.set()
    assert isinstance(running.exception(), AckwiseError)


async def test_a_worker_that_does_not_come_to_its_end_and_has_not_failed_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.aiokafkahost._END_AFTER", 0.0)
    host, begun = a_host(), asyncio.Event()

    async def consume() -> None:
        begun.set()
        await asyncio.Event().wait()

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(host, "_consume", consume)
    monkeypatch.setattr(host._member, "opened", opened)
    stop = asyncio.Event()
    running = asyncio.create_task(host.run(stop))
    await begun.wait()
    stop.set()
    await running
