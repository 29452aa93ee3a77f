SET STATEMENT time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES' FOR INSERT INTO `ackwise_claims` (day, k, step, token, next_attempt, outcome, leased_until, kept_until) VALUES (-9223372036854775808,x'03030303030303030303030303030303',1,13,2,2,SYSDATE(6),SYSDATE(6)+INTERVAL 86400000000 MICROSECOND),(-9223372036854775808,x'04040404040404040404040404040404',2,14,0,0,'1970-01-01','1970-01-01'),(19000,x'05050505050505050505050505050505',2,15,3,0,'1970-01-01','1970-01-01'),(-9223372036854775808,x'06060606060606060606060606060606',3,16,0,0,'1970-01-01','1970-01-01'),(-9223372036854775808,x'01010101010101010101010101010101',0,11,2,0,SYSDATE(6)+INTERVAL 30000000 MICROSECOND,SYSDATE(6)+INTERVAL 86430000000 MICROSECOND),(19000,x'02020202020202020202020202020202',0,12,2,0,SYSDATE(6)+INTERVAL 30000000 MICROSECOND,SYSDATE(6)+INTERVAL 86430000000 MICROSECOND) ON DUPLICATE KEY UPDATE 
step = CASE
    WHEN kept_until <= SYSDATE(6) THEN IF(VALUES(step) IN (0, 1), 11, 10)
    WHEN outcome <> 0 THEN 10
    WHEN VALUES(step) <> 0 THEN IF(token = VALUES(token), 12, 10)
    WHEN VALUES(next_attempt) < next_attempt THEN 10
    WHEN token = VALUES(token) THEN 12
    WHEN token = 0 THEN 13
    WHEN leased_until <= SYSDATE(6) THEN 14
    ELSE 10 END,
epoch = CASE WHEN step = 11 THEN 1 WHEN step IN (13, 14) THEN epoch + 1 ELSE epoch END,
lost = CASE
    WHEN step = 11 THEN 0
    WHEN step = 12 THEN IF(VALUES(step) = 2 AND VALUES(next_attempt) > 0, 0, lost)
    WHEN step IN (13, 14) THEN IF(VALUES(next_attempt) > next_attempt, 0, lost + (step = 14))
    ELSE lost END,
took_unreleased = CASE
    WHEN step = 12 THEN IF(VALUES(step) = 2, 0, took_unreleased)
    WHEN step = 10 THEN took_unreleased
    ELSE step = 14 END,
next_attempt = CASE
    WHEN step = 12 THEN IF(VALUES(step) = 2 AND VALUES(next_attempt) > 0, VALUES(next_attempt), next_attempt)
    WHEN step = 10 THEN next_attempt
    ELSE VALUES(next_attempt) END,
outcome = IF(step = 10, outcome, VALUES(outcome)),
token = IF(step = 10, token, IF(VALUES(step) = 2, 0, VALUES(token))),
leased_until = IF(step = 10, leased_until,
    SYSDATE(6) + INTERVAL IF(VALUES(step) IN (0, 3), 30000000, 0) MICROSECOND),
kept_until = IF(step = 10, kept_until, leased_until + INTERVAL 86400000000 MICROSECOND),
step = CASE
    WHEN step = 11 AND VALUES(step) = 1 THEN 1
    WHEN step = 12 AND VALUES(step) = 2 THEN 2
    ELSE 0 END RETURNING day, k, token, epoch, next_attempt, lost, took_unreleased, outcome, step, TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), leased_until), TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), kept_until)
