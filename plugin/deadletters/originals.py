"""`Originals`: the records of which dead letters were shortened, as their producers wrote them."""

from __future__ import annotations

import hashlib

from aiokafka import TopicPartition

from ackwise.middleware.message import Delivery
from ackwise.plugin.client.reading import TopicReader
from ackwise.plugin.deadletters.letter import Letter

__all__ = ["Originals"]


class Originals:
    """Reads origin topics."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._partitions: dict[str, list[TopicPartition]] = {}

    async def whole(self, letter: Letter) -> Delivery | None:
        """The message with the key, value and headers of its origin; `None` if that is gone, or another record is there now.

        Raises `Unavailable`.
        """
        origin = letter.delivery.origin
        partition = TopicPartition(origin.topic, origin.partition)
        if origin.topic not in self._partitions:
            self._partitions[origin.topic] = await self._reader.partitions([origin.topic])
        if partition not in self._partitions[origin.topic]:
            return None
        start, end = (await self._reader.bounds([partition]))[partition]
        found = await self._reader.first(partition, origin.offset, origin.offset + 1) if start <= origin.offset < end else None
        if found is None or found.timestamp != origin.timestamp_ms or not _has_key(letter, found.key):
            return None
        return letter.delivery._replace(key=found.key, value=found.value, headers=tuple(found.headers))


def _has_key(letter: Letter, key: bytes | None) -> bool:
    """Whether `key` is that of the letter, which may have been cut."""
    if "key" not in letter.dropped:
        return key == letter.delivery.key
    return key is not None and hashlib.blake2b(key, digest_size=16).hexdigest() == letter.fields.get("ackwise-key-hash")
