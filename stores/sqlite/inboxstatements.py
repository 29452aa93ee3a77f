"""The statements of an inbox and its offsets in SQLite; who is in a transaction that writes has the whole file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Place
from ackwise.stores.sql.inbox import ENDED, UNFINISHED, Fence, Record
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sqlite.clock import FileClock, Instant

BEGAN: Final = "ackwise_began"
"""A savepoint at the start of the transaction, which is there as long as the transaction is."""

_BEGIN: Final = (Statement("BEGIN IMMEDIATE"),)
_MARK: Final = (Statement(f"SAVEPOINT {BEGAN}"),)
_RELEASE: Final = Statement(f"RELEASE {BEGAN}")

_CLAIM: Final = f"""
SELECT value, coalesce(outcome, {UNFINISHED}), coalesce(next_attempt, 0), coalesce(origin_topic, ''), coalesce(origin_partition, 0),
       coalesce(origin_offset, 0), coalesce(exec_id, 0), NULL
FROM json_each(?) LEFT JOIN ackwise_inbox ON place = value AND kept_until > ?
"""
_FINISH: Final = """
INSERT OR REPLACE INTO ackwise_inbox (place, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), ? FROM json_each(?)
"""
_FORGET: Final = "DELETE FROM ackwise_inbox WHERE place IN (SELECT place FROM ackwise_inbox WHERE kept_until <= ? LIMIT 1000)"

_TAKE_OVER: Final = """
INSERT INTO ackwise_offsets (owner, topic, part, next_offset, generation, began)
SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), 1, json_extract(value, '$[2]')
FROM json_each(?) WHERE TRUE
ON CONFLICT DO UPDATE SET generation = generation + 1 RETURNING topic, part, next_offset, generation
"""
_LOCK: Final = "SELECT next_offset, NULL FROM ackwise_offsets WHERE owner = ? AND topic = ? AND part = ? AND generation = ?"
_ADVANCE: Final = (
    "UPDATE ackwise_offsets SET next_offset = ? WHERE owner = ? AND topic = ? AND part = ? AND generation = ? RETURNING next_offset"
)
_PERMITS: Final = """
SELECT place IS NOT NULL OR began IS NULL OR began > json_extract(value, '$[3]'), next_offset > json_extract(value, '$[3]')
FROM json_each(?) AS asked
LEFT JOIN ackwise_inbox ON place = json_extract(value, '$[0]') AND kept_until > ? AND next_attempt > 0
LEFT JOIN ackwise_offsets ON owner = ? AND topic = json_extract(value, '$[1]') AND part = json_extract(value, '$[2]')
ORDER BY asked.key
"""


def begin(clock: FileClock) -> Steps[Instant]:
    """Become the writer of the file, and return how late it is."""
    instant, _ = yield from clock.instant(_BEGIN, _MARK)
    return instant


class SQLiteStatements:
    """For a transaction that began at `instant`. See `Statements`."""

    state: Packet = ()

    def __init__(self, instant: Instant) -> None:
        self._instant = instant

    still_there: Packet = ()
    undoes_all = True

    def put_back(self, state: Sequence[Any]) -> Packet:
        return ()

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        """See `Statements`; nothing needs to be locked."""
        return [Statement(_CLAIM, (json.dumps([id.hex() for id in ids]), self._instant.now))]

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        """See `Statements`. It deletes what is forgotten as well."""
        written = json.dumps([(id.hex(), *others) for id, *others in records])
        return [
            _RELEASE,
            Statement(_FINISH, (self._instant.keep_from + retention, written)),
            Statement(_FORGET, (self._instant.now,)),
        ]

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        """See `Statements`: a claim writes nothing, and nothing in SQLite commits from within."""
        return ()

    def lock(self, fence: Fence) -> Packet:
        """See `Statements`; nothing needs to be locked."""
        return [Statement(_LOCK, fence)]

    def advance(self, fence: Fence, next: int) -> Packet:
        return [Statement(_ADVANCE, (next, *fence))]

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        asked = json.dumps([(key.id.hex(), *origin) for key, origin in copies])
        return [Statement(_PERMITS, (asked, self._instant.now, owner))]

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        return [Statement(_TAKE_OVER, (owner, json.dumps([(*place, position) for place, position in positions.items()])))]

    def why_ended(self, error: Exception) -> str:
        return ENDED
