"""What the host believes of a broker's answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError

from ackwise.middleware.policies import DeadLetter
from ackwise.middleware.retry import ConsumeLater
from ackwise.plugin.host import Host
from ackwise.plugin.settings import HostSettings

LOADING = GroupLoadInProgressError.errno


def make_host(error_code: int, partitions: list[tuple[int, int, str, int]]) -> Host:
    async def committed(partition: TopicPartition) -> None:
        return None

    async def send(request: Any) -> Any:
        return SimpleNamespace(error_code=error_code, topics=[("orders", partitions)] if partitions else [])

    host = Host(HostSettings(brokers="nowhere:1", group="billing"), [], later=ConsumeLater(), dead_letter=DeadLetter())
    consumer: Any = SimpleNamespace(committed=committed, _coordinator=SimpleNamespace(_send_req=send))
    host._consumer = consumer
    return host


@pytest.mark.parametrize(("error_code", "partitions"), [(LOADING, []), (0, [(0, -1, "", LOADING)])])
async def test_a_coordinator_that_can_not_answer_is_not_taken_for_a_group_that_never_committed(
    error_code: int, partitions: list[tuple[int, int, str, int]]
) -> None:
    with pytest.raises(KafkaError):
        await make_host(error_code, partitions)._committed(TopicPartition("orders", 0))


@pytest.mark.parametrize(("offset", "committed"), [(-1, None), (7, 7)])
async def test_only_the_coordinator_says_that_a_group_never_committed(offset: int, committed: int | None) -> None:
    assert await make_host(0, [(0, offset, "", 0)])._committed(TopicPartition("orders", 0)) == committed


@pytest.mark.parametrize(("topic", "position"), [("billing.retry", 3), ("orders", 9)])
async def test_S19_a_retry_topic_is_read_from_its_beginning_whatever_start_says(topic: str, position: int) -> None:
    async def beginning(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 3)

    async def end(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 9)

    settings = HostSettings(brokers="nowhere:1", group="billing", start="latest")
    host = Host(settings, [], later=ConsumeLater(), dead_letter=DeadLetter())
    consumer: Any = SimpleNamespace(beginning_offsets=beginning, end_offsets=end)
    host._consumer = consumer
    assert await host._start_of(TopicPartition(topic, 0)) == position
