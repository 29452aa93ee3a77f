"""The verdict on each message, from its state and the context of its partition and group.

`reference/oracle.py` has the same rules in plain Python; a test compares the two over thousands of made-up histories.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.middleware.message.disposition import Reason
from ackwise.spark.events.bitmap import bit_of, with_mask, word_of
from ackwise.spark.fold.facts import View
from ackwise.spark.fold.messages import (
    HIGHEST_BIT,
    OUT_OF_ORDER,
    RANK_BASE,
    RANKS,
    REASONS,
    SUCCESSES,
    SUPPRESSED_BY_DEAD,
    SUPPRESSED_BY_RUN,
    TIMED_OUT,
    attempt_bit,
)
from ackwise.spark.frames import Column, DataFrame, F, SparkSession
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import (
    ANOMALIES,
    DONE,
    ENDED,
    IN_DOUBT,
    LEFT_OPEN,
    MENDABLE,
    PLAIN,
    SUPPRESSED,
    Flag,
    LogicalVerdict,
    Verdict,
)

__all__ = ["concern", "follow_epochs", "judge", "keys", "logical", "mark_provisional", "repeated", "settle_repeated", "settle_suppressed"]

#: More than there are verdicts.
_VERDICTS: Final = 64
_IN_DOUBT = (Verdict.LOST, Verdict.STUCK)
#: Its key has an end here, whatever becomes of other records of it.
_DONE = (*SUCCESSES, EventCode.DEAD_LETTERED, EventCode.DROPPED, EventCode.SKIPPED, SUPPRESSED_BY_RUN)
#: Any missing event of the group may be about them: another worker may have run them since, or a copy of them.
_ANYWHERE = (Verdict.STUCK, Verdict.RETRY_LOST)


def judge(
    states: DataFrame,
    context: DataFrame,
    stretches: DataFrame,
    unreported: DataFrame,
    as_of: int,
    grace: int,
    since: int | None = None,
) -> DataFrame:
    """One row per message with `verdict` and `flags`. `as_of`, `grace` and `since` are microseconds.

    `stretches` has disjoint ranges of offsets (`pk`, `start`, `end`), each `unsettled`, since their end may not have been exported,
    or `rewound`, since the group went back over them after it had committed them. `unreported` has the messages that a worker had
    without reporting an outcome, in words (`mk`, `word`, `words`, `mask`).

    Suppressed messages are judged as such here; `settle_suppressed` checks them. `state` is what `fold` found; where verdict and
    flags are plain it is dropped, which keeps the rows of a healthy group small. `reported_ts` is when the first success was
    reported, else the last event. `concerned`: it happened after `since`, or was open then. Of the other messages only those
    are here that the store may have remembered since.
    """
    known = states.join(F.broadcast(context), "mk")
    span = F.broadcast(stretches.toDF("span_pk", "span_start", "span_end", "unsettled", "rewound"))
    inside = (F.col("pk") == F.col("span_pk")) & (F.col("offset") >= F.col("span_start")) & (F.col("offset") < F.col("span_end"))
    placed = known.join(span, inside, "left").withColumn("in_doubt", F.coalesce("unsettled", F.lit(False)))
    placed = with_mask(placed.withColumn("word", word_of("offset")), unreported)
    placed = placed.withColumn("is_unreported", F.col("mask").bitwiseAND(bit_of("offset")) != 0)
    judged = placed.withColumn("verdict", _verdict(as_of, grace)).withColumn("flags", _flags()).withColumn("verdict", _or_maybe_twice())
    concerned, remembered = concern(since, grace, F.col("last_ts"), _is(*sorted(ENDED)) | _has(*SUCCESSES))
    is_plain = _is(*PLAIN) & (F.col("flags") == 0)
    return (
        judged.withColumn("concerned", concerned)
        .where(remembered)
        .select(
            *("mk", "offset", "pk", "scope", "start", "committed", "retention", "since", "blind", "verdict", "flags", "concerned"),
            *("record_ts", "dedup_hash"),
            F.coalesce("ok_ts", "last_ts").alias("reported_ts"),
            F.coalesce("sx_max", "ox_max").alias("exec_id"),
            _has(*_DONE).alias("is_done"),
            (_has(*SUCCESSES) & ~_no_success_was_claimed()).alias("ran_under_claim"),
            F.when(~is_plain, F.struct(*(name for name in states.columns if name not in ("mk", "offset")))).alias("state"),
        )
    )


def keys(judged: DataFrame) -> DataFrame:
    """One row per `scope` and `dedup_hash` of which a message was suppressed, or several ran.

    `accounted`: one is done or may still be. `succeeded`: one ran with success. `repeated`: several ran under a
    claim, `beyond` the time that the store remembers. Runs without a claim do not count there: deduplication did not fail.
    """
    under_claim, is_suppressed = F.col("ran_under_claim"), _is(*SUPPRESSED)
    record = F.when(under_claim, F.xxhash64("mk", "offset"))
    ok_ts = F.when(under_claim, F.col("reported_ts"))
    known = judged.where("dedup_hash IS NOT NULL").select(
        "scope",
        "dedup_hash",
        (F.col("is_done") | _is(Verdict.RETRYING, Verdict.IN_FLIGHT, Verdict.PENDING)).alias("accounted"),
        _is(*sorted(DONE)).alias("succeeded"),
        is_suppressed.alias("suppressed"),
        record.alias("record"),
        ok_ts.alias("ok_ts"),
        *("retention", "concerned"),
    )
    return (
        known.groupBy("scope", "dedup_hash")
        .agg(
            *(F.max(name).alias(name) for name in ("accounted", "succeeded", "suppressed")),
            F.coalesce(F.min("record") < F.max("record"), F.lit(False)).alias("repeated"),
            F.coalesce(F.max("ok_ts") - F.min("ok_ts") > F.max("retention"), F.lit(False)).alias("beyond"),
            F.max("concerned").alias("concerned"),
        )
        .where("suppressed OR repeated")
    )


def settle_suppressed(judged: DataFrame, keys: DataFrame, as_of: int) -> DataFrame:
    """Return the same rows, with PHANTOM_SUPPRESSED on suppressed messages that never ran.

    What was not run since its key was that of a dead letter is a duplicate once that letter, or another record of the key, succeeded.
    Where events are missing, or do not reach back as far as the store remembers, the run may be among those.
    """
    suppressed = _is(*SUPPRESSED)
    suppressed_ts = F.col("state.suppressed_ts")
    reaches_back = F.col("since") <= suppressed_ts - F.col("retention")
    verdict = (
        F.when(_is(Verdict.SUPPRESSED_BY_DEAD) & F.col("succeeded"), _lit(Verdict.DUPLICATE_SUPPRESSED))
        .when((suppressed_ts > as_of) | F.col("accounted"), F.col("verdict"))
        .when(F.col("accounted").isNull() | F.col("blind") | ~reaches_back, _lit(Verdict.UNKNOWN_EXPORT_GAP))
        .otherwise(_lit(Verdict.PHANTOM_SUPPRESSED))
    )
    # Their keys are few columns; so little goes to where the keys are, and less comes back.
    key, message = ["scope", "dedup_hash"], ["pk", "mk", "offset"]
    asked = judged.where(suppressed & F.col("dedup_hash").isNotNull()).select(*message, *key)
    answers = asked.join(keys.select(*key, "accounted", "succeeded"), key).drop(*key)
    checked = judged.where(suppressed).join(answers, message, "left").withColumn("verdict", verdict)
    return judged.where(~suppressed).unionByName(checked.drop("accounted", "succeeded"))


def repeated(judged: DataFrame) -> DataFrame:
    """Return the messages (`mk`, `offset`) that ran with success more than once and had a claim: which of the runs had one decides.

    By first and last run alone, one without a claim in between is not seen; so `settle_repeated` wants their number.
    """
    return judged.where(_ran_twice_and_had_a_claim()).select("mk", "offset")


def settle_repeated(judged: DataFrame, claimed_successes: DataFrame) -> DataFrame:
    """Return the same rows; those with `claimed_successes` ran twice if two of their runs had a claim."""
    known = judged.join(F.broadcast(claimed_successes), ["mk", "offset"], "left").withColumn("asked", _ran_twice_and_had_a_claim())
    twice, is_recreated = F.coalesce("claimed_successes", F.lit(0)) > 1, F.col("flags").bitwiseAND(int(Flag.RECREATED)) != 0
    repeated_bit = F.when(twice | is_recreated, F.lit(0)).otherwise(F.lit(int(Flag.REPEATED)))
    flags = F.col("flags").bitwiseAND(~int(Flag.REPEATED)) + repeated_bit
    base = F.when(~twice, _lit(Verdict.EXACTLY_ONCE)).when(is_recreated, _lit(Verdict.UNKNOWN_EXPORT_GAP))
    base = base.otherwise(_lit(Verdict.MULTI_EXECUTED))
    found = known.withColumns(
        {name: F.when(F.col("asked"), now).otherwise(F.col(name)) for name, now in (("flags", flags), ("verdict", base))}
    )
    return found.withColumn("verdict", _or_maybe_twice()).select(*judged.columns)


def _ran_twice_and_had_a_claim() -> Column:
    return F.coalesce((F.col("state.sx_min") < F.col("state.sx_max")) & F.col("state.cx_min").isNotNull(), F.lit(False))


def follow_epochs(settled: DataFrame, spark: SparkSession, views: Sequence[View]) -> DataFrame:
    """Return the same rows; what was left open in one dedup epoch and taken up in a later one has the verdict of the last one there.

    A new epoch is a new message to the store, but the same record, which may have been begun before.
    """
    epochs = _epochs(views)
    if not epochs:
        return settled
    known = F.broadcast(rows_of(spark, epochs, "mk long, family long, epoch long"))
    placed = settled.join(known, "mk", "left")
    newest = F.max(F.col("epoch") * _VERDICTS + F.col("verdict")).alias("newest")
    last = placed.where("family IS NOT NULL").groupBy("family", "offset").agg(newest)
    both = placed.join(last, ["family", "offset"], "left")
    is_followed = (F.expr(f"newest DIV {_VERDICTS}") > F.col("epoch")) & _is(*sorted(LEFT_OPEN))
    verdict = F.when(is_followed, (F.col("newest") % _VERDICTS).cast("int")).otherwise(F.col("verdict"))
    passed = F.col("flags").bitwiseAND(~int(Flag.COMMITTED_PAST))
    flags = F.when(is_followed, passed).otherwise(F.col("flags"))
    return both.withColumn("flags", flags).withColumn("verdict", verdict).select(*settled.columns)


def _epochs(views: Sequence[View]) -> list[tuple[int, int, int]]:
    """Return the views of handlers with several dedup epochs: `mk`, a number of partition and handler, and the place of the epoch."""
    families: dict[tuple[int, str], list[View]] = defaultdict(list)
    for view in views:
        families[view.pk, view.handler].append(view)
    several = [sorted(each, key=lambda view: view.dedup_epoch) for each in families.values() if len(each) > 1]
    return [(view.mk, family, place) for family, each in enumerate(several) for place, view in enumerate(each)]


def mark_provisional(settled: DataFrame, as_of: int, lateness: int) -> DataFrame:
    """Return the same rows, with PROVISIONAL on anomalies that late events may mend. Microseconds."""
    is_young = F.lit(as_of) < F.col("state.last_ts") + lateness
    is_mendable = _is(*sorted(MENDABLE)) | (F.col("flags").bitwiseAND(int(Flag.COMMITTED_PAST)) != 0)
    provisional = F.when(is_mendable & is_young, F.lit(int(Flag.PROVISIONAL))).otherwise(F.lit(0))
    return settled.withColumn("flags", F.col("flags") + provisional)


def logical(settled: DataFrame, keys: DataFrame) -> DataFrame:
    """`scope`, `dedup_hash`, `logical_verdict` and `logical_flags` of the dedup hashes where deduplication failed."""
    phantoms = settled.where(_is(Verdict.PHANTOM_SUPPRESSED)).select("scope", "dedup_hash", F.lit(True).alias("phantom")).distinct()
    failed = keys.where("concerned").join(phantoms, ["scope", "dedup_hash"], "left").where("repeated OR phantom")
    verdict = F.when(F.col("repeated"), F.lit(int(LogicalVerdict.LOGICAL_DUPLICATE))).otherwise(F.lit(int(LogicalVerdict.PHANTOM)))
    flags = F.when(F.col("repeated") & F.col("beyond"), F.lit(int(Flag.BEYOND_TTL))).otherwise(F.lit(0))
    return failed.select("scope", "dedup_hash", verdict.alias("logical_verdict"), flags.alias("logical_flags"))


def concern(since: int | None, grace: int, last_ts: Column, has_ended: Column) -> tuple[Column, Column]:
    """Whether a message is judged, and whether it must be known. Microseconds."""
    if since is None:
        return F.lit(True), F.lit(True)
    not_passed = F.coalesce(F.col("offset") >= F.col("resumed"), F.lit(True))
    concerned = not_passed | (last_ts >= since) | ~has_ended
    return concerned, F.col("concerned") | F.col("bumped") | (last_ts >= since - F.col("retention") - grace)


def _verdict(as_of: int, grace: int) -> Column:
    attempt, rank = _last_attempt(), F.col("last") % RANK_BASE
    committed_past = F.coalesce(F.col("offset") < F.col("committed"), F.lit(False))
    expired = F.lit(as_of) > F.col("claim_ts") + F.col("lease") + grace
    given_back = F.coalesce(F.col("released_ts") >= F.col("claim_ts"), F.lit(False))
    lives = F.coalesce(F.col("live_claim") == F.col("claim_ts"), F.lit(False))
    retrying = F.when(_is_overdue(grace), _lit(Verdict.RETRY_LOST)).otherwise(_lit(Verdict.RETRYING))
    claimed = F.when(expired & ~lives, _lit(Verdict.STUCK)).otherwise(_lit(Verdict.IN_FLIGHT))
    several = (F.col("sx_min") < F.col("sx_max")) & ~_outside("sx_min") & ~_outside("sx_max")
    stale = _has(EventCode.STALE) & ~_has(EventCode.SENT_BACK)
    base = (
        F.when(_has(*SUCCESSES), F.when(several, _lit(Verdict.MULTI_EXECUTED)).otherwise(_lit(Verdict.EXACTLY_ONCE)))
        .when(_has(EventCode.DEAD_LETTERED), _lit(Verdict.DEAD_LETTERED))
        .when(_has(EventCode.DROPPED), _lit(Verdict.DROPPED))
        .when(_has(EventCode.SKIPPED), _lit(Verdict.SKIPPED))
        .when(rank == RANKS[EventCode.CANCELLED], _lit(Verdict.CANCELLED))
        .when(rank == RANKS[EventCode.REDELIVERED], retrying)
        .when(_has(SUPPRESSED_BY_DEAD), _lit(Verdict.SUPPRESSED_BY_DEAD))
        .when(_has(EventCode.DUP_SUPPRESSED) | stale, _lit(Verdict.DUPLICATE_SUPPRESSED))
        .when(rank == RANKS[EventCode.SENT_BACK], retrying)
        .when((rank == RANKS[EventCode.CLAIMED]) & ~given_back, claimed)
        .when(attempt > 1, retrying)
        .when(committed_past, _lit(Verdict.LOST))
        .otherwise(_lit(Verdict.PENDING))
    )
    doubtful = (base.isin(*map(int, _IN_DOUBT)) & F.col("in_doubt")) | (base.isin(*map(int, _ANYWHERE)) & F.col("blind"))
    of_two_records = base.isin(*map(int, sorted(ANOMALIES))) & _is_recreated()
    return F.when(doubtful | of_two_records, _lit(Verdict.UNKNOWN_EXPORT_GAP)).otherwise(base)


def _or_maybe_twice() -> Column:
    """The verdict, unless it would call a run the only one that may have been the second."""
    in_doubt = F.col("flags").bitwiseAND(int(IN_DOUBT)) != 0
    return F.when(_is(Verdict.EXACTLY_ONCE) & in_doubt, _lit(Verdict.MAYBE_TWICE)).otherwise(F.col("verdict"))


def _is_overdue(grace: int) -> Column:
    """Whether its copy is due, and the group has since read all its delay and retry partitions to their ends."""
    levels, level = F.col("levels"), F.col("level")
    delay = F.coalesce(F.get(levels, F.when(level < 1, F.lit(0)).otherwise(level - 1)), F.element_at(levels, -1))
    due = F.coalesce(F.col("due"), F.col("sent_back_ts") + delay, F.lit(0))
    limit = F.greatest(due, F.col("last_ts")) + grace
    return F.coalesce(limit < F.col("drained_ts"), F.lit(False))


def _flags() -> Column:
    open_still = _is(Verdict.IN_FLIGHT, Verdict.STUCK)
    is_redriven = F.col("redriven").isNotNull()
    failed_between = _has(EventCode.FAILED, EventCode.SENT_BACK, EventCode.RELEASED) | (is_redriven & _has(EventCode.DEAD_LETTERED))
    earlier_attempts = attempt_bit(F.col("last_claimed")) - 1
    left_open = F.col("claimed").bitwiseAND(F.bitwise_not("settled")).bitwiseAND(earlier_attempts) != 0
    one_attempt = (F.bit_count("claimed") == 1) & ~failed_between
    two_claims = F.coalesce((F.col("cx_min") < F.col("cx_max")) & (left_open | one_attempt), F.lit(False))
    once = F.col("verdict") != Verdict.MULTI_EXECUTED
    was_overtaken = F.col("overtaken_by").isNotNull() & ~_has(OUT_OF_ORDER)
    is_proved = F.coalesce("overtaken_surely", F.lit(False)) & ~F.coalesce("rewound", F.lit(False)) & ~_is_recreated()
    found = {
        Flag.COMMITTED_PAST: open_still & (_last_attempt() == 1) & (F.col("offset") < F.col("committed")) & ~F.col("in_doubt"),
        Flag.AMBIGUOUS_EXEC: (F.col("took") > 0)
        | _has(EventCode.CLAIM_LOST)
        | two_claims
        | F.coalesce(F.col("reason") == REASONS[Reason.ABORTED_AND_COMMITTED], F.lit(False))
        | (_has(*SUCCESSES) & (F.col("is_unreported") | _may_have_gone_on())),
        Flag.UNCLAIMED: _has_outcome() & (_outside("ox_min") | _outside("ox_max")),
        Flag.REPEATED: once & (F.col("sx_min") < F.col("sx_max")) & ~_is_recreated(),
        Flag.HAD_FAILURES: _has(EventCode.FAILED),
        Flag.RETRIED: _has(EventCode.SENT_BACK),
        Flag.RESCUED_FROM_DLQ: _has(*SUCCESSES) & _has(EventCode.DEAD_LETTERED),
        Flag.DUP_AND_OK: _has(*SUCCESSES) & _has(EventCode.DUP_SUPPRESSED),
        Flag.ATTEMPT_HOLE: F.bit_count("attempts") < F.least(_last_attempt(), F.lit(HIGHEST_BIT)),
        Flag.NEG_LATENCY: F.col("ok_ts") < F.col("begun_ts"),
        Flag.REWOUND: F.coalesce("rewound", F.lit(False)),
        Flag.RECREATED: _is_recreated(),
        Flag.RAN_CANCELLED: _has(EventCode.CANCELLED) & _has(*SUCCESSES, EventCode.DEAD_LETTERED),
        Flag.TIMED_OUT: _has(TIMED_OUT, EventCode.LATE_SUCCESS),
        Flag.OUT_OF_ORDER: _has(OUT_OF_ORDER),
        Flag.OVERTAKEN: was_overtaken & is_proved,
        Flag.MAYBE_OVERTAKEN: was_overtaken & ~is_proved,
        Flag.REDRIVEN: is_redriven,
        Flag.DIED_AGAIN: F.col("redriven") % 2 == 1,
    }
    bits = [F.when(condition, F.lit(int(flag))).otherwise(F.lit(0)) for flag, condition in found.items()]
    return reduce(operator.add, bits)


def _is_recreated() -> Column:
    """Whether two records had its coordinates, so that their events must not be counted together."""
    return F.coalesce(F.col("first_record_ts") < F.col("record_ts"), F.lit(False))


def _may_have_gone_on() -> Column:
    """Whether a run was given up by a worker that died, without a word of whether it succeeded after that."""
    return F.col("unended").bitwiseAND(F.bitwise_not("late")) != 0


def _has_outcome() -> Column:
    return _has(*SUCCESSES, EventCode.FAILED)


def _outside(exec_id: str) -> Column:
    """Whether the execution had no claim: the message has none, or the id is outside the range of claimed ones.

    One without a claim between two with one counts as claimed; `settle_repeated` looks at all ids, of messages that ran twice.
    """
    x = F.col(exec_id)
    return F.coalesce((x < F.col("cx_min")) | (x > F.col("cx_max")), F.lit(True))


def _no_success_was_claimed() -> Column:
    return F.coalesce((F.col("sx_max") < F.col("cx_min")) | (F.col("sx_min") > F.col("cx_max")), F.lit(True))


def _last_attempt() -> Column:
    return F.expr(f"last DIV {RANK_BASE}")


def _has(*codes: int) -> Column:
    return F.col("bits").bitwiseAND(sum(1 << code for code in codes)) != 0


def _is(*verdicts: Verdict) -> Column:
    return F.col("verdict").isin(*map(int, verdicts))


def _lit(verdict: Verdict) -> Column:
    return F.lit(int(verdict))
