"""A client that Ackwise opens is closed whatever ends it, by its connections as the broker sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from tests.plugin.kafka.broker import API_VERSIONS, METADATA, Broker

from ackwise.plugin.kafka.clients import close_consumer, opened

CLIENTS = [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient]


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_start_that_is_cancelled_leaves_no_connection_open(make: Callable[..., Any]) -> None:
    """aiokafka forgets the one that it asks first."""
    broker = Broker(METADATA)

    async def work() -> None:
        async with opened(make(bootstrap_servers=broker.address)):
            pass

    async with broker.serving():
        working = asyncio.create_task(work())
        await broker.asked.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert len(broker.open) == 1
    # the end of the block has waited for the end of each connection


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_start_that_fails_raises_what_it_raised(make: Callable[..., Any]) -> None:
    broker = Broker()
    async with broker.serving():
        pass
    with pytest.raises(KafkaConnectionError):
        async with opened(make(bootstrap_servers=broker.address)):
            raise AssertionError("it was not started")


@pytest.mark.parametrize("make", CLIENTS)
async def test_a_client_that_gives_up_half_way_or_that_somebody_else_has_stopped_so_is_closed_all_the_same(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one does nothing when it is told so again."""

    async def give_up() -> None:
        raise RuntimeError("Set changed size during iteration")

    for gives_up in (True, False):
        broker = Broker()
        async with broker.serving():
            async with opened(make(bootstrap_servers=broker.address)) as client:
                connections = client.client if make is AIOKafkaProducer else client._client
                assert await connections.ready(1)
                if gives_up:
                    monkeypatch.setattr(client, "close" if make is AIOKafkaAdminClient else "stop", give_up)
                else:
                    client._closed = True
            assert len(broker.open) == 2
            client._closed = True


async def test_a_client_whose_own_task_has_failed_leaves_no_connection_open() -> None:
    async def fail() -> None:
        raise ValueError

    broker = Broker()
    async with broker.serving():
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        assert await admin._client.ready(admin._client.get_random_node())
        learning, admin._client._sync_task = admin._client._sync_task, asyncio.create_task(fail())
        learning.cancel()
        assert isinstance(await close_consumer(admin, within=10), ValueError)


async def test_a_connection_that_is_under_way_as_its_client_is_closed_does_not_stay_open() -> None:
    broker = Broker()
    async with broker.serving():
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        broker.late.add(API_VERSIONS)
        connecting = asyncio.create_task(admin._client.ready(1))
        await broker.asked.wait()
        assert await close_consumer(admin, within=10) is None
        broker.go_on.set()
        await connecting
        assert len(broker.open) == 2


async def test_a_closed_client_that_is_asked_once_more_leaves_no_connection_open() -> None:
    broker = Broker()
    async with broker.serving():
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        await close_consumer(admin, within=10)
        with suppress(KafkaError):
            await admin._client.send(1, MetadataRequest([]))
        assert len(broker.open) == 2
