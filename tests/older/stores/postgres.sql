WITH asked AS MATERIALIZED (
    SELECT n, k, day, token, attempt, kind, value, $8::float8 * interval '1 second' AS retention,
        CASE WHEN kind IN (0, 3) THEN $7::float8 ELSE 0 END * interval '1 second' AS lease
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::smallint[], $6::int[])
        WITH ORDINALITY AS a (k, day, token, attempt, kind, value, n)
),
seen_u AS MATERIALIZED (
    SELECT a.*, r.k IS NOT NULL AS known, r.kept_until <= statement_timestamp() AS forgotten, CASE
        WHEN r.kept_until <= statement_timestamp() THEN a.kind IN (0, 1)
        WHEN r.outcome <> 0 THEN false
        WHEN a.kind <> 0 THEN r.token = a.token
        ELSE a.attempt >= r.next_attempt
            AND (r.token IN (a.token, 0) OR r.leased_until <= clock_timestamp()) END AS writes,
        r.token AS held_by, r.next_attempt, r.outcome, r.leased_until, r.kept_until
    FROM asked a LEFT JOIN "ackwise_claims" r ON r.k = a.k WHERE a.day IS NULL
), changed_u AS (
    UPDATE "ackwise_claims" r SET
        token = CASE s.kind WHEN 2 THEN 0 ELSE s.token END,
        epoch = CASE WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN 1 WHEN r.token = s.token THEN r.epoch ELSE r.epoch + 1 END,
        next_attempt = CASE
            WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() OR r.token <> s.token THEN s.attempt
            WHEN s.kind = 2 THEN coalesce(s.value, r.next_attempt)
            ELSE r.next_attempt END,
        lost = CASE
            WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN 0
            WHEN s.kind = 2 AND s.value IS NOT NULL THEN 0
            WHEN r.token = s.token THEN r.lost
            WHEN s.attempt > r.next_attempt THEN 0
            ELSE r.lost + (r.token <> 0)::int END,
        took_unreleased = CASE
            WHEN s.kind = 2 OR r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN false
            WHEN r.token = s.token THEN r.took_unreleased
            ELSE r.token <> 0 END,
        outcome = CASE s.kind WHEN 1 THEN s.value ELSE 0 END,
        leased_until = clock_timestamp() + s.lease,
        kept_until = clock_timestamp() + s.lease + s.retention
    FROM seen_u s WHERE s.writes AND r.k = s.k AND CASE
        WHEN r.kept_until <= statement_timestamp() THEN s.kind IN (0, 1)
        WHEN r.outcome <> 0 THEN false
        WHEN s.kind <> 0 THEN r.token = s.token
        ELSE s.attempt >= r.next_attempt
            AND (r.token IN (s.token, 0) OR r.leased_until <= clock_timestamp()) END
    RETURNING s.n, s.forgotten, r.epoch, r.lost, r.took_unreleased
), added_u AS (
    INSERT INTO "ackwise_claims" (k, token, epoch, next_attempt, lost, took_unreleased, outcome, leased_until, kept_until)
    SELECT k, token, 1, attempt, 0, false, CASE kind WHEN 1 THEN value ELSE 0 END,
        clock_timestamp() + lease, clock_timestamp() + lease + retention
    FROM seen_u WHERE NOT known AND kind IN (0, 1) ORDER BY k
    ON CONFLICT DO NOTHING
    RETURNING k, NULL::bigint AS day
),
seen_d AS MATERIALIZED (
    SELECT a.*, r.k IS NOT NULL AS known, r.kept_until <= statement_timestamp() AS forgotten, CASE
        WHEN r.kept_until <= statement_timestamp() THEN a.kind IN (0, 1)
        WHEN r.outcome <> 0 THEN false
        WHEN a.kind <> 0 THEN r.token = a.token
        ELSE a.attempt >= r.next_attempt
            AND (r.token IN (a.token, 0) OR r.leased_until <= clock_timestamp()) END AS writes,
        r.token AS held_by, r.next_attempt, r.outcome, r.leased_until, r.kept_until
    FROM asked a LEFT JOIN "ackwise_daily_claims" r ON r.k = a.k AND r.day = a.day WHERE a.day IS NOT NULL
), changed_d AS (
    UPDATE "ackwise_daily_claims" r SET
        token = CASE s.kind WHEN 2 THEN 0 ELSE s.token END,
        epoch = CASE WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN 1 WHEN r.token = s.token THEN r.epoch ELSE r.epoch + 1 END,
        next_attempt = CASE
            WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() OR r.token <> s.token THEN s.attempt
            WHEN s.kind = 2 THEN coalesce(s.value, r.next_attempt)
            ELSE r.next_attempt END,
        lost = CASE
            WHEN r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN 0
            WHEN s.kind = 2 AND s.value IS NOT NULL THEN 0
            WHEN r.token = s.token THEN r.lost
            WHEN s.attempt > r.next_attempt THEN 0
            ELSE r.lost + (r.token <> 0)::int END,
        took_unreleased = CASE
            WHEN s.kind = 2 OR r.outcome <> 0 OR r.kept_until <= statement_timestamp() THEN false
            WHEN r.token = s.token THEN r.took_unreleased
            ELSE r.token <> 0 END,
        outcome = CASE s.kind WHEN 1 THEN s.value ELSE 0 END,
        leased_until = clock_timestamp() + s.lease,
        kept_until = clock_timestamp() + s.lease + s.retention
    FROM seen_d s WHERE s.writes AND r.k = s.k AND r.day = s.day AND CASE
        WHEN r.kept_until <= statement_timestamp() THEN s.kind IN (0, 1)
        WHEN r.outcome <> 0 THEN false
        WHEN s.kind <> 0 THEN r.token = s.token
        ELSE s.attempt >= r.next_attempt
            AND (r.token IN (s.token, 0) OR r.leased_until <= clock_timestamp()) END
    RETURNING s.n, s.forgotten, r.epoch, r.lost, r.took_unreleased
), added_d AS (
    INSERT INTO "ackwise_daily_claims" (k, day, token, epoch, next_attempt, lost, took_unreleased, outcome, leased_until, kept_until)
    SELECT k, day, token, 1, attempt, 0, false, CASE kind WHEN 1 THEN value ELSE 0 END,
        clock_timestamp() + lease, clock_timestamp() + lease + retention
    FROM seen_d WHERE NOT known AND kind IN (0, 1) ORDER BY day, k
    ON CONFLICT DO NOTHING
    RETURNING k, day
)

SELECT 0, k, day, true, 1, 0, false, NULL::bigint, NULL::int, NULL::smallint, NULL::float8, NULL::float8 FROM added_u UNION ALL 
SELECT 0, k, day, true, 1, 0, false, NULL::bigint, NULL::int, NULL::smallint, NULL::float8, NULL::float8 FROM added_d UNION ALL 
SELECT n, NULL::uuid, NULL::bigint, forgotten, epoch, lost, took_unreleased, NULL, NULL, NULL, NULL, NULL FROM changed_u UNION ALL 
SELECT n, NULL::uuid, NULL::bigint, forgotten, epoch, lost, took_unreleased, NULL, NULL, NULL, NULL, NULL FROM changed_d UNION ALL 
SELECT n, NULL, NULL, NULL, NULL, NULL, NULL, held_by, next_attempt, outcome,
    extract(epoch FROM leased_until - clock_timestamp())::float8, extract(epoch FROM kept_until - statement_timestamp())::float8
FROM seen_u WHERE CASE WHEN known THEN NOT writes ELSE kind IN (2, 3) END UNION ALL 
SELECT n, NULL, NULL, NULL, NULL, NULL, NULL, held_by, next_attempt, outcome,
    extract(epoch FROM leased_until - clock_timestamp())::float8, extract(epoch FROM kept_until - statement_timestamp())::float8
FROM seen_d WHERE CASE WHEN known THEN NOT writes ELSE kind IN (2, 3) END
