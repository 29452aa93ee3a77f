"""`attributes`: what an event says as JSON, whatever somebody has put there."""

from __future__ import annotations

import json
import math
from typing import Any, Final

__all__ = ["attributes", "is_duration", "whole_number"]

_LONGEST: Final = 1e11  # seconds, three thousand years
_LARGEST: Final = 2**63


def attributes(text: str | None) -> dict[str, Any]:
    """Return the object, or an empty one where the text is no JSON or another value."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_duration(value: object) -> bool:
    """Whether it is a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= _LONGEST


def whole_number(value: object) -> int | None:
    """Return a whole number, also one that is written as a text; `None` for anything else."""
    if isinstance(value, str) and value.strip().lstrip("+-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < _LARGEST else None
