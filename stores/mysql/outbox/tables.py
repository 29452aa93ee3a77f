"""`OutboxTables`: the tables of an outbox in MariaDB or MySQL, as SQL; and what creates them."""

from __future__ import annotations

import uuid
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import SHARDS
from ackwise.stores.mysql.tables import LONGEST, Tables
from ackwise.stores.sql.outbox.dialect import STATES, TABLES

__all__ = ["NAMES", "OutboxTables"]

#: Bytes of a name: of a local transaction, a producer group, an owner, a database.
NAMES: Final = 255

# Names are bytes, as a comparison of texts would ignore spaces at the end, and a session in another encoding would change them. One index
# finds what is to be sent in the order of the ids (each entry ends with the id), what is due again, and what is due for a check-back.
_ROWS: Final = """
CREATE TABLE IF NOT EXISTS {rows} (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created DATETIME(6) NOT NULL,
    next_at DATETIME(6) NULL,
    key_hash BIGINT NULL,
    size BIGINT NOT NULL,
    attempts INT NOT NULL DEFAULT 0,
    checks INT NOT NULL DEFAULT 0,
    `partition` INT NULL,
    shard SMALLINT NOT NULL,
    state TINYINT NOT NULL DEFAULT {LOCAL_COMMIT},
    message_id VARBINARY(200) NOT NULL,
    topic VARBINARY(249) NOT NULL,
    message_key LONGBLOB NULL,
    value LONGBLOB NULL,
    headers LONGTEXT CHARACTER SET ascii NULL,
    cause VARCHAR(500) CHARACTER SET utf8mb4 NULL,
    tx_id VARBINARY({names}) NOT NULL DEFAULT '',
    producer_group VARBINARY({names}) NOT NULL DEFAULT '',
    barrier_in VARBINARY({names}) NOT NULL DEFAULT '',
    KEY by_due (state, next_at),
    KEY by_tx (tx_id)
) ENGINE = InnoDB"""

_SHARDS: Final = """
CREATE TABLE IF NOT EXISTS {shards} (
    shard SMALLINT NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL DEFAULT 0,
    owner VARBINARY({names}) NOT NULL DEFAULT '',
    leased_until DATETIME(6) NOT NULL DEFAULT '2000-01-01'
) ENGINE = InnoDB"""

_RELAYS: Final = """
CREATE TABLE IF NOT EXISTS {relays} (
    owner VARBINARY({names}) NOT NULL PRIMARY KEY,
    leased_until DATETIME(6) NOT NULL,
    idle_until DATETIME(6) NULL
) ENGINE = InnoDB"""

_BARRIER: Final = """
CREATE TABLE IF NOT EXISTS {barrier} (
    tx_id VARBINARY({names}) NOT NULL PRIMARY KEY,
    outcome CHAR(1) CHARACTER SET ascii NOT NULL,
    created DATETIME(6) NOT NULL
) ENGINE = InnoDB"""

_META: Final = """
CREATE TABLE IF NOT EXISTS {meta} (
    name VARBINARY(64) NOT NULL PRIMARY KEY,
    value VARBINARY({names}) NOT NULL
) ENGINE = InnoDB"""


class OutboxTables:
    """The tables of the outbox beside the other ones of `tables`. Raises `ConfigurationError` for a prefix that is too long."""

    def __init__(self, tables: Tables) -> None:
        if len(tables.prefix) > LONGEST - len("outbox_barrier"):
            raise ConfigurationError(f"prefix is {tables.prefix!r} for the MySQL outbox; give at most {LONGEST - 14} characters")
        self.all = tables
        self.names = {word: tables.named(name) for word, name in TABLES.items()}  #: what statements are formatted with
        self.rows = self.names["rows"]

    @property
    def ddl(self) -> list[str]:
        """Statements that create what is missing."""
        made = (_ROWS, _SHARDS, _RELAYS, _BARRIER, _META)
        shards = ", ".join(f"({shard})" for shard in range(SHARDS))
        return [
            *(statement.format(**self.names, **STATES, names=NAMES) for statement in made),
            f"INSERT INTO {self.names['shards']} (shard) VALUES {shards} ON DUPLICATE KEY UPDATE shard = shard",
            f"INSERT INTO {self.names['meta']} VALUES ('database_id', '{uuid.uuid4().hex}') ON DUPLICATE KEY UPDATE name = name",
        ]
