"""`SQLite`: what the outbox of a SQLite file says in other words, with the time of our own clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.outbox.dialect import Around, Dialect
from ackwise.stores.sql.tables import names_of
from ackwise.stores.sql.templates import Placeholders
from ackwise.stores.sqlite.schema import Tables

_WORDS: Final = {
    "now": ":now",
    "later": ":now + :it",
    "at": ":it",
    "until": "{it} - :now",
    "age": ":now - {it}",
    "epoch": ":now",
    "ms": "{it} * 1000",
    "moment": ":now",
    "moment_later": ":now + :it",
    "among": "IN (SELECT value FROM json_each(:it))",
    "mine": """
SELECT shard FROM {shards}
WHERE (shard, token) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:mine))""",
    "locked": "",  # nobody else writes to the file
    # By id, from the beginning. What blocks a key is found in an index that has rows which failed, and no others. The large columns are
    # read last, of few rows.
    "pending": """
WITH seen AS (
    SELECT id, size FROM {rows} AS r INDEXED BY ackwise_outbox_to_send
    WHERE state = {LOCAL_COMMIT} AND shard {among shards} AND (next_at IS NULL OR next_at <= :now) AND NOT id {among under_way}
        AND (key_hash IS NULL OR NOT key_hash {among blocked} AND NOT EXISTS (
            SELECT 1 FROM {rows} AS before WHERE before.key_hash = r.key_hash AND before.id < r.id AND before.attempts > 0
                AND (before.state = {LOCAL_COMMIT} AND before.next_at > :now OR before.state = {MESSAGE_ERROR} AND :block_key)))
    ORDER BY id LIMIT :limit
), summed AS (SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before_it FROM seen)
SELECT r.id, shard, attempts, {ms created}, size, false, topic, value, message_key, headers, partition, message_id
FROM summed AS s CROSS JOIN {rows} AS r ON r.id = s.id WHERE s.before_it < :most ORDER BY r.id""",
}

_BEGIN: Final = "BEGIN IMMEDIATE"

#: How long to wait for others who write, for the `wait` of a call and as always. SQLite takes no value here.
_PATIENCE, _AS_BEFORE = "patience", "as before"

_TABLES: Final = Tables()


class SQLite(Dialect):
    """What reads needs no transaction, and waits for nobody who writes."""

    alone = writing = Around((_BEGIN,), ("COMMIT",))
    patient = Around((_PATIENCE, _BEGIN), ("COMMIT", _AS_BEFORE))
    gave_up = Around((_AS_BEFORE,))
    signing_in = (
        "DELETE FROM {relays} WHERE owner <> :owner",
        "UPDATE {shards} SET owner = '' WHERE owner <> :owner",
    )  # who calls is alone
    has_server = False

    def __init__(self, clock: Callable[[], float], tables: Tables = _TABLES, *, timeout: float = 0.0) -> None:
        super().__init__(_WORDS, names_of(tables), Placeholders(lambda _: "?", repeats=True, adapt=_adapted))
        self._clock, self._timeout = clock, timeout

    def say(self, template: str, **values: Any) -> Statement:
        (said,) = self.say_all([template], **values)
        return said

    def say_all(self, templates: Iterable[str], **values: Any) -> Packet:
        at_once = {"now": self._clock(), **values}
        waits = {_PATIENCE: values.get("wait", 0.0), _AS_BEFORE: self._timeout}
        return [
            Statement(f"PRAGMA busy_timeout = {int(waits[template] * 1000)}") if template in waits else self._templates(template, at_once)
            for template in templates
        ]


def _adapted(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def inserting(table: str, clock: Callable[[], float]) -> Callable[[Sequence[RowColumns], Packet], Steps[None]]:
    """Return what inserts rows to be sent."""
    text = f"INSERT INTO {table} ({', '.join(RowColumns._fields)}, created) VALUES ({', '.join('?' * (len(RowColumns._fields) + 1))})"

    def insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        yield [*before, *(Statement(text, (*row, clock())) for row in rows)]

    return insert
