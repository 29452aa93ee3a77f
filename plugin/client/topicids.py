"""Topic ids: which topic a name stands for now. One that is deleted and made again has another id.

The leader of a partition is asked, since it can't have the log of a topic that it does not know yet.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError, for_code

from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.internals import any_broker, leader_of, partitions_of, send
from ackwise.plugin.client.requests import NO_TOPIC_ID, MetadataWithIds

__all__ = ["Topic", "topics_of"]

#: Seconds that a broker has to answer.
_WITHIN: Final = 5.0


class Topic(NamedTuple):
    """A topic as a broker knows it."""

    id: str | None = None
    """As Kafka writes it: 22 characters of base64; `None` where the broker has no ids."""
    partitions: int | None = None
    """How many it has; `None` if that is not known."""


async def topics_of(
    consumer: Any, partitions: Collection[TopicPartition], *, within: float = _WITHIN
) -> tuple[dict[TopicPartition, Topic], dict[TopicPartition, KafkaError]]:
    """The topic of each of `partitions`, as its leader knows it, and of the others why it is not known.

    A broker that is older than ids says `Topic()` with what the client knows of the topic. Raises nothing of the brokers'.
    """
    by_leader: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        by_leader[leader_of(consumer, partition)].append(partition)
    said = await asyncio.gather(*(_ask(consumer, leader, its, within) for leader, its in by_leader.items()))
    known: dict[TopicPartition, Topic] = {}
    unknown: dict[TopicPartition, KafkaError] = {}
    for found in said:
        for partition, topic in found.items():
            if isinstance(topic, Topic):
                known[partition] = topic
            else:
                unknown[partition] = topic
    return known, unknown


async def _ask(
    consumer: Any, leader: int | None, partitions: Collection[TopicPartition], within: float
) -> dict[TopicPartition, Topic | KafkaError]:
    node = leader if leader is not None and leader >= 0 else any_broker(consumer)
    names = sorted({partition.topic for partition in partitions})
    try:
        if node is None:
            raise KafkaConnectionError("the client knows no broker")
        found = _read(await answer(send(consumer, node, MetadataWithIds(names)), within=within))
    except (IncompatibleBrokerVersion, NotImplementedError):  # aiokafka raises either for a broker that does not know version 10
        return {partition: Topic(None, len(partitions_of(consumer, [partition.topic])) or None) for partition in partitions}
    except Exception as error:  # noqa: BLE001  # whatever the client raises, or an answer that can't be read: it is asked again
        return dict.fromkeys(partitions, error if isinstance(error, KafkaError) else KafkaConnectionError(type(error).__name__))
    silent = KafkaConnectionError("the broker's answer leaves out the topic")
    return {partition: found.get(partition.topic, silent) for partition in partitions}


def _read(response: Any) -> dict[str, Topic | KafkaError]:
    said: dict[str, Topic | KafkaError] = {}
    for each in response.to_object()["topics"]:
        if each["error_code"]:
            said[each["topic"]] = for_code(each["error_code"])(each["topic"])
        else:
            said[each["topic"]] = Topic(_text(each["topic_id"]), len(each["partitions"]) or None)
    return said


def _text(topic_id: uuid.UUID) -> str | None:
    """As Kafka writes it."""
    return None if topic_id == NO_TOPIC_ID else base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
