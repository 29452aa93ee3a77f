"""`Tables`: the names of the tables, as SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ackwise.middleware.errors import ConfigurationError

#: Bytes of a name: of a local transaction, a producer group, an owner, a database.
NAMES: Final = 255

# Names are bytes, as a comparison of texts would ignore spaces at the end, and a session in another encoding would change them. One index
# finds what is to be sent in the order of the ids (each entry ends with the id), what is due again, and what is due for a check-back.
TYPES: Final = {
    "id": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    "key": "k BINARY(16)",
    "int8": "BIGINT",
    "int4": "INT",
    "int2": "TINYINT",
    **dict.fromkeys(("time", "created"), "DATETIME(6)"),
    "bytes": "LONGBLOB",
    "letter": "CHAR(1) CHARACTER SET ascii",
    "part": "VARCHAR(64) CHARACTER SET ascii",
    "owner": "VARBINARY(512)",
    "topic": "VARBINARY(249)",
    "message_id": "VARBINARY(200)",
    "name": f"VARBINARY({NAMES})",
    "headers": "LONGTEXT CHARACTER SET ascii",
    "cause": "VARCHAR(500) CHARACTER SET utf8mb4",
    "partition": "`partition`",
    "past": "'2000-01-01'",
    "keys": ",\n    KEY by_due (state, next_at),\n    KEY by_tx (tx_id)",
    **dict.fromkeys(("plain", "narrow", "wide"), "ENGINE = InnoDB"),
    "insert": "INSERT IGNORE",
    "keeping": "",
}

_LONGEST_PREFIX = 64 - len("outbox_barrier")


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
