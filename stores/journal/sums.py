"""The checksum of an exported file, beside those that its pages have: it covers every byte, also of the footer.

It stands in the footer's metadata as two crc32: of all bytes before the footer, after the file's name, and of the footer with
zeros in its place. A file that Spark wrote has none.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO, Final

#: In the file's metadata.
KEY: Final = b"ackwise.sum"
PLACEHOLDER: Final = b"0" * 16
#: Key and value as Thrift's compact protocol has them in a footer: the length of the value comes before it.
_HEAD: Final = KEY + bytes([0x18, len(PLACEHOLDER)])
_TAIL: Final = 8  # the length of the footer, and the magic
_AT_ONCE: Final = 1 << 20  # bytes


def sealed(content: bytes, name: str) -> bytes:
    """Return the content of a Parquet file whose metadata has `PLACEHOLDER` by `KEY`, with its sum. `name` is the file's."""
    begin = _footer_at(content[-_TAIL:], len(content))
    at = content.find(_HEAD + PLACEHOLDER, begin) + len(_HEAD)
    data = zlib.crc32(content[:begin], zlib.crc32(name.encode()))
    found = b"%08x%08x" % (data, zlib.crc32(content[begin:]))
    return content[:at] + found + content[at + len(found) :]


def is_sealed(path: Path) -> bool:
    """Return whether a Parquet file has a sum. Raises `OSError`."""
    with path.open("rb") as file:
        return _HEAD in _footer(file)[1]


def wrong_sum(path: Path) -> bool:
    """Return whether a file is not what was written by this name; `False` if it has no sum. Reads all of it. Raises `OSError`."""
    with path.open("rb") as file:
        begin, footer = _footer(file)
        if begin < 0:
            return True
        if _HEAD not in footer:
            return False
        at = footer.index(_HEAD) + len(_HEAD)
        said = footer[at : at + len(PLACEHOLDER)]
        file.seek(0)
        data, left = zlib.crc32(path.name.encode()), begin
        while left > 0 and (part := file.read(min(_AT_ONCE, left))):
            data, left = zlib.crc32(part, data), left - len(part)
    blank = footer[:at] + PLACEHOLDER + footer[at + len(PLACEHOLDER) :]
    return said != b"%08x%08x" % (data, zlib.crc32(blank))


def _footer(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the footer starts, and all from there on; it starts below 0 if its length can't be right."""
    size = file.seek(0, os.SEEK_END)
    file.seek(-_TAIL, os.SEEK_END)
    begin = _footer_at(file.read(_TAIL), size)
    if begin < 0:
        return begin, b""
    file.seek(begin)
    return begin, file.read()


def _footer_at(tail: bytes, size: int) -> int:
    return size - _TAIL - int.from_bytes(tail[:4], "little")
