"""`Purpose`: the words of errors that differ between claim store, inbox and outbox of one database, and the checks that do not."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError


class Purpose(NamedTuple):
    """The words that differ between claim store, inbox and outbox of one database."""

    name: str
    """Of what the user constructs."""
    tables: str
    """What the tables belong to."""
    unit: str
    """What a worker does with it again and again."""
    timed: str
    """What `timeout` bounds."""
    part: str
    """Of the schema, as the table of versions names it."""
    missing: str
    """The sentence for a database that is not set up."""
    has: str
    """What begins the sentence about a version."""
    init: str = "ackwise store init URL"
    """The command that sets it up."""
    version: int = 1
    """Of its tables, in every database."""

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

    def not_there(self, address: str) -> str:
        """The text for tables that are missing."""
        return f"{address}: {self.missing}; run `{self.init}`"

    def require_version(self, found: int, address: str, otherwise: str = "choose another prefix") -> None:
        """Raise `ConfigurationError` for another version than ours."""
        if found != self.version:
            raise ConfigurationError(
                f"{address}: its {self.has} version {found}, and this Ackwise knows version {self.version} alone; "
                f"start the Ackwise that made them, or {otherwise}"
            )


CLAIMS: Final = Purpose(
    name="store",
    tables="claim store",
    unit="exchange",
    timed="an exchange",
    part="claims",
    missing="the tables of the claim store are missing",
    has="claims have",
    version=3,
)
INBOX: Final = Purpose(
    name="inbox",
    tables="inbox",
    unit="batch",
    timed="a statement of the inbox",
    part="inbox",
    missing="the table of the inbox is missing",
    has="inbox has",
    version=4,
)
OUTBOX: Final = Purpose(
    name="outbox",
    tables="outbox",
    unit="call",
    timed="a call of the outbox",
    part="outbox",
    missing="the tables of the outbox are missing",
    has="outbox has",
    init="ackwise outbox init URL",
    version=3,
)
CDC: Final = Purpose(
    name="change data capture",
    tables="change data capture",
    unit="read",
    timed="a statement of change data capture",
    part="cdc",
    missing="the table of change data capture is missing",
    has="change data capture has",
    init="ackwise cdc URL --create-slot",
)
