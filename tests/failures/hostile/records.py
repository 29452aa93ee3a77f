"""Records that a broker takes and that clients can't read: a header name that is not UTF-8, a codec that nobody has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c
from tests.servers import connected

#: A name that is not UTF-8, as long as the one in whose place it is put.
NOT_UTF8: Final = b"na\xefve"
_UTF8: Final = "naive"

#: Where the checksum of a batch of records is, and where what it covers starts.
_CHECKSUM, _CHECKED = 17, 21


async def send_with_header(brokers: str, topic: str, partition: int, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
    """Send one record that has, before `headers`, one whose name is `NOT_UTF8`; acknowledged when it returns."""

    def rename(batch: bytearray) -> None:
        assert _UTF8.encode() in batch
        batch[:] = batch.replace(_UTF8.encode(), NOT_UTF8)

    async with connected(AIOKafkaProducer(bootstrap_servers=brokers, acks="all")) as producer:
        batch: Any = producer.create_batch()
        batch.append(timestamp=None, key=None, value=value, headers=[(_UTF8, b""), *headers])
        batch._buffer = _changed(batch._build(), rename)
        await (await producer.send_batch(batch, topic, partition=partition))


def _changed(built: bytes, change: Callable[[bytearray], None]) -> bytearray:
    """A batch of records with something changed in it, and the checksum that it must have then."""
    batch = bytearray(built)
    change(batch)
    struct.pack_into(">I", batch, _CHECKSUM, calc_crc32c(batch[_CHECKED:]))
    return batch
