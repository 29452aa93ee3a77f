"""How long a start on Faust waits for brokers, and what of the making of topics may pass."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, NotControllerError, TopicAuthorizationFailedError, UnknownError
from tests.faust.desk import desk, reading
from tests.plugin.kafka.broker import METADATA, Broker

from ackwise.middleware.errors import Unavailable
from ackwise.plugin.faust.startstop import create, insist


async def away() -> None:
    raise KafkaConnectionError("nobody listens")


async def nothing() -> None: ...


async def test_a_start_that_may_not_wait_for_longer_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match=r"the brokers of app 'billing' are unavailable after start_timeout, 0\.5 s"):
        await insist(away, nothing, group="billing", limit=0.5)


async def test_a_start_without_a_limit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackwise.plugin.faust.startstop._AGAIN", 0.0)
    tries = iter([away, away, nothing])
    await insist(lambda: next(tries)(), nothing, group="billing")
    assert next(tries, None) is None


async def test_a_start_that_is_cancelled_leaves_no_connection_open() -> None:
    broker = Broker(METADATA)
    async with broker.serving():
        producer = AIOKafkaProducer(bootstrap_servers=broker.address)
        starting = asyncio.create_task(insist(producer.start, nothing, group="billing"))
        await broker.asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await producer.stop()
        assert len(broker.open) == 1


async def test_what_may_pass_as_a_topic_is_made_is_tried_again_and_a_topic_that_may_not_be_made_is_refused_at_once() -> None:
    def raising(error: BaseException) -> Any:
        async def really(*_: Any) -> None:
            raise error

        return really

    passing = [NotControllerError(), UnknownError(), RuntimeError("Invalid controller: 1"), AssertionError("single topic")]
    for error in (*passing, asyncio.CancelledError()):
        with pytest.raises(KafkaConnectionError):
            await create(raising(error), "orders")
    with pytest.raises(TopicAuthorizationFailedError):
        await create(raising(TopicAuthorizationFailedError("orders")), "orders")


async def test_what_brokers_are_asked_before_a_worker_consumes_has_no_limit_that_ends_it_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()

    async with desk(monkeypatch, reading()) as made:
        recovery = cast(Any, made.app.tables).recovery
        waiting = asyncio.create_task(recovery._wait(answered.wait(), timeout=0.0))
        await asyncio.wait({waiting}, timeout=0.02)
        assert not waiting.done(), "Faust takes the end of its limit for the end of the worker"
        answered.set()
        await waiting
