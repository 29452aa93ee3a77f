"""The state of each message: its events folded by functions that ignore order and repetition.

Every aggregate is `bit_or`, `min` or `max` over a fixed-width number. So the fold is the same for events that were
exported twice, came late, or are in other files. Spark needs one hash aggregate with one exchange for it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from functools import reduce
from typing import Final

from ackwise.middleware.errors import ConsumeTimeout
from ackwise.middleware.events import EventCode
from ackwise.middleware.message.disposition import Reason
from ackwise.spark.events.bitmap import bit_of, word_of
from ackwise.spark.events.schema import is_about_a_message, is_any, told_by
from ackwise.spark.frames import Column, DataFrame, F, GroupedData

__all__ = [
    "FAILED_FOR_GOOD",
    "HIGHEST_BIT",
    "OUT_OF_ORDER",
    "OTHER_REASON",
    "RANKS",
    "RANK_BASE",
    "REASONS",
    "SAID",
    "SUCCESSES",
    "SUPPRESSED_BY_DEAD",
    "SUPPRESSED_BY_RUN",
    "TIMED_OUT",
    "attempt_bit",
    "claimed_successes",
    "copies",
    "fold",
    "outcomes",
    "told",
    "bit",
]

#: `last` is the attempt times this plus the rank: the order of things within a message, without a clock.
RANK_BASE: Final = 16
#: The order of events within one attempt. Others settle the message, or do not show its progress.
RANKS: Final = {
    EventCode.RECEIVED: 1,
    EventCode.STARTED: 1,
    EventCode.IN_FLIGHT_ELSEWHERE: 2,
    EventCode.CLAIMED: 3,
    EventCode.FAILED: 4,
    EventCode.SENT_BACK: 5,
    EventCode.REDELIVERED: 6,  # a copy was sent, whatever became of this attempt
    EventCode.CANCELLED: 7,  # this attempt does not come
}

#: The reasons of dead letters, as numbers. States keep these, so a new reason goes to the end. All reasons of handlers are
#: one: they may be any text, and contain data.
REASONS: Final = {
    Reason.CRASHED_WORKER: 1,
    Reason.FOREIGN_COPY: 2,
    Reason.MAX_RECONSUME_TIMES: 3,
    Reason.NEGATIVE_DELAY_LEVEL: 4,
    Reason.NO_HANDLER: 5,
    Reason.NOT_RETRIED: 6,
    Reason.REJECTED: 7,
    Reason.TOO_LARGE: 8,
    Reason.UNDECODABLE: 9,
    Reason.BURIED: 10,
    Reason.ABORTED_AND_COMMITTED: 11,
    Reason.NO_TARGET: 12,
    Reason.EXPIRED: 13,
}
OTHER_REASON: Final = 0

#: Bits of `bits` beyond those of the codes: a run failed, and its writer did not try again in place; a run took too long.
FAILED_FOR_GOOD: Final = 20
TIMED_OUT: Final = 21
#: And that a copy ran although its handler has an order.
OUT_OF_ORDER: Final = 22
#: And that it was not run since its key is that of a dead letter.
SUPPRESSED_BY_DEAD: Final = 23
#: And that it was not run since a run of another record had its key, which that worker could not record.
SUPPRESSED_BY_RUN: Final = 24

#: A run succeeded. A late one did, too, though nobody waited for it any more.
SUCCESSES: Final = (EventCode.SUCCEEDED, EventCode.LATE_SUCCESS)

#: The events that report an outcome of a message, beside a failure, and those that show that its handler was about to start.
_OUTCOMES: Final = (
    *SUCCESSES,
    EventCode.SENT_BACK,
    EventCode.DEAD_LETTERED,
    EventCode.DROPPED,
    EventCode.DUP_SUPPRESSED,
    EventCode.SKIPPED,
    EventCode.STALE,
    EventCode.CANCELLED,
)
_STARTED: Final = (EventCode.CLAIMED, EventCode.STARTED)

#: What a writer says of a message: an outcome, that its handler was about to start, and that it was received.
SAID: Final = ("reported", "started", "received")

#: The replay id of a redrive.
_REDRIVE: Final = r"^redrive-([0-9]{1,9})\z"

#: Attempts beyond share this bit: a long has no more.
HIGHEST_BIT: Final = 62


def fold(events: DataFrame, live_writers: Collection[int], mute: Collection[int] = ()) -> DataFrame:
    """One row per (`mk`, `offset`) of projected events. Times are microseconds.

    `bits` has a bit for each code; `attempts`, `claimed`, `settled`, `sent` one for each attempt that was seen, claimed,
    had an outcome, or was sent back. `cx`, `sx` and `ox` are the extremes of the exec ids of claims, successes and outcomes (successes and
    failures). `live_claim` is the newest claim by one of `live_writers`, `reason` that of a dead letter. `in_place` is how often it
    failed and was to run again in place. `redriven` is twice the number of its last redrive, and one more once that was dead again; null
    without any. `timed_out` and `late` have the attempts of runs that were given up as too long, and of
    those that succeeded after that; `unended` those that `mute` writers gave up. `told_by` is the writer of a run that another told of,
    which had a claim.
    """
    live = F.max(F.when(is_any(EventCode.CLAIMED) & _is_one_of(live_writers), F.col("ts")))
    unended = F.bit_or(F.when(_is_given_up() & _is_one_of(mute), attempt_bit(F.col("attempt"))))
    return _of_messages(events).agg(*_state(), live.alias("live_claim"), F.coalesce(unended, F.lit(0)).alias("unended"))


def claimed_successes(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Return how many runs of each of `messages` (`mk`, `offset`) had a claim and succeeded; those without one are left out."""
    about = events.where(is_any(EventCode.CLAIMED, *SUCCESSES) & F.col("exec_id").isNotNull())
    known = about.join(F.broadcast(messages), ["mk", "offset"], "left_semi")
    runs = known.groupBy("mk", "offset", "exec_id").agg(F.max(_had_a_claim()).alias("claimed"), F.max(is_any(*SUCCESSES)).alias("ok"))
    return runs.where("claimed AND ok").groupBy("mk", "offset").agg(F.count(F.lit(1)).alias("claimed_successes"))


def outcomes(events: DataFrame, writers: Collection[int]) -> DataFrame:
    """Return what each of `writers` says of messages: `writer_id`, `mk`, `word`, and masks of `SAID`."""
    about = {"reported": _is_outcome(), "started": is_any(*_STARTED), "received": is_any(EventCode.RECEIVED)}
    mine = events.where(is_about_a_message() & _is_one_of(writers)).where(reduce(operator.or_, about.values()))
    masks = [F.coalesce(F.bit_or(F.when(each, bit_of("offset"))), F.lit(0)).alias(name) for name, each in about.items()]
    return mine.groupBy("writer_id", "mk", word_of("offset").alias("word")).agg(*masks)


def told(events: DataFrame, writers: Collection[int]) -> DataFrame:
    """Return the messages (`mk`, `offset`) with a run of each of `writers` that another told of."""
    return events.where(is_about_a_message()).select(told_by().alias("writer_id"), "mk", "offset").where(_is_one_of(writers)).distinct()


def copies(events: DataFrame) -> DataFrame:
    """Return the places of copies, one row per writer, and whether it says of one what `SAID` names."""
    place = F.xxhash64("cluster", "group_id", "phys_topic", F.lit(""), F.col("phys_partition").cast("long"))
    there = events.where(is_about_a_message()).where("phys_topic IS NOT NULL AND phys_partition IS NOT NULL AND phys_offset IS NOT NULL")
    return (
        there.withColumn("phys_pk", place)
        .groupBy("writer_id", "mk", "offset", "phys_pk", "phys_offset")
        .agg(
            F.max(_is_outcome()).alias("reported"),
            F.max(is_any(*_STARTED)).alias("started"),
            F.max(is_any(EventCode.RECEIVED)).alias("received"),
        )
    )


def _is_outcome() -> Column:
    """Whether its writer says what became of the message; one that is to try again in place may have done so since."""
    return is_any(*_OUTCOMES) | (is_any(EventCode.FAILED) & _in_place().isNull())


def _in_place() -> Column:
    """How often it has failed by then without having been sent back; null for every other event."""
    return F.when(is_any(EventCode.FAILED), F.get_json_object("attrs", "$.in_place").try_cast("long"))


def _redriven() -> Column:
    """Twice the number of the redrive that the event is about, and one more if it died of it; null for every other event."""
    number = F.regexp_extract(F.get_json_object("attrs", "$.redrive"), _REDRIVE, 1).try_cast("long")
    died = F.when(is_any(EventCode.DEAD_LETTERED), F.lit(1)).otherwise(F.lit(0))
    return F.when(is_any(EventCode.REDELIVERED, EventCode.DEAD_LETTERED), number * 2 + died)


def _has_timed_out() -> Column:
    return F.coalesce(is_any(EventCode.FAILED) & (F.col("error") == ConsumeTimeout.__name__), F.lit(False))


def _had_a_claim() -> Column:
    """Whether it shows that its run had a claim."""
    return is_any(EventCode.CLAIMED) | told_by().isNotNull()


def _is_given_up() -> Column:
    """Whether a run took too long, and may have gone on since: an attempt in place is one that has come to its end."""
    return _has_timed_out() & _in_place().isNull()


def _of_messages(events: DataFrame, *also: str) -> GroupedData:
    return events.where(is_about_a_message()).groupBy("mk", "offset", *also)


def _is_one_of(writers: Collection[int]) -> Column:
    return F.col("writer_id").isin(list(writers)) if writers else F.lit(False)


def _state() -> list[Column]:
    claim, success, sent_back = is_any(EventCode.CLAIMED), is_any(*SUCCESSES), is_any(EventCode.SENT_BACK)
    outcome = success | is_any(EventCode.FAILED)
    released = is_any(EventCode.RELEASED)
    settling = outcome | sent_back | released | is_any(EventCode.DEAD_LETTERED, EventCode.DROPPED)
    suppressed = is_any(EventCode.DUP_SUPPRESSED, EventCode.STALE)
    ts, attempt, exec_id = F.col("ts"), F.col("attempt"), F.col("exec_id")
    tried = attempt_bit(attempt)
    return [
        F.bit_or(_bits()).alias("bits"),
        F.bit_or(tried).alias("attempts"),
        F.coalesce(F.bit_or(F.when(claim, tried)), F.lit(0)).alias("claimed"),
        F.coalesce(F.bit_or(F.when(settling, tried)), F.lit(0)).alias("settled"),
        F.coalesce(F.bit_or(F.when(sent_back, tried)), F.lit(0)).alias("sent"),
        F.max(attempt * RANK_BASE + _rank()).alias("last"),
        F.max(F.when(claim, attempt)).alias("last_claimed"),
        F.min(F.when(_had_a_claim(), exec_id)).alias("cx_min"),
        F.max(F.when(_had_a_claim(), exec_id)).alias("cx_max"),
        F.min(F.when(success, exec_id)).alias("sx_min"),
        F.max(F.when(success, exec_id)).alias("sx_max"),
        F.min(F.when(outcome, exec_id)).alias("ox_min"),
        F.max(F.when(outcome, exec_id)).alias("ox_max"),
        F.max(F.when(sent_back, F.col("level"))).alias("level"),
        F.max(F.when(sent_back, F.col("due"))).alias("due"),
        F.max(F.when(sent_back, ts)).alias("sent_back_ts"),
        F.max(F.when(claim, ts)).alias("claim_ts"),
        F.max(F.when(released, ts)).alias("released_ts"),
        F.min(F.when(claim | is_any(EventCode.RECEIVED, EventCode.STARTED), ts)).alias("begun_ts"),
        F.min(F.when(success, ts)).alias("ok_ts"),
        F.min(F.when(suppressed, ts)).alias("suppressed_ts"),
        F.max(F.when(is_any(EventCode.DEAD_LETTERED), _reason())).alias("reason"),
        F.min(ts).alias("first_ts"),
        F.max(ts).alias("last_ts"),
        F.max("record_ts").alias("record_ts"),
        F.min("record_ts").alias("first_record_ts"),
        F.max("dedup_hash").alias("dedup_hash"),
        F.coalesce(F.max("lost"), F.lit(0)).alias("lost"),
        F.coalesce(F.max("took"), F.lit(0)).alias("took"),
        F.max(_in_place()).alias("in_place"),
        F.max(_redriven()).alias("redriven"),
        F.max(told_by()).alias("told_by"),
        F.coalesce(F.bit_or(F.when(_is_given_up(), tried)), F.lit(0)).alias("timed_out"),
        F.coalesce(F.bit_or(F.when(is_any(EventCode.LATE_SUCCESS), tried)), F.lit(0)).alias("late"),
    ]


def _bits() -> Column:
    for_good = F.when(is_any(EventCode.FAILED) & _in_place().isNull(), F.lit(1 << FAILED_FOR_GOOD)).otherwise(F.lit(0))
    too_long = F.when(_has_timed_out(), F.lit(1 << TIMED_OUT)).otherwise(F.lit(0))
    ran = is_any(EventCode.SUCCEEDED, EventCode.FAILED)
    out_of_order = F.when(ran & (F.get_json_object("attrs", "$.out_of_order") == "true"), F.lit(1 << OUT_OF_ORDER)).otherwise(F.lit(0))
    is_dead = is_any(EventCode.DUP_SUPPRESSED) & (F.get_json_object("attrs", "$.outcome") == "dead")
    by_dead = F.when(is_dead, F.lit(1 << SUPPRESSED_BY_DEAD)).otherwise(F.lit(0))
    is_of_a_run = is_any(EventCode.DUP_SUPPRESSED) & F.col("exec_id").isNotNull() & ~F.coalesce(is_dead, F.lit(False))
    by_run = F.when(is_of_a_run, F.lit(1 << SUPPRESSED_BY_RUN)).otherwise(F.lit(0))
    return bit(F.col("code")).bitwiseOR(by_dead).bitwiseOR(by_run).bitwiseOR(for_good).bitwiseOR(too_long).bitwiseOR(out_of_order)


def attempt_bit(attempt: Column) -> Column:
    """The bit of an attempt."""
    return bit(F.least(attempt, F.lit(HIGHEST_BIT)))


def bit(position: Column) -> Column:
    """Return 1 shifted to `position`."""
    # A literal 1 would be an int, and wrap silently at 32.
    return F.call_function("shiftleft", F.lit(1).cast("long"), position.cast("int"))


def _rank() -> Column:
    rank = F.lit(0)
    for code, value in RANKS.items():
        rank = F.when(is_any(code), F.lit(value)).otherwise(rank)
    return rank


def _reason() -> Column:
    number = F.lit(OTHER_REASON)
    for reason, value in REASONS.items():
        number = F.when(F.col("error") == reason, F.lit(value)).otherwise(number)
    return number
