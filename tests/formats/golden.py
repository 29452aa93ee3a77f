"""The texts of `golden/`, each the whole of one format: `ACKWISE_WRITE_GOLDEN=1 pytest tests/formats` writes them again.

Who changes one changes what is stored or sent, and raises the version of that format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).with_name("golden")
_WIDTH: Final = 32  # bytes in a line


def check(name: str, lines: Iterable[str]) -> None:
    """Assert that `lines` are those of the file of this name."""
    path, text = _FOLDER / f"{name}.txt", "".join(f"{line.rstrip()}\n" for line in lines)
    if os.environ.get("ACKWISE_WRITE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def as_hex(content: bytes) -> list[str]:
    """Bytes as lines."""
    return [content[place : place + _WIDTH].hex(" ", 4) for place in range(0, len(content), _WIDTH)]
