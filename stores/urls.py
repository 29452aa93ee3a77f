"""A check that the URLs of all stores share."""

from __future__ import annotations

from collections.abc import Container
from urllib.parse import parse_qsl

__all__ = ["may_hold_an_at_sign"]


def may_hold_an_at_sign(query: str, netloc: str, options: Container[str], texts: Container[str]) -> bool:
    """Return whether each `@` in `query` stands in the value of an option that takes any text, one of `texts`.

    Else it is the rest of a password with a bare question mark: what stands before that would be taken for host and port, and shown.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    return "@" in netloc and all(name in options and ("@" not in value or name in texts) for name, value in pairs)
