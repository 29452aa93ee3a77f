"""Partitions without a leader, on a Kafka in memory."""

from __future__ import annotations

from typing import Any

from aiokafka.errors import NotLeaderForPartitionError

from ackwise.testing import MemoryKafka
from ackwise.testing.kafka.partition import PartitionLog


class Leaderless:
    """Partitions that take and give nothing, until they leave `places`."""

    def __init__(self, kafka: MemoryKafka, *places: tuple[str, int]) -> None:
        self.places = {*places}
        cluster: Any = kafka._cluster
        log = cluster.log

        def led(topic: str, partition: int) -> PartitionLog:
            if (topic, partition) in self.places:
                raise NotLeaderForPartitionError
            found: PartitionLog = log(topic, partition)
            return found

        cluster.log = led
