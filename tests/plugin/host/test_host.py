"""What the host says of a broker that refuses it."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError

from ackwise.middleware.errors import AckwiseError, Unavailable
from ackwise.middleware.policies import DeadLetter
from ackwise.middleware.retry import ConsumeLater
from ackwise.plugin.host.host import AiokafkaHost
from ackwise.plugin.settings.hostsettings import HostSettings


def a_host() -> AiokafkaHost:
    return AiokafkaHost(HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter())


async def test_what_kafka_refuses_at_the_start_is_a_sentence_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object, **__: object) -> None:
        raise GroupAuthorizationFailedError("billing")

    monkeypatch.setattr("ackwise.plugin.group.member.ensure_topics", denied)
    host = a_host()
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of group 'billing' \(.*\); ackwise doctor"):
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


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KafkaConnectionError("gone"), ValueError("odd")], ids=repr)
async def test_whatever_the_client_closes_with_a_worker_that_has_settled_everything_ends_in_order(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    host, consumer = a_host(), Consumer(error)
    host._consumer = consumer  # type: ignore[assignment]
    await host._leave()
    assert consumer.is_closed
    assert "the group could not be left in order" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KafkaConnectionError("gone"), OSError("gone")], ids=repr)
async def test_a_client_that_can_t_connect_now_is_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    consumer = Consumer(error)
    monkeypatch.setattr("ackwise.plugin.host.host.AIOKafkaConsumer", lambda **_: consumer)
    with pytest.raises(Unavailable, match="do not answer a consumer"):
        await a_host()._connect()
    assert consumer.is_closed
