"""`Tables`: the names of the tables, as SQL."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError

# Half of each page stays free, and no index holds a column that changes: so the new version of a record finds room beside the
# old one, and no index has to know of it.
HALF_FREE: Final = "WITH (fillfactor = 50)"

#: Rows of an outbox come and go, so vacuum comes after a number of changes, whatever the size of the table.
TYPES: Final = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "key": "k uuid",
    "int8": "bigint",
    "int4": "int",
    "int2": "smallint",
    "float": "float8",
    "time": "timestamptz",
    "created": "timestamptz DEFAULT clock_timestamp()",
    "bytes": "bytea",
    "letter": "char(1)",
    **dict.fromkeys(("part", "owner", "topic", "message_id", "name", "headers", "cause"), "text"),
    "partition": "partition",
    "past": "'-infinity'",
    "bool": "boolean",
    "idle": ",\n    idle_until timestamptz",
    "plain": "",
    "narrow": HALF_FREE,
    "wide": "WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)",
    **dict.fromkeys(
        ("to_send", "tried", "failed", "due", "prepared", "of_transaction", "parked", "ended", "sent", "delayed", "expired"), ""
    ),
    "insert": "INSERT",
    "keeping": "ON CONFLICT DO NOTHING",
}

_LONGEST = 63
"""Bytes of a name that PostgreSQL keeps; it cuts the rest without a word."""
_LONGEST_PREFIX = _LONGEST - len("daily_claims_20261121")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables in `schema`, or where the search path leads if that is `None`; each name starts with `prefix`.

    Both may be any text that PostgreSQL takes for a name; they are quoted. Raises `ConfigurationError`.
    """

    schema: str | None = None
    prefix: str = "ackwise_"

    def __post_init__(self) -> None:
        _check("schema", self.schema or "public", _LONGEST)
        _check("prefix", self.prefix, _LONGEST_PREFIX)
        if self.schema == "":
            raise ConfigurationError("schema is empty for the PostgreSQL store; name one, or leave it out for the search path's first")

    @property
    def claims(self) -> str:
        """The records of keys without a day."""
        return self.named("claims")

    @property
    def daily_claims(self) -> str:
        """The records of keys with a day, partitioned by it."""
        return self.named("daily_claims")

    @property
    def other_days(self) -> str:
        """The partition for days that have none."""
        return self.named("daily_claims_other")

    @property
    def schema_name(self) -> str | None:
        """The schema, quoted."""
        return None if self.schema is None else _quoted(self.schema)

    def of_day(self, day: datetime.date) -> str:
        """The partition of one day."""
        return self.named(f"daily_claims_{day:%Y%m%d}")

    def named(self, name: str) -> str:
        """Our table `name`, quoted and with its schema."""
        return self.sibling(self.prefix + name)

    def sibling(self, table: str) -> str:
        """Return the name of another table in our schema, quoted."""
        return _quoted(table) if self.schema is None else f"{_quoted(self.schema)}.{_quoted(table)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check(what: str, name: str, longest: int) -> None:
    if "\0" in name or len(name.encode(errors="replace")) > longest:
        raise ConfigurationError(f"{what} is {name!r} for the PostgreSQL store; give a name of at most {longest} bytes")
