"""The survey of all events: writers, partitions, missing numbers and commits.

Its rows are per writer and partition, few enough for plain Python to decide what they mean (`facts`).
"""

from __future__ import annotations

from typing import Final

from ackwise.middleware.events import EventCode
from ackwise.spark.events.schema import MESSAGE_CODES, is_about_a_message, is_any, is_retention
from ackwise.spark.fold.clocks import FAR_AHEAD
from ackwise.spark.fold.facts import ROLES, CommitRow, SurveyRow
from ackwise.spark.fold.outgoing import is_outgoing
from ackwise.spark.frames import Column, DataFrame, F, Window

__all__ = [
    "SURVEY_KEY",
    "committed",
    "committed_position",
    "is_drained",
    "merged",
    "named",
    "passed",
    "reached",
    "read_from",
    "received_from",
    "steps_in",
    "strange",
    "survey",
    "surveyed",
    "unreported_commits",
]

SURVEY_KEY: Final = (
    *("writer_id", "client", "cluster", "group_id", "topic", "topic_id", "partition", "handler", "dedup_epoch", "session", "pk", "mk"),
)
_MERGED: Final = tuple(name for name in SurveyRow._fields if name not in SURVEY_KEY)
_SMALLEST: Final = {"first_ts", "first_seq", "start", "least_lag", "oldest_record", "clock_low", "far_lag", "oldest_far"}
_COUNTED: Final = {"strange", "message_events", "outgoing", "timed", "far"}
#: The columns of an event that is about a partition.
_STEP: Final = ("pk", "ts", "writer_id", "seq", "code", "offset", "range_end", "from_commit", "handler", "attrs", "proved", "is_strange")


def survey(events: DataFrame, *also: str) -> DataFrame:
    """Projected events to rows of `SurveyRow`, one more for each value of the columns `also`, which stand behind."""
    is_message = is_about_a_message()
    assigned = is_any(EventCode.ASSIGNED)
    source = assigned & (F.coalesce(F.col("role"), F.lit("source")) == "source")
    received = is_any(EventCode.RECEIVED_RANGE)
    session = F.when(is_any(EventCode.SESSION_START), F.col("attrs"))
    ts, seq, offset = F.col("ts"), F.col("seq"), F.col("offset")
    clock = ts - F.expr("mono_ns DIV 1000")
    record = F.when(is_message, F.col("record_ts"))
    is_far = record - FAR_AHEAD > ts
    near, far = F.when(~is_far, record), F.when(is_far, record)
    rows = (
        events.withColumn("session", session)
        .groupBy(*SURVEY_KEY, *also)
        .agg(
            F.min(ts).alias("first_ts"),
            F.max(ts).alias("last_ts"),
            F.min(seq).alias("first_seq"),
            F.max(seq).alias("last_seq"),
            F.max(is_any(EventCode.SESSION_END).cast("int")).alias("ended"),
            F.count_if(_is_strange()).alias("strange"),
            F.count_if(is_message).alias("message_events"),
            F.coalesce(F.bit_or(F.when(is_any(EventCode.ASSIGNED, EventCode.BROKER_OFFSETS), _role_bit())), F.lit(0)).alias("roles"),
            F.max(F.when(assigned, seq)).alias("assigned_seq"),
            F.max(F.when(is_any(EventCode.REVOKED), seq)).alias("revoked_seq"),
            F.max(F.when(assigned, ts)).alias("assigned_ts"),
            F.max(F.when(assigned, offset)).alias("assigned_to"),
            F.min(F.when(source | received | _read_here() | is_retention(), offset)).alias("start"),
            F.max(reached()).alias("reached"),
            F.max(committed_position()).alias("settled_to"),
            F.max(F.when(is_drained(), ts)).alias("drained_ts"),
            F.count_if(is_outgoing()).alias("outgoing"),
            F.min(ts - near).alias("least_lag"),
            F.min(near).alias("oldest_record"),
            F.max(near).alias("newest_record"),
            F.min(clock).alias("clock_low"),
            F.max(clock).alias("clock_high"),
            F.count(record).alias("timed"),
            F.count(far).alias("far"),
            F.min(ts - far).alias("far_lag"),
            F.min(far).alias("oldest_far"),
            F.max(far).alias("newest_far"),
        )
    )
    return rows.select(*SurveyRow._fields, *also)


def merged(surveys: DataFrame) -> DataFrame:
    """Merge rows of several `survey` into one of each writer, partition and handler."""
    how = {name: F.bit_or if name == "roles" else F.sum if name in _COUNTED else F.min if name in _SMALLEST else F.max for name in _MERGED}
    return surveys.groupBy(*SURVEY_KEY).agg(*[each(name).alias(name) for name, each in how.items()]).select(*SurveyRow._fields)


def surveyed(events: DataFrame) -> DataFrame:
    """Survey and steps of projected events in one pass: rows of `survey`, with the event as `step` where it is about a partition."""
    step = F.when(_is_step(), F.struct(*_step())).alias("step")
    return survey(events.withColumn("step", step), "step")


def steps_in(surveyed: DataFrame) -> DataFrame:
    """The events about partitions, and strange ones, each once, from rows of `surveyed`: few beside the others, and few columns."""
    return surveyed.where("step IS NOT NULL").select(*(F.col(f"step.{name}").alias(name) for name in _STEP))


def _is_step() -> Column:
    ranges = is_any(EventCode.RECEIVED_RANGE, EventCode.MARKED, EventCode.GAP, EventCode.SEEK, EventCode.TX_SETTLED)
    found = ranges | is_any(EventCode.COMMITTED, EventCode.ASSIGNED) | is_drained() | _is_strange()
    return F.coalesce(found, F.lit(False))


def _step() -> list[Column]:
    """The columns that are needed of an event about a partition."""
    return [_is_strange().alias(name) if name == "is_strange" else F.col(name) for name in _STEP]


def strange(steps: DataFrame) -> DataFrame:
    """The events that nobody knows the meaning of, once each: `writer_id` and `seq`."""
    return steps.where("is_strange").select("writer_id", "seq").distinct()


def _is_strange() -> Column:
    """Whether its code is unknown, or it lacks the coordinates that it needs."""
    return ~is_about_a_message() & (~is_any(*EventCode) | is_any(*MESSAGE_CODES))


def named(steps: DataFrame) -> DataFrame:
    """Rows of `Named`: what the metadata of commits said, to those that went on from them."""
    last = F.get_json_object("attrs", "$.seq").try_cast("long").alias("last")
    found = steps.where(is_any(EventCode.ASSIGNED)).select(_named_writer().alias("named"), last, "pk").where("named >= 0 AND last >= 0")
    return found.groupBy("named", "pk").agg(F.max("last").alias("last")).select("named", "last", "pk")


def _named_writer() -> Column:
    """The writer that the metadata of the commit names which an ASSIGNED found; null without one."""
    writer = F.get_json_object("attrs", "$.writer").try_cast("long")
    return F.when(writer >= 0, writer)


def committed(events: DataFrame, as_of: int, retry_drained: DataFrame, since: int | None = None) -> DataFrame:
    """Projected events to rows of `CommitRow`, from what happened up to `as_of` (microseconds, as is `since`).

    `retry_drained` has the `pk` of each delay partition and, as `before`, when its group's retry partitions had last
    been read to their ends: a delay partition that was empty only later may have moved a copy in between.
    """
    ts, position = F.col("ts"), F.col("position")
    before = F.max("position").over(Window.partitionBy("pk").orderBy("ts", "writer_id", "seq").rowsBetween(Window.unboundedPreceding, -1))
    fell = position < F.col("earlier")
    about = is_any(EventCode.COMMITTED, EventCode.ASSIGNED, EventCode.BROKER_OFFSETS) & (ts <= as_of)
    timely = is_drained() & (ts <= F.col("before"))
    back = [F.when(fell, position).alias("back_to"), F.when(fell, F.col("earlier")).alias("back_from")]
    rows = (
        events.where(about)
        .join(F.broadcast(retry_drained), "pk", "left")
        .select("pk", "ts", "writer_id", "seq", committed_position().alias("position"), timely.alias("is_timely"))
        .withColumn("earlier", before)
        .groupBy("pk", *back)
        .agg(
            F.max(position).alias("highest"),
            F.max(F.when(F.col("is_timely"), ts)).alias("drained_ts"),
            F.max(F.when(F.lit(False) if since is None else ts < since, position)).alias("resumed"),
        )
    )
    return rows.select(*CommitRow._fields)


def unreported_commits(events: DataFrame) -> DataFrame:
    """Rows of `Around`: partitions that came from a commit without an event, from the last known position before it.

    Its writer may have settled what is in between. Only the writer that the commit names can report it or, where it names none,
    anybody but its finder, who may commit the same position again. `events` has those about partitions.
    """
    is_commit, is_assigned = is_any(EventCode.COMMITTED), is_any(EventCode.ASSIGNED)
    position = F.when(is_commit, F.col("range_end")).otherwise(F.col("offset"))
    named, is_unnamed = _named_writer(), _named_writer().isNull()
    finder = [F.when(is_unnamed, F.col(name)).alias(alias) for name, alias in (("writer_id", "finder"), ("seq", "found_seq"))]
    from_commit = is_assigned & F.coalesce(F.col("from_commit"), F.lit(False))
    found = events.where(from_commit).select("pk", F.col("offset").alias("found"), named.alias("named"), *finder).distinct()
    known = events.where(is_commit | is_assigned).select("pk", "writer_id", "seq", position.alias("position"), is_commit.alias("is_commit"))
    is_again = (F.col("writer_id") == F.col("finder")) & (F.col("seq") > F.col("found_seq"))
    may_report = F.coalesce(F.col("writer_id") == F.col("named"), ~is_again)
    return (
        known.join(F.broadcast(found), "pk")
        .groupBy("pk", "found", "named", "finder", "found_seq")
        .agg(
            F.max(F.when(F.col("position") < F.col("found"), F.col("position"))).alias("last"),
            F.max(F.col("is_commit") & (F.col("position") == F.col("found")) & may_report).alias("is_reported"),
        )
        .where("last IS NOT NULL AND NOT coalesce(is_reported, false)")
        .select("pk", "last", F.col("last").alias("settled_to"), "found")
        .distinct()
    )


def read_from() -> Column:
    """The position at which the event shows that its partition was read, after `project`."""
    return F.when(is_any(EventCode.ASSIGNED, EventCode.RECEIVED_RANGE) | _read_here(), F.col("offset"))


def received_from() -> Column:
    """The position at which the event shows that its partition was read on.

    An outcome does not show it: its message may have been read long before.
    """
    return F.when(is_any(EventCode.ASSIGNED, EventCode.RECEIVED_RANGE, EventCode.RECEIVED), read_from())


def reached() -> Column:
    """The position up to which the event shows that its partition was read."""
    received, assigned = is_any(EventCode.RECEIVED_RANGE), is_any(EventCode.ASSIGNED)
    return F.when(_read_here(), F.col("offset") + 1).when(received, F.col("range_end")).when(assigned, F.col("offset"))


def _read_here() -> Column:
    return is_about_a_message() & F.col("at_origin")


def committed_position() -> Column:
    """The position that was committed, by the event."""
    found = is_any(EventCode.ASSIGNED) & F.coalesce(F.col("from_commit"), F.lit(False))
    return F.when(is_any(EventCode.COMMITTED), F.col("range_end")).when(found, F.col("offset"))


def is_drained() -> Column:
    """Whether the event shows that its partition was read to its end."""
    known = F.get_json_object("attrs", "$.committed").try_cast("long")
    return is_any(EventCode.BROKER_OFFSETS) & (known >= F.col("range_end"))


def _role_bit() -> Column:
    bit = F.lit(0)
    for role, value in ROLES.items():
        bit = F.when(F.col("role") == role, F.lit(value)).otherwise(bit)
    return bit


def passed(events: DataFrame) -> DataFrame:
    """Return the positions of databases when partitions were taken over, as `Around`: earlier events may have died with a worker."""
    settled = events.where(is_any(EventCode.TX_SETTLED) & F.col("range_end").isNotNull())
    return settled.select("pk", "offset", F.col("offset").alias("settled_to"), "range_end").distinct()
