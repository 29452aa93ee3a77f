"""The tables of inbox and outbox, once for all databases; each says with which types."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, Protocol

from ackwise.middleware.outbox import SHARDS, RowState

#: The states of rows, as templates and tables name them.
STATES: Final = {state.name: int(state) for state in RowState}

_NAMES: Final = {
    "schema": "schema",
    "inbox": "inbox",
    "offsets": "offsets",
    "rows": "outbox",
    "shards": "outbox_shard",
    "relays": "outbox_relay",
    "barrier": "outbox_barrier",
    "meta": "outbox_meta",
}
"""As templates name the tables, and without the prefix."""

_VERSIONS: Final = "CREATE TABLE IF NOT EXISTS {schema} (part {part} NOT NULL PRIMARY KEY, version {int4} NOT NULL) {plain}"

# In PostgreSQL the order of columns wastes nothing to alignment. No index holds what changes of an inbox, nor of the offsets, of which
# every batch changes a row.
_INBOX: Final = """
CREATE TABLE IF NOT EXISTS {inbox} (
    {key} NOT NULL PRIMARY KEY,
    exec_id {int8} NOT NULL,
    origin_offset {int8} NOT NULL,
    kept_until {time} NOT NULL,
    origin_partition {int4} NOT NULL,
    next_attempt {int4} NOT NULL,
    outcome {int2} NOT NULL,
    origin_topic {topic} NOT NULL
) {narrow};
CREATE TABLE IF NOT EXISTS {offsets} (
    owner {owner} NOT NULL,
    topic {topic} NOT NULL,
    part {int4} NOT NULL,
    next_offset {int8} NOT NULL,
    generation {int8} NOT NULL,
    began {int8} NOT NULL,
    PRIMARY KEY (owner, topic, part)
) {narrow}"""

# A large value comes last, so that SQLite reads the others without it.
_OUTBOX: Final = """
CREATE TABLE IF NOT EXISTS {rows} (
    id {id},
    created {created} NOT NULL,
    next_at {time},
    key_hash {int8},
    size {int4} NOT NULL,
    attempts {int4} NOT NULL DEFAULT 0,
    checks {int4} NOT NULL DEFAULT 0,
    {partition} {int4},
    shard {int2} NOT NULL,
    state {int2} NOT NULL DEFAULT {LOCAL_COMMIT},{behind}
    message_id {message_id} NOT NULL,
    topic {topic} NOT NULL,
    message_key {bytes},
    headers {headers},
    cause {cause},
    tx_id {name} NOT NULL DEFAULT '',
    producer_group {name} NOT NULL DEFAULT '',
    barrier_in {name} NOT NULL DEFAULT '',
    value {bytes}{keys}
) {wide};
CREATE TABLE IF NOT EXISTS {shards} (
    token {int8} NOT NULL DEFAULT 0,
    leased_until {time} NOT NULL DEFAULT {past},
    shard {int2} NOT NULL PRIMARY KEY,
    owner {name} NOT NULL DEFAULT ''
) {narrow};
CREATE TABLE IF NOT EXISTS {relays} (
    owner {name} NOT NULL PRIMARY KEY,
    leased_until {time} NOT NULL{idle}
) {narrow};
CREATE TABLE IF NOT EXISTS {barrier} (tx_id {name} NOT NULL PRIMARY KEY, outcome {letter} NOT NULL, created {created} NOT NULL) {plain};
CREATE TABLE IF NOT EXISTS {meta} (name {name} NOT NULL PRIMARY KEY, value {name} NOT NULL) {plain}"""

#: Of databases with partial indexes: an ordinary row is in two of them, by its id among all, and by its id among those to be sent.
_INDEXES: Final = """
CREATE INDEX{to_send} ON {rows} (id) WHERE state = {LOCAL_COMMIT}{and_not_behind};
CREATE INDEX{failed} ON {rows} (key_hash, id) WHERE {holds_up};
CREATE INDEX{due} ON {rows} (next_at) WHERE state = {LOCAL_COMMIT} AND next_at IS NOT NULL;
CREATE INDEX{prepared} ON {rows} (next_at) WHERE state = {PREPARED};
CREATE INDEX{of_transaction} ON {rows} (tx_id) WHERE tx_id <> '';
CREATE INDEX{parked} ON {rows} (id) WHERE state = {MESSAGE_ERROR};
CREATE INDEX{ended} ON {rows} (id) WHERE state = {LOCAL_ROLLBACK};
CREATE INDEX{sent} ON {rows} (next_at) WHERE state = {GLOBAL_COMMIT}"""
_FILLED: Final = f"""
{{insert}} INTO {{shards}} (shard) VALUES {", ".join(f"({shard})" for shard in range(SHARDS))} {{keeping}};
{{insert}} INTO {{meta}} (name, value) VALUES ('database_id', '{{database_id}}') {{keeping}}"""


class Names(Protocol):
    """The tables in one place of a database."""

    def named(self, name: str) -> str:
        """Return the table of this name, as SQL."""
        ...


def names_of(tables: Names) -> dict[str, str]:
    """Return the tables as templates name them."""
    return {word: tables.named(name) for word, name in _NAMES.items()}


def versions(types: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Return the statement that creates the table of versions."""
    (statement,) = _written(_VERSIONS, types, names)
    return statement


def inbox(types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return statements that create what is missing of an inbox and its offsets."""
    return _written(_INBOX, types, names)


def outbox(types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return statements that create what is missing of an outbox."""
    return _written(";".join((_OUTBOX, *([_INDEXES] if "holds_up" in types else []), _FILLED)), types, names)


def _written(template: str, types: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    words = {"behind": "", "keys": "", "idle": "", "and_not_behind": "", **STATES, **types, **names, "database_id": uuid.uuid4().hex}
    return [statement.strip().format_map(words) for statement in template.split(";")]
