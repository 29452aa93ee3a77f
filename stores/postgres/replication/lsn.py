"""Log sequence numbers of PostgreSQL, as numbers and as the text `16/B374D848`."""

from __future__ import annotations


def format_lsn(lsn: int) -> str:
    """The text that PostgreSQL writes for `lsn`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of a text such as `16/B374D848`. Raises `ValueError`."""
    high, separator, low = text.partition("/")
    if not separator or len(high) > 8 or len(low) > 8:
        raise ValueError(f"{text!r} is no log sequence number")
    return int(high, 16) << 32 | int(low, 16)
