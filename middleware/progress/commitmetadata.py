"""Metadata of a commit: what a member leaves beside the offset for the next owner of the partition. Pure.

    ackwise2:{crc32 of the rest, 8 hexadecimal digits}:{a JSON object in ASCII}

The broker keeps a string of at most `LIMIT` bytes for each partition and understands nothing of it. A reader may find anything there, or
nothing: metadata that is foreign, damaged or of another version is ignored, and the next commit overwrites it. Tools copy it to other
groups and clusters, so it names the group, the cluster and the topic's id that it is about; `read_own` ignores what is about others.
Names in the object that this version does not know are passed over, so a later one may add some.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

#: Bytes; what brokers allow by default (`offset.metadata.max.bytes`).
LIMIT: Final = 4096
#: Characters of the entries in place, at most 100 of them, and of the map, which is about 16,000 offsets.
_IN_PLACE_SHARE: Final = 1000
_MOST_IN_PLACE: Final = 100
_MAP_SHARE: Final = 2700
#: Bytes that a map may have once it is unpacked: no metadata may fill the memory of a reader.
_LARGEST_MAP: Final = 1 << 16

_ENVELOPE: Final = re.compile(r"ackwise2:([0-9a-f]{8}):(\{.*\})", re.ASCII)


class InPlace(NamedTuple):
    """A message that waits in memory for its next attempt."""

    offset: int
    attempts: int
    """How many it has had."""
    due_ms: int
    """Epoch milliseconds."""


class Tried(NamedTuple):
    """Messages at which workers ended: they are tried in ever smaller portions, at last one alone."""

    first: int
    end: int
    """Behind the last of their offsets."""
    tries: int
    """How often it was started alone, where it is one message; otherwise 0."""
    agent: str = ""
    """Whose message it is, where one agent alone tried it; a hash of the name."""


@dataclass(frozen=True, slots=True)
class FinishedMap:
    """The map: which offsets from `base` on are finished, and what must hold for it to be believed."""

    base: int
    """The offset that is committed."""
    base_ts: int
    """Of the record at `base`; epoch milliseconds."""
    last_ts: int
    """Of the highest finished record; epoch milliseconds."""
    agents: str
    """A hash of the agents' names."""
    bits: int
    """Bit n stands for the offset `base` + n."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Who committed, up to which of its events all were durable then, and what is to be known of the offsets after the commit."""

    writer_id: int | None = None
    last_seq: int | None = None
    """The last durable event of the writer."""
    finished: FinishedMap | None = None
    in_place: Sequence[InPlace] = ()
    group: str | None = None
    """A hash of the group's name."""
    cluster: str | None = None
    topic_id: str | None = None
    """Of the topic: one that is deleted and made again has another."""
    partitions: int | None = None
    """How many the topic had when its group started with it: a partition with a higher number was made since."""
    is_open: bool | None = None
    """Whether the partition had an owner who had not ended in order."""
    tried: Tried | None = None

    def is_about_another(self, topic_id: str | None) -> bool:
        """Return whether it is about another topic than that, of the same name. Without ids nothing tells."""
        return None not in (self.topic_id, topic_id) and self.topic_id != topic_id

    def fit(self) -> str:
        """Return `encode` of as much as has room: without the attempts in place if need be, then without the map too."""
        for each in (self, replace(self, in_place=()), replace(self, in_place=(), finished=None)):
            try:
                return each.encode()
            except ValueError:
                continue
        return ""

    def encode(self) -> str:
        """At most `LIMIT` characters of ASCII. Raises `ValueError` if the map or the entries take more than their share."""
        said: dict[str, Any] = {}
        if self.writer_id is not None and self.last_seq is not None:
            said |= {"w": f"{self.writer_id:016x}", "s": self.last_seq}
        belongs = {"g": self.group, "c": self.cluster, "t": self.topic_id, "n": self.partitions}
        said |= {name: value for name, value in belongs.items() if value is not None}
        if self.is_open is not None:
            said["o"] = int(self.is_open)
        if self.tried is not None:
            first, end, tries, agent = self.tried
            said["r"] = [first, end - first, tries, agent]
        if self.finished is not None:
            said["f"] = _packed_map(self.finished)
        if self.in_place:
            said["i"] = _packed_entries(sorted(self.in_place))
        text = json.dumps(said, separators=(",", ":"))
        envelope = f"ackwise2:{zlib.crc32(text.encode()):08x}:{text}"
        if len(envelope) > LIMIT:
            raise ValueError(f"the metadata of a commit has {len(envelope)} characters, and may have {LIMIT}")
        return envelope


class LastCommit(NamedTuple):
    """What the metadata of a commit that the brokers keep says of its writer."""

    group: str
    writer_id: int
    last_seq: int
    """All its events up to here were durable."""


def decode(metadata: str) -> CommitMetadata | None:
    """Return the metadata given to `encode`; `None` if it is foreign, damaged or of an unknown version. Never raises."""
    found = _ENVELOPE.fullmatch(metadata)
    if found is None or len(metadata) > LIMIT or zlib.crc32(found[2].encode()) != int(found[1], 16):
        return None
    try:
        return _read(json.loads(found[2]))
    # A checksum does not prevent nonsense that is written on purpose.
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, zlib.error):
        return None


def read_own(metadata: str, group: str, cluster: str | None = None) -> CommitMetadata | None:
    """Return what `group` left in that cluster, `None` where it is another's: offsets are copied together with their metadata.

    Without a `cluster` that of the metadata is believed.
    """
    found = decode(metadata)
    if found is None or found.group != group_hash(group) or cluster not in (None, found.cluster):
        return None
    return found


def group_hash(group: str) -> str:
    """Return a short hash of the name of a group."""
    return hashlib.blake2b(group.encode(), digest_size=8).hexdigest()


def _read(said: dict[str, Any]) -> CommitMetadata:
    writer_id = int(said["w"], 16) if "w" in said else None
    return CommitMetadata(
        writer_id,
        None if writer_id is None else _number(said["s"]),
        None if "f" not in said else _unpacked_map(said["f"]),
        () if "i" not in said else tuple(_unpacked_entries(said["i"])),
        None if "g" not in said else _text(said["g"]),
        None if "c" not in said else _text(said["c"]),
        None if "t" not in said else _text(said["t"]),
        None if "n" not in said else _number(said["n"]),
        None if "o" not in said else bool(_number(said["o"])),
        None if "r" not in said else _tried(*said["r"]),
    )


def _tried(first: object, number: object, tries: object, agent: object) -> Tried:
    return Tried(_number(first), _number(first) + _number(number), _number(tries), _text(agent))


def _packed_map(finished: FinishedMap) -> dict[str, Any]:
    plain = finished.bits.to_bytes((finished.bits.bit_length() + 7) // 8, "little")
    packed = zlib.compress(plain, 9)
    name, content = ("z", packed) if len(packed) < len(plain) else ("m", plain)
    text = base64.b64encode(content).decode()
    if len(text) > _MAP_SHARE or len(plain) > _LARGEST_MAP:
        raise ValueError(f"the map of finished offsets has {len(text)} characters, and may have {_MAP_SHARE}")
    times = [finished.base_ts, finished.last_ts]
    return {"b": finished.base, "t": times, "a": finished.agents, name: text}


def _unpacked_map(said: dict[str, Any]) -> FinishedMap:
    content = base64.b64decode(said["z" if "z" in said else "m"], validate=True)
    if "z" in said:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(content, _LARGEST_MAP)
        if not unpacking.eof:
            raise ValueError("the map is too large, or cut")
    base_ts, last_ts = map(_number, said["t"])
    return FinishedMap(_number(said["b"]), base_ts, last_ts, _text(said["a"]), int.from_bytes(content, "little"))


def _packed_entries(entries: Sequence[InPlace]) -> list[Any]:
    """The first offset, the first due time, and then small numbers: steps of the offset, attempts, milliseconds after the first."""
    offset, due = entries[0].offset, min(entry.due_ms for entry in entries)
    numbers, last = [], offset
    for entry in entries:
        numbers += [entry.offset - last, entry.attempts, entry.due_ms - due]
        last = entry.offset
    text = base64.b64encode(b"".join(map(_varint, numbers))).decode()
    if len(text) > _IN_PLACE_SHARE or len(entries) > _MOST_IN_PLACE:
        raise ValueError(f"{len(entries)} entries in place have {len(text)} characters, and may have {_IN_PLACE_SHARE}")
    return [offset, due, text]


def _unpacked_entries(said: list[Any]) -> Iterator[InPlace]:
    offset, due, text = said
    offset, due = _number(offset), _number(due)
    numbers = list(_varints(base64.b64decode(text, validate=True)))
    if len(numbers) % 3:
        raise ValueError("the entries are cut")
    for step, attempts, later in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        offset += step
        yield InPlace(offset, attempts, due + later)


def _varint(number: int) -> bytes:
    """Seven bits to a byte, the lowest first; all but the last byte have the highest bit."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varints(content: Iterable[int]) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a number is cut")


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
