"""Text and bytes that strangers chose, as a terminal or a page can show them: one line, cut, and nothing in it is obeyed. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["bytes_text", "cut", "plain"]

#: Characters of a text in a cell of a table, and of a value.
_CELL: Final = 160
_VALUE: Final = 4000


def plain(text: str, limit: int = _CELL) -> str:
    """Return `text` in one line, cut, with what does not print spelled out: control characters, marks that turn the line around."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut(text, limit))


def bytes_text(given: bytes | None, limit: int = _VALUE) -> str | None:
    """Return bytes as a text where they are one, and as 0x and hex digits where they are not; cut."""
    if given is None:
        return None
    try:
        text = given.decode()
    except UnicodeDecodeError:
        text = f"0x{given[:limit].hex()}"
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """Return `text`, or its first `limit` characters and the number of the others."""
    return text if len(text) <= limit else f"{text[:limit]} … {len(text) - limit} more"
