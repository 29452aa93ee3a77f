SET @ackwise_zone = @@time_zone, time_zone = '+00:00'; START TRANSACTION; INSERT INTO `ackwise_claims` (day, k, step, token, next_attempt, outcome, leased_until, kept_until) VALUES (-9223372036854775808,x'03030303030303030303030303030303',1,13,2,2,SYSDATE(6),SYSDATE(6)+INTERVAL 86400000000 MICROSECOND),(-9223372036854775808,x'04040404040404040404040404040404',2,14,0,0,'1970-01-01','1970-01-01'),(19000,x'05050505050505050505050505050505',2,15,3,0,'1970-01-01','1970-01-01'),(-9223372036854775808,x'06060606060606060606060606060606',3,16,0,0,'1970-01-01','1970-01-01'),(-9223372036854775808,x'01010101010101010101010101010101',0,11,2,0,SYSDATE(6)+INTERVAL 30000000 MICROSECOND,SYSDATE(6)+INTERVAL 86430000000 MICROSECOND),(19000,x'02020202020202020202020202020202',0,12,2,0,SYSDATE(6)+INTERVAL 30000000 MICROSECOND,SYSDATE(6)+INTERVAL 86430000000 MICROSECOND) AS n (n_day, n_k, n_step, n_token, n_next_attempt, n_outcome, n_leased_until, n_kept_until) ON DUPLICATE KEY UPDATE 
step = CASE
    WHEN kept_until <= SYSDATE(6) THEN IF(n_step IN (0, 1), 11, 10)
    WHEN outcome <> 0 THEN 10
    WHEN n_step <> 0 THEN IF(token = n_token, 12, 10)
    WHEN n_next_attempt < next_attempt THEN 10
    WHEN token = n_token THEN 12
    WHEN token = 0 THEN 13
    WHEN leased_until <= SYSDATE(6) THEN 14
    ELSE 10 END,
epoch = CASE WHEN step = 11 THEN 1 WHEN step IN (13, 14) THEN epoch + 1 ELSE epoch END,
lost = CASE
    WHEN step = 11 THEN 0
    WHEN step = 12 THEN IF(n_step = 2 AND n_next_attempt > 0, 0, lost)
    WHEN step IN (13, 14) THEN IF(n_next_attempt > next_attempt, 0, lost + (step = 14))
    ELSE lost END,
took_unreleased = CASE
    WHEN step = 12 THEN IF(n_step = 2, 0, took_unreleased)
    WHEN step = 10 THEN took_unreleased
    ELSE step = 14 END,
next_attempt = CASE
    WHEN step = 12 THEN IF(n_step = 2 AND n_next_attempt > 0, n_next_attempt, next_attempt)
    WHEN step = 10 THEN next_attempt
    ELSE n_next_attempt END,
outcome = IF(step = 10, outcome, n_outcome),
token = IF(step = 10, token, IF(n_step = 2, 0, n_token)),
leased_until = IF(step = 10, leased_until,
    SYSDATE(6) + INTERVAL IF(n_step IN (0, 3), 30000000, 0) MICROSECOND),
kept_until = IF(step = 10, kept_until, leased_until + INTERVAL 86400000000 MICROSECOND),
step = CASE
    WHEN step = 11 AND n_step = 1 THEN 1
    WHEN step = 12 AND n_step = 2 THEN 2
    ELSE 0 END; SELECT day, k, token, epoch, next_attempt, lost, took_unreleased, outcome, step, TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), leased_until), TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), kept_until) FROM `ackwise_claims` WHERE (day, k) IN ((-9223372036854775808,x'03030303030303030303030303030303'),(-9223372036854775808,x'04040404040404040404040404040404'),(19000,x'05050505050505050505050505050505'),(-9223372036854775808,x'06060606060606060606060606060606'),(-9223372036854775808,x'01010101010101010101010101010101'),(19000,x'02020202020202020202020202020202')); COMMIT; SET time_zone = @ackwise_zone
