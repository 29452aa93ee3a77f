"""`Tables`: the names of the tables, as SQL."""

from __future__ import annotations

from dataclasses import dataclass

from ackwise.middleware.errors import ConfigurationError

__all__ = ["LONGEST", "Tables", "quoted"]

LONGEST = 64
"""Characters of a name."""
_LONGEST_PREFIX = LONGEST - len("claims")


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables in the database `schema`, or else in that of the connection; each name starts with `prefix`. Both are quoted.

    Raises `ConfigurationError` for what the server can't take as a name.
    """

    prefix: str = "ackwise_"
    schema: str | None = None

    def __post_init__(self) -> None:
        if len(self.prefix) > _LONGEST_PREFIX or any(not "\0" < character <= "\uffff" for character in self.prefix):
            raise ConfigurationError(
                f"prefix is {self.prefix!r} for the MySQL store; give at most {_LONGEST_PREFIX} characters, none of them beyond U+FFFF"
            )

    @property
    def versions(self) -> str:
        """Which version each part of the schema has."""
        return self.named("schema")

    @property
    def claims(self) -> str:
        """The records."""
        return self.named("claims")

    def named(self, name: str) -> str:
        """The table `name` of ours, quoted."""
        table = quoted(self.prefix + name)
        return table if self.schema is None else f"{quoted(self.schema)}.{table}"


def quoted(name: str) -> str:
    """A name as SQL."""
    return "`" + name.replace("`", "``") + "`"
