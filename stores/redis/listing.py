"""Lists the records of a namespace, from their keys and from the pages of the compact layout; `script.lua` explains the bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Final

from ackwise.middleware.storage.claimstore import Remembered, hash_of
from ackwise.stores.redis.script import Layout

__all__ = ["listed"]

_SCANNED: Final = 1000  # keys that Redis looks at for one command, which takes it less than a millisecond
_ID: Final = 16  # bytes of a record's key behind its prefix
_PAGE: Final = Struct(">I3s")  # the number of the period, and how the ids start
_UNDER_WAY: Final = Struct(">B6s8s6s")  # flags, kept_until, token, leased_until; more follows
_ENTRY: Final = 3  # bytes of flags and end in an entry of a page
_FRACTIONS: Final = 2**22 - 1
_TOOK_UNRELEASED: Final = 4
_TOKEN_END: Final = {False: 5, True: 2}  # bytes of it that a completed record keeps, by whether the layout is compact
_RELEASED: Final = bytes(8)


async def listed(layout: Layout, command: Callable[..., Awaitable[Any]]) -> AsyncIterator[Sequence[Remembered]]:
    """Yield the records of one server. Where Redis grows or shrinks its table meanwhile, it may name a record twice."""
    cursor, pattern = b"0", f"{{{layout.namespace}:*" if layout.buckets else f"{layout.namespace}:*"
    while True:
        cursor, keys = await command("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
        seconds, micros = await command("TIME")
        now = int(seconds) * 1_000_000 + int(micros)
        records = [record async for record in _records(layout, command, keys, now)]
        yield [record for record in records if record.kept_until > now]
        if int(cursor) == 0:
            return


async def _records(layout: Layout, command: Callable[..., Awaitable[Any]], keys: Sequence[bytes], now: int) -> AsyncIterator[Remembered]:
    prefix = len(layout.key(bytes(_ID))) - _ID
    own = [key for key in keys if len(key) == prefix + _ID]
    for group in layout.groups(own):  # in a cluster a command is about one slot
        values = await command("MGET", *(own[place] for place in group))
        for place, value in zip(group, values, strict=True):
            if value is not None:
                yield _of_key(own[place][prefix:], value, now, layout.compact)
    if layout.compact:
        for key in keys:
            if len(key) == prefix + _PAGE.size:
                fields = await command("HGETALL", key)
                for record in _of_page(layout, key[prefix:], fields, now):
                    yield record


def _of_key(key_id: bytes, value: bytes, now: int, compact: bool) -> Remembered:
    flags, kept_until = value[0], _milliseconds(value[1:7])
    if 0 < flags < _TOOK_UNRELEASED:
        is_unrecorded = len(value) > 7 + _TOKEN_END[compact]
        return Remembered(hash_of(key_id), key_id.hex(), flags, False, is_unrecorded, None, kept_until, now)
    _, _, token, leased_until = _UNDER_WAY.unpack_from(value)
    return Remembered(hash_of(key_id), key_id.hex(), 0, token != _RELEASED, False, _milliseconds(leased_until), kept_until, now)


def _of_page(layout: Layout, name: bytes, fields: Any, now: int) -> Iterator[Remembered]:
    number, start = _PAGE.unpack(name)
    left_out = layout.page_bits // 8
    shifted = int.from_bytes(start, "big") << (24 - layout.page_bits)
    begin = shifted.to_bytes(3, "big")[:left_out]
    for field, entry in fields.items() if isinstance(fields, dict) else zip(fields[::2], fields[1::2], strict=True):
        outcome, fraction = divmod(int.from_bytes(entry[:_ENTRY], "big"), _FRACTIONS + 1)
        kept_until = (number * layout.period + fraction * layout.period // _FRACTIONS) * 1000
        yield Remembered(hash_of(begin + field), (begin + field).hex(), outcome, False, False, None, kept_until, now)


def _milliseconds(instant: bytes) -> int:
    """Return an instant in microseconds."""
    return int.from_bytes(instant, "big") * 1000
