"""What the host says of a broker that refuses it."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import GroupAuthorizationFailedError

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.policies import DeadLetter
from ackwise.middleware.retry import ConsumeLater
from ackwise.plugin.host import Host
from ackwise.plugin.settings import HostSettings


async def test_what_kafka_refuses_at_the_start_is_a_sentence_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object, **__: object) -> None:
        raise GroupAuthorizationFailedError("billing")

    monkeypatch.setattr("ackwise.plugin.member.ensure_topics", denied)
    host = Host(HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter())
    with pytest.raises(AckwiseError, match=r"Kafka refuses this worker of group 'billing' \(.*\); ackwise doctor"):
        await host.run(asyncio.Event())
