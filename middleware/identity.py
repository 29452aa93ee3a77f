"""Identity of a message for deduplication: its claim key, and the hash that events carry. Pure.

The dedup id is the business key, else the message id in a header that was named, else the origin coordinates with the
record's timestamp, so that a topic that was deleted and made again does not look as if it had been seen.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable, Iterable

from ackwise.middleware.keys import packed

__all__ = ["Identity", "business_id", "coordinates_id", "message_id"]

_COORDINATES = struct.Struct(">iqq")
_TAGGED_COORDINATES = struct.Struct(">ciqq")
_HASH = struct.Struct(">q")


def business_id(key: Hashable) -> bytes:
    """The dedup id of a business key of `key_from`; a text and its UTF-8 bytes are the same key."""
    if isinstance(key, str):
        return b"k" + key.encode("utf-8", "surrogatepass")
    return b"k" + key if isinstance(key, bytes) else b"v" + packed(key)


def message_id(topic: str, header: bytes) -> bytes:
    """The dedup id of a message id in a header, of a message that was written to `topic`: on another topic it is another message."""
    name = topic.encode()
    return b"h" + len(name).to_bytes(4, "big") + name + header


def coordinates_id(topic: str, partition: int, offset: int, timestamp_ms: int) -> bytes:
    """The dedup id of a record that has no other."""
    return b"o" + _COORDINATES.pack(partition, offset, timestamp_ms) + topic.encode()


class Identity:
    """Claim ids for one handler of one group: blake2b-128 over namespace, group, handler and dedup id.

    The dedup epoch and a replay id are mixed in afterwards, so that `hash` stays the same across an intended replay.
    Fields carry their length: no choice of names makes two handlers answer for each other.
    """

    __slots__ = ("_prefix", "_salt", "is_salted")

    def __init__(self, namespace: str, group: str, handler: str, epoch: int = 0) -> None:
        self._prefix = hashlib.blake2b(digest_size=16)
        for name in (namespace, group, handler):
            data = name.encode()
            self._prefix.update(len(data).to_bytes(4, "big") + data)
        self._salt = b"" if epoch == 0 else b"e" + epoch.to_bytes(8, "big", signed=True)
        self.is_salted = epoch != 0  #: a dedup epoch is mixed in, so that a hash is not the beginning of its claim id

    def of_coordinates(self, topic: str, partition: int, offsets: Iterable[int], timestamps_ms: Iterable[int]) -> list[bytes]:
        """The claim ids of records that have no other dedup id, before a dedup epoch is mixed in."""
        empty, pack, tail, found = self._prefix.copy, _TAGGED_COORDINATES.pack, topic.encode(), []
        for offset, timestamp_ms in zip(offsets, timestamps_ms, strict=True):
            digest = empty()
            digest.update(pack(b"o", partition, offset, timestamp_ms) + tail)
            found.append(digest.digest())
        return found

    def of(self, dedup_id: bytes, replay_id: bytes | None = None) -> tuple[bytes, int]:
        """`(claim id, hash)`: 16 bytes, and the first 8 of the id without epoch and replay id as a signed integer."""
        digest = self._prefix.copy()
        digest.update(dedup_id)
        claim = base = digest.digest()
        if salt := self._salt if replay_id is None else self._salt + b"r" + replay_id:
            claim = hashlib.blake2b(base + salt, digest_size=16).digest()
        return claim, _HASH.unpack_from(base)[0]
