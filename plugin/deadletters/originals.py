"""`Originals`: the records of which dead letters were shortened, as their producers wrote them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import Unavailable
from ackwise.middleware.message import Delivery
from ackwise.plugin.deadletters.letter import Letter
from ackwise.plugin.deadletters.place import Place
from ackwise.plugin.deadletters.reading import record_at
from ackwise.plugin.group.copyreader import CopyReader, reading

__all__ = ["Originals", "reading_originals"]


class Originals:
    """Reads origin topics; made by `reading_originals`. It has a consumer of its own: that of the letters is amid their topic."""

    def __init__(self, copies: CopyReader) -> None:
        self._copies = copies
        self._partitions: dict[str, list[TopicPartition]] = {}

    async def whole(self, letter: Letter) -> Delivery | None:
        """The message with the key, value and headers of its origin; `None` if that is gone, or another record is there now.

        Raises `KafkaError` and `TimeoutError`.
        """
        origin = letter.delivery.origin
        partition = TopicPartition(origin.topic, origin.partition)
        if origin.topic not in self._partitions:
            self._partitions[origin.topic] = await self._copies.partitions([origin.topic])
        if partition not in self._partitions[origin.topic]:
            return None
        left = (await self._copies.left([partition], {}))[partition]
        found = await record_at(self._copies, partition, origin.offset, left)
        if found is None or found.timestamp_ms != origin.timestamp_ms or not _has_key(letter, found.key):
            return None
        return letter.delivery._replace(key=found.key, value=found.value, headers=found.headers)


def _has_key(letter: Letter, key: bytes | None) -> bool:
    """Whether `key` is that of the letter, which may have been cut."""
    if "key" not in letter.dropped:
        return key == letter.delivery.key
    return key is not None and hashlib.blake2b(key, digest_size=16).hexdigest() == letter.fields.get("ackwise-key-hash")


@asynccontextmanager
async def reading_originals(place: Place) -> AsyncIterator[Originals]:
    """A reader while the block runs; what the brokers do not answer in it is `Unavailable`."""
    try:
        async with reading(place.settings, place.names) as copies:
            yield Originals(copies)
    except (KafkaError, TimeoutError) as error:
        raise Unavailable(
            f"the brokers {place.settings.brokers!r} do not give the origins of shortened letters ({type(error).__name__}); see that they "
            "are there, and that this client may read those topics"
        ) from error
