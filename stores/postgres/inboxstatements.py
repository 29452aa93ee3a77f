"""The statements of an inbox and its offsets in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ackwise.middleware.store import ClaimKey
from ackwise.middleware.transaction import Place
from ackwise.stores.sql.inbox import ENDED, UNFINISHED, Fence, Record
from ackwise.stores.sql.operation import Packet, Statement

# Each record is written twice in its transaction, when it is taken and when it is finished.
#
# `finished` is read without a lock, so that nobody waits for a batch which only repeats a key. What is not finished is inserted,
# or locked where it is already, in the order of the keys: nobody waits for anybody in a circle. A key that another transaction
# finishes while this statement waits for it is in neither answer; it is asked for again, and the next statement sees it finished.
# LATERAL and LIMIT leave the planner no join: one that was planned for an empty table reads all of a large one.
_CLAIM: Final = f"""
WITH asked AS (
    SELECT unnest($1::text::uuid[]) AS k
), finished AS MATERIALIZED (
    SELECT found.* FROM asked CROSS JOIN LATERAL (
        SELECT k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id
        FROM {{inbox}} AS r WHERE r.k = asked.k AND outcome <> {UNFINISHED} AND kept_until > clock_timestamp() LIMIT 1
    ) AS found
), taken AS (
    INSERT INTO {{inbox}} AS r (k, exec_id, origin_offset, kept_until, origin_partition, next_attempt, outcome, origin_topic)
    SELECT k, $3::bigint, 0, clock_timestamp() + $2::float8 * interval '1 s', 0, 0, {UNFINISHED}, ''
    FROM asked WHERE k NOT IN (SELECT k FROM finished) ORDER BY k
    ON CONFLICT (k) DO UPDATE SET
        next_attempt = CASE WHEN r.kept_until <= clock_timestamp() THEN 0 ELSE r.next_attempt END,
        kept_until = excluded.kept_until, outcome = {UNFINISHED}, exec_id = excluded.exec_id
    WHERE r.outcome = {UNFINISHED} OR r.kept_until <= clock_timestamp()
    RETURNING k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id
)
SELECT *, pg_current_xact_id()::text AS transaction FROM (TABLE finished UNION ALL TABLE taken) AS answers
"""

# A transaction that is not ours any more has another id, and writes nothing.
_FINISH: Final = """
WITH ours AS (
    SELECT pg_current_xact_id()::text = coalesce($8::text, pg_current_xact_id()::text) AS still
), written AS (
    INSERT INTO {inbox} (k, outcome, next_attempt, origin_topic, origin_partition, origin_offset, exec_id, kept_until)
    SELECT done.*, clock_timestamp() + $9::float8 * interval '1 s'
    FROM ours, unnest(
        $1::text::uuid[], $2::text::smallint[], $3::text::int[], $4::text[], $5::text::int[], $6::text::bigint[], $7::text::bigint[]
    ) AS done WHERE still
    ON CONFLICT (k) DO UPDATE SET
        outcome = excluded.outcome, next_attempt = excluded.next_attempt, origin_topic = excluded.origin_topic,
        origin_partition = excluded.origin_partition, origin_offset = excluded.origin_offset, exec_id = excluded.exec_id,
        kept_until = excluded.kept_until
)
SELECT still FROM ours
"""

_COMMITTED: Final = f"SELECT count(*) FROM {{inbox}} WHERE k = ANY ($1::text::uuid[]) AND exec_id = $2::bigint AND outcome = {UNFINISHED}"

_LOCK: Final = """
SELECT next_offset, pg_current_xact_id()::text FROM {offsets}
WHERE owner = $1::text AND topic = $2::text AND part = $3::int AND generation = $4::bigint FOR UPDATE
"""

_ADVANCE: Final = """
UPDATE {offsets} SET next_offset = $5::bigint
WHERE owner = $1::text AND topic = $2::text AND part = $3::int AND generation = $4::bigint RETURNING true
"""

_TAKE_OVER: Final = """
INSERT INTO {offsets} AS o (owner, topic, part, next_offset, generation, began)
SELECT $1::text, asked.topic, asked.partition, asked.position, 1, asked.position
FROM unnest($2::text[], $3::text::int[], $4::text::bigint[]) AS asked (topic, partition, position) ORDER BY asked.topic, asked.partition
ON CONFLICT (owner, topic, part) DO UPDATE SET generation = o.generation + 1 RETURNING o.topic, o.part, o.next_offset, o.generation
"""

# A row of the inbox that was taken and never finished or sent back has the attempt 0, and permits nothing.
_PERMITS: Final = """
SELECT r.k IS NOT NULL OR o.began IS NULL OR o.began > asked.place, o.next_offset > asked.place
FROM unnest($1::text::uuid[], $2::text[], $3::text::int[], $4::text::bigint[]) WITH ORDINALITY AS asked (k, topic, partition, place, number)
LEFT JOIN {inbox} AS r ON r.k = asked.k AND r.kept_until > clock_timestamp() AND r.next_attempt > 0
LEFT JOIN {offsets} AS o ON o.owner = $5::text AND o.topic = asked.topic AND o.part = asked.partition
ORDER BY asked.number
"""

_IN_FAILED_TRANSACTION: Final = "25P02"
_BROKEN: Final = (
    "the handler caught an error of PostgreSQL and went on, but PostgreSQL undoes the whole transaction then; let the error pass, "
    "or run what may fail in a savepoint, `async with connection.transaction():` or `async with session.begin_nested():`"
)
_IN_USE: Final = "the handler ended while it still uses its connection; await everything it starts"


class PostgresStatements:
    """For tables of these names, with their schema. See `Statements`."""

    state: Packet = (Statement("SELECT quote_ident(current_setting('role'))"),)

    def __init__(self, inbox: str, offsets: str) -> None:
        texts = (_CLAIM, _FINISH, _COMMITTED, _LOCK, _ADVANCE, _TAKE_OVER, _PERMITS)
        self._claim, self._finish, self._committed, self._lock, self._advance, self._take_over, self._permits = (
            text.format(inbox=inbox, offsets=offsets) for text in texts
        )

    still_there: Packet = ()
    undoes_all = True

    def put_back(self, state: Sequence[Any]) -> Packet:
        """See `Statements`. A schema that a handler turned to is none of our statements' business."""
        (role,) = state
        return [Statement(f"RESET SESSION AUTHORIZATION; SET ROLE {role}")]

    def claim(self, ids: Sequence[bytes], mark: int, retention: float) -> Packet:
        return [Statement(self._claim, (_array(map(bytes.hex, ids)), retention, mark))]

    def finish(self, records: Sequence[Record], retention: float, transaction: str | None, left: Sequence[bytes], mark: int) -> Packet:
        ids, outcomes, attempts, topics, *others = zip(*records, strict=True) if records else [()] * 7
        columns = _array(map(bytes.hex, ids)), _array(outcomes), _array(attempts), list(topics), *map(_array, others)
        return [Statement(self._finish, (*columns, transaction, retention))]

    def committed(self, ids: Sequence[bytes], mark: int) -> Packet:
        return [Statement(self._committed, (_array(map(bytes.hex, ids)), mark))]

    def lock(self, fence: Fence) -> Packet:
        return [Statement(self._lock, fence)]

    def advance(self, fence: Fence, next: int) -> Packet:
        return [Statement(self._advance, (*fence, next))]

    def permits(self, owner: str, copies: Sequence[tuple[ClaimKey, Place]]) -> Packet:
        topics, partitions, places = zip(*(origin for _, origin in copies), strict=True)
        ids = _array(key.id.hex() for key, _ in copies)
        return [Statement(self._permits, (ids, list(topics), _array(partitions), _array(places), owner))]

    def take_over(self, owner: str, positions: Mapping[tuple[str, int], int]) -> Packet:
        topics, partitions = zip(*positions, strict=True)
        return [Statement(self._take_over, (owner, list(topics), _array(partitions), _array(positions.values())))]

    def why_ended(self, error: Exception) -> str:
        if "another operation is in progress" in str(error):
            return _IN_USE
        state = getattr(getattr(error, "orig", error), "sqlstate", None)  # SQLAlchemy has the driver's own error inside
        return _BROKEN if state == _IN_FAILED_TRANSACTION else ENDED


def _array(values: Iterable[object]) -> str:
    """As text: elements of arrays go through the codecs of the user's connection, and texts need not."""
    return f"{{{','.join(map(str, values))}}}"
