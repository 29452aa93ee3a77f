"""The verdicts once more, in SQL on DuckDB: a second engine that shares nothing with the job but what the verdicts are called.

It takes the settings of the sessions and the defaults of the rest, and knows what made-up sets have: one cluster, no topic ids, no plan
that sends again, no transactions of a database, and a due time wherever something is sent back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

_GRACE: Final = 60
_WRITER_TIMEOUT: Final = 600
_FOREVER: Final = 2**62

_EVENTS: Final = """
CREATE VIEW event AS
SELECT writer_id, seq, event_type AS code, epoch_us(event_ts) AS ts, group_id, handler, topic, partition, "offset", range_end,
       epoch_us(record_ts) AS record_ts, phys_topic IS NULL AS at_origin, attempt::BIGINT AS attempt, epoch_us(due_ts) AS due, exec_id,
       dedup_hash, took_unreleased, role, from_commit, attrs
FROM read_parquet({files}, hive_partitioning = false)
"""

#: What is said of partitions and writers: few rows, read once.
_SAID: Final = """
CREATE TABLE said AS SELECT * FROM event WHERE code >= 20
"""

_WRITERS: Final = f"""
CREATE TABLE writer AS
WITH each AS (
    SELECT writer_id, any_value(group_id) AS group_id, min(ts) AS first_ts, max(ts) AS last_ts, max(seq) AS last_seq,
           bool_or(code = 32) AS ended
    FROM event GROUP BY writer_id
), held AS (
    SELECT writer_id, group_id, topic, partition FROM said WHERE code IN (21, 22) GROUP BY ALL
    HAVING max(seq) FILTER (code = 21) > coalesce(max(seq) FILTER (code = 22), -1)
), taken AS (
    SELECT writer_id FROM held JOIN each USING (writer_id, group_id) GROUP BY writer_id
    HAVING bool_and(EXISTS (
        SELECT 1 FROM said o WHERE o.code = 21 AND o.group_id = held.group_id AND o.topic = held.topic AND o.partition = held.partition
        AND o.writer_id != held.writer_id AND o.ts > each.last_ts))
)
SELECT *, NOT ended AND last_ts >= (SELECT max(last_ts) FROM each) - {_WRITER_TIMEOUT} * 1000000
          AND writer_id NOT IN (SELECT writer_id FROM taken) AS lives
FROM each;
CREATE TABLE now AS SELECT coalesce(min(last_ts) FILTER (lives), max(last_ts)) AS as_of FROM writer;
"""

_HOLES: Final = """
CREATE TABLE hole AS
WITH torn AS (
    SELECT writer_id FROM (SELECT writer_id, seq >> 6 AS word, bit_or(1::UBIGINT << (seq & 63)::UBIGINT) AS mask FROM event GROUP BY ALL)
    JOIN writer USING (writer_id) GROUP BY writer_id, last_seq HAVING sum(bit_count(mask)) <= last_seq
), there AS (
    SELECT writer_id, seq, lag(seq, 1, -1) OVER (PARTITION BY writer_id ORDER BY seq) AS before
    FROM event WHERE writer_id IN (FROM torn)
)
SELECT writer_id, before + 1 AS first, seq AS after FROM there WHERE seq > before + 1;

CREATE TABLE unknown AS
WITH read AS (
    SELECT e.writer_id, e.group_id, e.topic, e.partition, e.seq, h.first, h.after,
           CASE WHEN code < 20 AND at_origin THEN "offset" + 1 WHEN code = 26 THEN range_end WHEN code = 21 THEN "offset" END AS reached,
           CASE WHEN code = 20 THEN range_end WHEN code = 21 AND from_commit THEN "offset" END AS settled,
           CASE WHEN code = 1 AND at_origin OR code IN (21, 26) THEN "offset" END AS resumed
    FROM event e JOIN hole h USING (writer_id) WHERE topic IS NOT NULL
), earlier AS (
    SELECT writer_id, first, group_id, topic, partition, max(reached) AS reached, max(settled) AS settled
    FROM read WHERE seq < first GROUP BY ALL
), later AS (
    SELECT r.writer_id, r.first, r.group_id, r.topic, r.partition, min(r.resumed) FILTER (r.resumed >= coalesce(e.reached, 0)) AS resumed
    FROM read r LEFT JOIN earlier e USING (writer_id, first, group_id, topic, partition) WHERE r.seq >= r.after GROUP BY ALL
)
SELECT group_id, topic, partition, coalesce(reached, 0) AS unread_from, coalesce(settled, 0) AS unsettled_from,
       coalesce(resumed, {forever}) AS until
FROM earlier FULL JOIN later USING (writer_id, first, group_id, topic, partition);
"""

_PARTITIONS: Final = """
CREATE TABLE place AS
WITH position AS (
    SELECT group_id, topic, partition, ts, writer_id, seq, CASE WHEN code = 20 THEN range_end ELSE "offset" END AS position
    FROM said, now WHERE ts <= as_of AND (code = 20 OR code = 21 AND from_commit)
), earlier AS (
    SELECT *, max(position) OVER (PARTITION BY group_id, topic, partition ORDER BY ts, writer_id, seq
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
    FROM position
), got AS (
    SELECT group_id, topic, partition, max(position) AS committed, min(position) FILTER (position < highest) AS rewound_from,
           max(highest) FILTER (position < highest) AS rewound_to
    FROM earlier GROUP BY ALL
), began AS (
    SELECT group_id, topic, partition, min("offset") AS start FROM said
    WHERE code = 26 OR code = 21 AND role = 'source' OR code = 24 AND attrs->>'reason' = 'out-of-range' GROUP BY ALL
)
SELECT group_id, topic, partition, start, greatest(committed, start) AS committed, rewound_from, rewound_to
FROM began JOIN got USING (group_id, topic, partition);
"""

_GROUPS: Final = """
CREATE TABLE consumer AS
WITH looks AS (
    SELECT group_id, role, topic, partition, ts, (attrs->>'committed')::BIGINT >= range_end AS drained FROM said WHERE code = 25
), retries AS (
    SELECT group_id, min(last) AS until, bool_and(last IS NOT NULL) AS known
    FROM (SELECT group_id, topic, partition, max(ts) FILTER (drained) AS last FROM looks WHERE role = 'retry' GROUP BY ALL)
    GROUP BY group_id
), delays AS (
    SELECT group_id, min(last) AS drained, bool_and(last IS NOT NULL) AS known
    FROM (SELECT l.group_id, l.topic, l.partition, max(l.ts) FILTER (l.drained AND l.ts <= least(r.until, as_of)) AS last
          FROM looks l JOIN retries r ON r.group_id = l.group_id AND r.known, now WHERE l.role = 'delay' GROUP BY ALL)
    GROUP BY group_id
), session AS (
    SELECT group_id, max((attrs->>'lease')::DOUBLE) AS lease, max((attrs->>'retention')::DOUBLE) AS retention
    FROM said WHERE code = 30 GROUP BY ALL
)
SELECT w.group_id, min(w.first_ts) AS since, bool_or(h.writer_id IS NOT NULL) AS blind,
       any_value(CASE WHEN d.known THEN d.drained END) AS drained, any_value(lease) * 1000000 AS lease,
       any_value(retention) * 1000000 AS retention
FROM writer w LEFT JOIN hole h USING (writer_id) LEFT JOIN delays d USING (group_id) LEFT JOIN session USING (group_id)
GROUP BY w.group_id;
"""

#: Message by message. `rank` says what follows what within one attempt.
_MESSAGES: Final = """
CREATE VIEW folded AS
SELECT group_id, handler, topic, partition, "offset",
       bool_or(code IN (3, 19)) AS done, bool_or(code = 4) AS failed, bool_or(code = 5) AS sent, bool_or(code = 6) AS dead,
       bool_or(code = 9) AS skipped, bool_or(code = 13) AS dropped, bool_or(code = 14) AS cancelled, bool_or(code = 19) AS late,
       bool_or(code IN (3, 4) AND attrs->>'out_of_order' = 'true') AS out_of_order,
       coalesce(bool_or(code = 7 AND attrs->>'outcome' = 'dead'), false) AS by_dead,
       max((attrs->>'redrive')[9:]::BIGINT * 2 + (code = 6)::BIGINT) FILTER (code IN (6, 11)) AS redriven,
       bool_or(code = 7) AS suppressed, bool_or(code = 12) AS stale, bool_or(code = 10) AS claim_lost, bool_or(code = 2) AS claimed,
       max(attempt * 16
           + CASE code WHEN 1 THEN 1 WHEN 18 THEN 1 WHEN 8 THEN 2 WHEN 2 THEN 3 WHEN 4 THEN 4 WHEN 5 THEN 5 WHEN 11 THEN 6 WHEN 14 THEN 7
             ELSE 0 END) AS last,
       max(attempt) AS attempt, bit_or(1::BIGINT << attempt) AS attempts,
       min(exec_id) FILTER (code = 2) AS c0, max(exec_id) FILTER (code = 2) AS c1,
       min(exec_id) FILTER (code IN (3, 19)) AS s0, max(exec_id) FILTER (code IN (3, 19)) AS s1,
       min(exec_id) FILTER (code IN (3, 4, 19)) AS x0, max(exec_id) FILTER (code IN (3, 4, 19)) AS x1,
       coalesce(bit_or(1::BIGINT << attempt) FILTER (code = 2), 0) AS tried, max(attempt) FILTER (code = 2) AS last_tried,
       coalesce(bit_or(1::BIGINT << attempt) FILTER (code IN (3, 4, 5, 6, 13, 19)), 0) AS settled,
       max(due) FILTER (code = 5) AS due, max(ts) FILTER (code = 2) AS claim_ts, max(ts) FILTER (code = 2 AND lives) AS live_claim_ts,
       min(ts) FILTER (code IN (1, 2)) AS begun_ts, min(ts) FILTER (code IN (3, 19)) AS ok_ts,
       min(ts) FILTER (code IN (7, 12)) AS suppressed_ts,
       max(ts) AS last_ts, min(record_ts) < max(record_ts) AS recreated, max(dedup_hash) AS dedup_hash, max(record_ts) AS record_ts,
       coalesce(bool_or(took_unreleased), false) AS took
FROM (SELECT event.*, writer_id IN (SELECT writer_id FROM writer WHERE lives) AS lives FROM event WHERE code < 20) GROUP BY ALL
"""

_VERDICTS: Final = f"""
CREATE TABLE judged AS
WITH known AS (
    SELECT m.*, p.committed, p.rewound_from, p.rewound_to, g.since, g.blind, g.retention, as_of,
           last // 16 AS last_attempt, last % 16 AS rank,
           coalesce(m."offset" < p.committed, false) AS past,
           EXISTS (SELECT 1 FROM unknown u WHERE u.group_id = m.group_id AND u.topic = m.topic AND u.partition = m.partition
                   AND m."offset" >= u.unsettled_from AND m."offset" < u.until) AS doubt,
           coalesce(greatest(coalesce(due, 0), last_ts) + {_GRACE} * 1000000 < g.drained, false) AS overdue,
           as_of > claim_ts + g.lease + {_GRACE} * 1000000 AND claim_ts IS DISTINCT FROM live_claim_ts AS expired,
           coalesce(s0 BETWEEN c0 AND c1, false) AS s0_claimed, coalesce(s1 BETWEEN c0 AND c1, false) AS s1_claimed,
           coalesce(x0 BETWEEN c0 AND c1 AND x1 BETWEEN c0 AND c1, false) AS claimed_runs
    FROM folded m JOIN consumer g USING (group_id) LEFT JOIN place p USING (group_id, topic, partition), now
), first AS (
    SELECT *, CASE
        WHEN done THEN CASE WHEN s0 < s1 AND s0_claimed AND s1_claimed THEN 'MULTI_EXECUTED' ELSE 'EXACTLY_ONCE' END
        WHEN dead THEN 'DEAD_LETTERED' WHEN dropped THEN 'DROPPED' WHEN skipped THEN 'SKIPPED' WHEN rank = 7 THEN 'CANCELLED'
        WHEN by_dead THEN 'SUPPRESSED_BY_DEAD'
        WHEN suppressed OR stale AND NOT sent THEN 'DUPLICATE_SUPPRESSED'
        WHEN rank = 5 OR rank != 3 AND last_attempt > 1 THEN CASE WHEN overdue THEN 'RETRY_LOST' ELSE 'RETRYING' END
        WHEN rank = 3 THEN CASE WHEN expired THEN 'STUCK' ELSE 'IN_FLIGHT' END
        WHEN past THEN 'LOST' ELSE 'PENDING' END AS base
    FROM known
), second AS (
    SELECT *, CASE
        WHEN base = 'LOST' AND doubt OR base IN ('STUCK', 'RETRY_LOST') AND blind THEN 'UNKNOWN_EXPORT_GAP'
        WHEN recreated AND base IN ('LOST', 'RETRY_LOST', 'STUCK', 'MULTI_EXECUTED') THEN 'UNKNOWN_EXPORT_GAP'
        ELSE base END AS verdict
    FROM first
)
SELECT group_id, handler, topic, partition, "offset", verdict, dedup_hash, record_ts, suppressed_ts, ok_ts, since, blind, retention, as_of,
       done OR dead OR dropped OR skipped OR verdict IN ('RETRYING', 'IN_FLIGHT', 'PENDING') AS accounts,
       done AND s0 <= c1 AND s1 >= c0 AS ran_under_claim, done,
       list_filter([
           CASE WHEN verdict IN ('IN_FLIGHT', 'STUCK') AND last_attempt = 1 AND past AND NOT doubt THEN 'COMMITTED_PAST' END,
           CASE WHEN took OR claim_lost OR c0 < c1 AND ((tried & ~settled & ((1::BIGINT << last_tried) - 1)) != 0
                     OR bit_count(tried) = 1 AND NOT failed AND NOT sent) THEN 'AMBIGUOUS_EXEC' END,
           CASE WHEN (done OR failed) AND NOT claimed_runs THEN 'UNCLAIMED' END,
           CASE WHEN verdict != 'MULTI_EXECUTED' AND s0 < s1 AND NOT recreated THEN 'REPEATED' END,
           CASE WHEN failed THEN 'HAD_FAILURES' END,
           CASE WHEN sent THEN 'RETRIED' END,
           CASE WHEN done AND dead THEN 'RESCUED_FROM_DLQ' END,
           CASE WHEN done AND suppressed THEN 'DUP_AND_OK' END,
           CASE WHEN bit_count(attempts) < last_attempt THEN 'ATTEMPT_HOLE' END,
           CASE WHEN ok_ts < begun_ts THEN 'NEG_LATENCY' END,
           CASE WHEN "offset" >= rewound_from AND "offset" < rewound_to THEN 'REWOUND' END,
           CASE WHEN recreated THEN 'RECREATED' END,
           CASE WHEN done AND cancelled THEN 'RAN_CANCELLED' END,
           CASE WHEN late THEN 'TIMED_OUT' END,
           CASE WHEN out_of_order THEN 'OUT_OF_ORDER' END,
           CASE WHEN redriven IS NOT NULL THEN 'REDRIVEN' END,
           CASE WHEN redriven % 2 = 1 THEN 'DIED_AGAIN' END
       ], lambda flag: flag IS NOT NULL) AS flags
FROM second;
CREATE TABLE cleared AS
WITH succeeded AS (SELECT group_id, handler, dedup_hash FROM judged WHERE verdict IN ('EXACTLY_ONCE', 'MULTI_EXECUTED') GROUP BY ALL)
SELECT group_id, handler, topic, partition, "offset" FROM judged SEMI JOIN succeeded USING (group_id, handler, dedup_hash)
WHERE judged.verdict = 'SUPPRESSED_BY_DEAD';
CREATE TABLE phantom AS
WITH accounted AS (SELECT group_id, handler, dedup_hash FROM judged WHERE dedup_hash IS NOT NULL GROUP BY ALL HAVING bool_or(accounts))
SELECT group_id, handler, topic, partition, "offset",
       CASE WHEN blind OR since > suppressed_ts - retention THEN 'UNKNOWN_EXPORT_GAP' ELSE 'PHANTOM_SUPPRESSED' END AS verdict
FROM judged ANTI JOIN accounted USING (group_id, handler, dedup_hash)
WHERE judged.verdict IN ('DUPLICATE_SUPPRESSED', 'SUPPRESSED_BY_DEAD') AND suppressed_ts <= as_of;
"""

_ABSENT: Final = """
CREATE TABLE absent AS
WITH expected AS (SELECT group_id, topic, partition, unnest(range(start, committed)) AS "offset" FROM place),
silent AS (FROM expected ANTI JOIN judged USING (group_id, topic, partition, "offset")),
gap AS (SELECT group_id, topic, partition, unnest(range("offset", range_end)) AS "offset" FROM said WHERE code = 23),
due AS (FROM silent ANTI JOIN gap USING (group_id, topic, partition, "offset"))
SELECT d.*,
       EXISTS (SELECT 1 FROM said s WHERE s.code = 26 AND s.group_id = d.group_id AND s.topic = d.topic AND s.partition = d.partition
               AND d."offset" >= s."offset" AND d."offset" < s.range_end) AS received,
       EXISTS (SELECT 1 FROM unknown u WHERE u.group_id = d.group_id AND u.topic = d.topic AND u.partition = d.partition
               AND d."offset" >= u.unread_from AND d."offset" < u.until) AS unread,
       EXISTS (SELECT 1 FROM unknown u WHERE u.group_id = d.group_id AND u.topic = d.topic AND u.partition = d.partition
               AND d."offset" >= u.unsettled_from AND d."offset" < u.until) AS unsettled,
       (SELECT max(CASE WHEN attrs->>'reason' = 'out-of-range' AND (attrs->>'goes_on_at')::BIGINT = s.range_end THEN 2 ELSE 1 END)
        FROM said s WHERE s.code = 24 AND s.group_id = d.group_id AND s.topic = d.topic AND s.partition = d.partition
        AND d."offset" >= s."offset" AND d."offset" < s.range_end) AS jumped
FROM due d
"""

_TABLES: Final = {
    "verdicts": """
SELECT j.group_id, j.handler, j.topic, j.partition, j."offset",
       CASE WHEN j.verdict = 'EXACTLY_ONCE' AND list_has_any(j.flags, ['AMBIGUOUS_EXEC', 'REPEATED']) THEN 'MAYBE_TWICE'
            WHEN c."offset" IS NOT NULL THEN 'DUPLICATE_SUPPRESSED'
            ELSE coalesce(p.verdict, j.verdict) END AS verdict, j.flags, j.dedup_hash,
       make_timestamptz(j.record_ts) AS record_ts
FROM judged j LEFT JOIN phantom p USING (group_id, handler, topic, partition, "offset")
LEFT JOIN cleared c USING (group_id, handler, topic, partition, "offset")
""",
    "missing": """
SELECT group_id, topic, partition, "offset" AS start, "offset" + 1 AS "end", CASE
    WHEN jumped = 2 THEN 'RETENTION_LOSS' WHEN jumped = 1 THEN 'SKIPPED_BY_SEEK'
    WHEN CASE WHEN received THEN unsettled ELSE unread END THEN 'UNKNOWN_EXPORT_GAP'
    WHEN received THEN 'LOST' ELSE 'NEVER_SEEN' END AS verdict
FROM absent
""",
    "logical": """
WITH ran AS (
    SELECT group_id, handler, dedup_hash, count(*) AS records, max(ok_ts) - min(ok_ts) > any_value(retention) AS beyond
    FROM judged WHERE dedup_hash IS NOT NULL AND ran_under_claim GROUP BY ALL HAVING count(*) > 1
), wrong AS (
    SELECT DISTINCT group_id, handler, dedup_hash FROM judged JOIN phantom p USING (group_id, handler, topic, partition, "offset")
    WHERE p.verdict = 'PHANTOM_SUPPRESSED' AND dedup_hash IS NOT NULL
)
SELECT group_id, dedup_hash, 'LOGICAL_DUPLICATE' AS logical_verdict,
       CASE WHEN beyond THEN ['BEYOND_TTL'] ELSE [] END AS logical_flags FROM ran
UNION ALL SELECT group_id, dedup_hash, 'PHANTOM', [] FROM wrong ANTI JOIN ran USING (group_id, handler, dedup_hash)
""",
}


def judge(files: Sequence[Path], out: Path, *, threads: int = 2, memory: str = "6GB") -> None:
    """Judge the events in these files and write the tables `verdicts`, `missing` and `logical` below `out`, as the job lays them out."""
    out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "threads": threads,
        "memory_limit": memory,
        "temp_directory": tempfile.gettempdir(),
        "preserve_insertion_order": False,
    }
    with duckdb.connect(config=settings) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(_EVENTS.format(files=[str(path) for path in files]))
        for statement in (_SAID, _WRITERS, _HOLES.format(forever=_FOREVER), _PARTITIONS, _GROUPS, _MESSAGES, _VERDICTS, _ABSENT):
            connection.execute(statement)
        for name, query in _TABLES.items():
            (out / name).mkdir(exist_ok=True)
            connection.execute(f"COPY ({query}) TO '{out / name / 'part.parquet'}' (FORMAT parquet, COMPRESSION zstd)")
