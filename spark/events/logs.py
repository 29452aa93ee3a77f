"""`Logs`: what the log files of writers say of them, beyond the events in them."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NO_LOGS", "Logs"]


class Logs(NamedTuple):
    """What is known of writers from their log files, beyond the events in them."""

    unreadable: frozenset[int] = frozenset()
    """Their log could not be read to its end."""
    held: frozenset[int] = frozenset()
    """Somebody still writes it."""


NO_LOGS: Final = Logs()
