"""The rows of clean messages, as `verdicts.judge` has those of the others, and what both need of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.spark.events.bitmap import again, fold_words, spans, word_of
from ackwise.spark.fold.facts import Committed, View
from ackwise.spark.fold.runs import is_in
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.judge.verdicts import concern
from ackwise.spark.session.rows import repeated, rows_of
from ackwise.spark.vocabulary import SUPPRESSED, Flag, Verdict

__all__ = ["cleared", "excluded", "mates_of", "ran_twice", "shared_keys", "times_by_word"]

#: The columns of a dedup hash: equal ones of another scope are of other messages.
_KEY: Final = ("scope", "dedup_hash")


def excluded(spark: SparkSession, views: Sequence[View], commits: Mapping[int, Committed], others: Sequence[DataFrame]) -> DataFrame:
    """Return the messages that are not clean whatever their own events say, as `mk`, `word`, `words` and `mask`.

    The group went back over them after it had committed them, or they are among `others`: a worker had them without reporting an outcome,
    or later ones overtook them.
    """
    rewound = [(pk, "mask", start, end) for pk, commit in commits.items() for start, end in commit.rewound]
    of_views = rows_of(spark, [(view.pk, view.mk) for view in views], "pk long, mk long")
    ranges = rows_of(spark, rewound, "pk long, kind string, start long, end long").join(F.broadcast(of_views), "pk")
    return fold_words([spans(ranges, "mk"), *(again(other, ["mk"], "mask", F.col("mask")) for other in others)], ["mask"], ["mk"])


def cleared(messages: DataFrame, context: DataFrame, since: int | None, grace: int) -> DataFrame:
    """Return those of the messages of runs that are `clean`, with the columns of `judge` but `state`. Takes masks of their words.

    Of those before `since` only the ones are here that the store may have remembered since. Microseconds.
    """
    is_claimed = F.col("code") == int(EventCode.CLAIMED)
    known = messages.where(is_in("clean")).join(F.broadcast(context), "mk")
    concerned, remembered = concern(since, grace, F.col("ok_ts"), F.lit(True))
    return (
        known.withColumn("concerned", concerned)
        .where(remembered)
        .select(
            *("mk", "offset", "pk", "scope", "start", "committed", "retention", "since", "blind"),
            F.lit(int(Verdict.EXACTLY_ONCE)).alias("verdict"),
            F.when(is_claimed, F.lit(0)).otherwise(F.lit(int(Flag.UNCLAIMED))).alias("flags"),
            *("concerned", "record_ts", "dedup_hash", F.col("ok_ts").alias("reported_ts"), "exec_id"),
            F.lit(True).alias("is_done"),
            is_claimed.alias("ran_under_claim"),
        )
    )


def ran_twice(judged: DataFrame, clean: DataFrame) -> DataFrame:
    """Return the dedup hashes (`scope`, `dedup_hash`) of which more than one message ran under a claim; kept."""
    ran = [rows.where("ran_under_claim AND dedup_hash IS NOT NULL").select(*_KEY) for rows in (judged, clean)]
    return repeated(ran[0].unionByName(ran[1]), *_KEY)


def shared_keys(judged: DataFrame, twice: DataFrame) -> DataFrame:
    """Return the dedup hashes by which messages are judged together: those that `ran_twice`, and those of which one was suppressed."""
    suppressed = judged.where(F.col("verdict").isin(*map(int, SUPPRESSED))).select(*_KEY).repartition("dedup_hash")
    return twice.unionByName(suppressed).distinct()


def mates_of(clean: DataFrame, shared: DataFrame) -> DataFrame:
    """Return the clean messages whose dedup hash is one of `shared_keys`."""
    return clean.join(F.broadcast(shared), [*_KEY], "left_semi")


def times_by_word(messages: DataFrame, named: DataFrame) -> DataFrame:
    """Return the times of the records of messages by word, as evidence of no offset: `oldest` and `newest`."""
    none = F.lit(0).cast("long")
    found = messages.groupBy("mk", word_of("offset").alias("word")).agg(
        F.min("record_ts").alias("oldest"), F.max("record_ts").alias("newest")
    )
    return found.join(F.broadcast(named.select("mk", "pk")), "mk").select(
        F.col("pk").alias("key"), "word", F.lit("seen").alias("kind"), none.alias("mask"), "oldest", "newest"
    )
