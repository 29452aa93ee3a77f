"""`Purpose`: what a database's connections are for, in the words of its errors; and the settings that both purposes share."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError

__all__ = ["CLAIMS", "INBOX", "Purpose"]


class Purpose(NamedTuple):
    """The words that differ between a claim store and an inbox of one database."""

    name: str
    """Of what the user constructs."""
    tables: str
    """What the tables belong to."""
    unit: str
    """What a worker does with it again and again."""
    timed: str
    """What `timeout` bounds."""

    def require_sense(self, database: str, example: str, url: str | None, pool: object | None, timeout: float, max_size: int) -> None:
        """Raise `ConfigurationError` for settings that can't work; `example` is a URL of `database`."""
        if (url is None) == (pool is None):
            raise ConfigurationError(f"a {database} {self.name} needs a URL, such as {example}, or a pool, and not both")
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout is {timeout}; give the seconds that {self.timed} may take, more than 0")
        if max_size < 1:
            raise ConfigurationError(f"max_size is {max_size}; the {database} {self.name} needs at least one connection")

    def not_open(self, address: str) -> str:
        """The text for a call before `open` or after `close`."""
        return f"{address}: the {self.name} is not open; open it before the first {self.unit}"


CLAIMS: Final = Purpose("store", "claim store", "exchange", "an exchange")
INBOX: Final = Purpose("inbox", "inbox", "batch", "a statement of the inbox")
