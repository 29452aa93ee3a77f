"""The tables of a MariaDB or MySQL database: their names, their types, and the statements that create them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol.options import CLAIMS, INBOX, OUTBOX, Purpose
from ackwise.stores.protocol.outbox import text_of
from ackwise.stores.sql.operation import Statement, Steps
from ackwise.stores.sql.schema import Layout, inbox, names_of, outbox, versions

#: Bytes of a name: of a local transaction, a producer group, an owner, a database.
NAMES: Final = 255

# Names are bytes, as a comparison of texts would ignore spaces at the end, and a session in another encoding would change them. One index
# finds what is to be sent in the order of the ids (each entry ends with the id), what is due again, and what is due for a check-back.
TYPES: Final = {
    "id": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    "key": "k BINARY(16)",
    "int8": "BIGINT",
    "int4": "INT",
    "float": "DOUBLE",
    **dict.fromkeys(("int2", "bool"), "TINYINT"),
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
    # The keys of rows that others may wait behind; NULL for all others, which lie together in the index then.
    "keys": ",\n    holder BIGINT AS (IF(attempts > 0 OR behind, key_hash, NULL)) STORED,\n    KEY by_due (state, next_at, behind),"
    "\n    KEY by_key (holder, id),\n    KEY by_tx (tx_id)",
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
        """Our table `name`, quoted."""
        table = quoted(self.prefix + name)
        return table if self.schema is None else f"{quoted(self.schema)}.{table}"


def quoted(name: str) -> str:
    """A name as SQL."""
    return "`" + name.replace("`", "``") + "`"


_EARLIEST = {"MariaDB": (10, 5), "MySQL": (8, 0, 19)}
"""The first that answers an INSERT with its rows, and the first in which the inserted row has a name."""

# The day comes first in the key: records of one day lie together, and those of days gone by are not touched again. There is no
# index but that one, or every change of a record would be a change of an index too. What no claim has yet has its value as a default.
_CLAIMS = """
CREATE TABLE IF NOT EXISTS {} (
    day BIGINT NOT NULL,
    k BINARY(16) NOT NULL,
    token BIGINT NOT NULL,
    leased_until DATETIME(6) NOT NULL,
    kept_until DATETIME(6) NOT NULL,
    epoch INT NOT NULL DEFAULT 1,
    next_attempt INT NOT NULL,
    lost INT NOT NULL DEFAULT 0,
    took_unreleased TINYINT NOT NULL DEFAULT 0,
    outcome TINYINT NOT NULL,
    step TINYINT NOT NULL,
    holder VARCHAR(400) CHARACTER SET ascii NOT NULL,
    PRIMARY KEY (day, k)
) ENGINE = InnoDB"""


def layout(tables: Tables, purpose: Purpose, address: str) -> Layout:
    """Return the tables of `purpose`."""
    version = Statement(f"SELECT version FROM {tables.named('schema')} WHERE part = '{purpose.part}'")
    return Layout(purpose, address, version, functools.partial(_create, tables, purpose, address))


def found(tables: Tables) -> Steps[Tables]:
    """Return the tables, which are there, with the database that they are in: a handler or a business may turn to another one."""
    (answer,) = yield [Statement("SELECT HEX(DATABASE())")]
    database = bytes.fromhex(text_of(answer.rows[0][0])).decode()
    return tables if tables.schema is not None else replace(tables, schema=database)


def ddl(tables: Tables, purpose: Purpose) -> list[str]:
    """Return statements that create what is missing."""
    names = names_of(tables)
    made = {CLAIMS: lambda: [_CLAIMS.format(tables.claims)], INBOX: lambda: inbox(TYPES, names), OUTBOX: lambda: outbox(TYPES, names)}
    return [*made[purpose](), versions(TYPES, names)]


def _create(tables: Tables, purpose: Purpose, address: str) -> Steps[None]:
    require_server((yield from server()), address, purpose)
    insert = f"INSERT IGNORE INTO {tables.named('schema')} VALUES ('{purpose.part}', {purpose.version})"
    for statement in (*ddl(tables, purpose), insert):
        yield [Statement(statement)]


def server() -> Steps[str]:
    """Return the server's name and version."""
    (said,) = yield [Statement("SELECT VERSION()")]
    return str(said.rows[0][0])


def require_server(said: str, address: str, purpose: Purpose = CLAIMS) -> None:
    """Raise `ConfigurationError` for a server that is too old."""
    # Old clients take the first number of a version for all of it, and MariaDB shows them one that they know.
    name, said = ("MariaDB", said.removeprefix("5.5.5-")) if "MariaDB" in said else ("MySQL", said)
    found = tuple(int(number) for number in re.findall(r"\d+", said)[:3])
    if found < _EARLIEST[name]:
        needed = ".".join(map(str, _EARLIEST[name]))
        raise ConfigurationError(
            f"{address}: {name} {'.'.join(map(str, found))} is too old for the {purpose.tables}; it needs {needed} or later"
        )
