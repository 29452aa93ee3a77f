"""`Logs`: the state of the log files of writers, beyond the events in them."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NO_LOGS", "Logs"]


class Logs(NamedTuple):
    """The state of log files, by the id of their writer."""

    unreadable: frozenset[int] = frozenset()
    """Their log could not be read to its end."""
    still_written: frozenset[int] = frozenset()
    """A worker still writes it."""


NO_LOGS: Final = Logs()
