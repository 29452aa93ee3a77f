"""A check that the URLs of all stores share."""

from __future__ import annotations

from collections.abc import Container
from urllib.parse import parse_qsl

__all__ = ["may_hold_an_at_sign"]


def may_hold_an_at_sign(query: str, netloc: str, options: Container[str]) -> bool:
    """Return whether `query` has an `@` in the value of an option only.

    Else it is the rest of a password with a bare question mark: what stands before that would be taken for host and port, and shown.
    """
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    return "@" in netloc and all(name in options for name in names)
