"""New partitions: those that were made since an instance began with their topic. All of them is read, wherever others began."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from ackwise.plugin.client.offsets import Asked

__all__ = ["NewPartitions"]


class NewPartitions:
    """Marks them in what is known of partitions. `begun` are topics that this instance has positions of."""

    def __init__(self, begun: Iterable[str] = ()) -> None:
        self._begun = set(begun)
        self._at_first: dict[str, frozenset[TopicPartition]] = {}  #: those that were there when the instance began with the topic

    async def ask(self, ask: Callable[[Collection[TopicPartition]], Awaitable[Asked]], partitions: Collection[TopicPartition]) -> Asked:
        """What `ask` says. Until it is known whether the instance has begun with a topic, nothing of that begins without a position."""
        found = await ask(partitions)
        self._begun |= {partition.topic for partition, standing in found.known.items() if standing.committed is not None}
        for topic in {partition.topic for partition in partitions} - self._at_first.keys():
            its = frozenset(partition for partition in partitions if partition.topic == topic)
            if topic in self._begun or not its & found.unknown.keys():
                self._at_first[topic] = frozenset() if topic in self._begun else its
        return self._marked(found)

    def _marked(self, found: Asked) -> Asked:
        marked = Asked({}, dict(found.unknown))
        for partition, standing in found.known.items():
            at_first = self._at_first.get(partition.topic)
            if standing.committed is not None:
                marked.known[partition] = standing
            elif at_first is None:
                marked.unknown[partition] = KafkaConnectionError("it is not known yet whether other partitions of its topic have positions")
            else:
                marked.known[partition] = standing._replace(is_new=partition not in at_first)
        return marked
