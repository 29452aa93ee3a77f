"""The schema of the events in Spark, and their projection: names become two hashes, times become microseconds."""

from __future__ import annotations

from typing import Final

from ackwise.middleware.events import COLUMNS, EVENT_COLUMNS, OUTGOING, EventCode, Kind
from ackwise.spark.frames import Column, DataFrame, F

__all__ = [
    "EVENT_SCHEMA",
    "EVENT_TYPES",
    "FILE_SCHEMA",
    "MESSAGE_CODES",
    "NO_OFFSET",
    "ROW_TYPES",
    "instant",
    "is_about_a_message",
    "is_any",
    "is_retention",
    "micros",
    "project",
    "told_by",
]

#: The codes that are about one message which the group consumes.
MESSAGE_CODES: Final = tuple(code for code in EventCode if code < 20 and code not in OUTGOING)

#: Beyond every offset. No log has so many records, and what is computed of smaller ones does not overflow.
NO_OFFSET: Final = 2**62

#: No time is as far from 1970: what is computed of nearer ones does not overflow. Microseconds.
FARTHEST: Final = 2**61

_NO_PARTITION = -1
#: The code of events whose meaning is unknown.
_STRANGE: Final = 0
_PLACES: Final = ("topic", "topic_id", "handler")

_TYPES: Final = {
    Kind.INT8: "tinyint",
    Kind.INT16: "smallint",
    Kind.INT32: "int",
    Kind.INT64: "bigint",
    Kind.BOOL: "boolean",
    Kind.STRING: "string",
    Kind.TIMESTAMP: "timestamp",
    Kind.INT32_LIST: "array<int>",
    Kind.INT64_LIST: "array<bigint>",
}

#: The type of each column of an event, in the words of SQL.
EVENT_TYPES: Final = {column.name: _TYPES[column.kind] for column in EVENT_COLUMNS}
EVENT_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
#: The same of a row of a file, see `runs.explode`.
ROW_TYPES: Final = {column.name: _TYPES[column.kind] for column in COLUMNS}
#: Given to the reader, and never inferred.
FILE_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in ROW_TYPES.items())


def micros(seconds: float) -> int:
    """Seconds as the whole microseconds that the job counts in."""
    return round(seconds * 1_000_000)


#: `pk` and `mk` of one partition have the same ones.
_LAST_BITS: Final = 0xFFFF


def is_any(*codes: EventCode) -> Column:
    """Whether the event is one of these, after `project`."""
    return F.col("code").isin(*[int(code) for code in codes])


def is_about_a_message() -> Column:
    """Whether the event is about one message and names it, after `project`. Unknown codes are not."""
    return is_any(*MESSAGE_CODES) & F.col("offset").isNotNull() & (F.col("partition") != _NO_PARTITION)


def is_retention() -> Column:
    """Whether what the event jumped over had been deleted, after `project`: the log began only later.

    Where a log ends before the position, reading goes back instead: what is between had been read.
    """
    goes_on_at = F.get_json_object("attrs", "$.goes_on_at").try_cast("long")
    out_of_range = F.get_json_object("attrs", "$.reason") == "out-of-range"
    return is_any(EventCode.SEEK) & F.coalesce(out_of_range, F.lit(False)) & F.coalesce(goes_on_at == F.col("range_end"), F.lit(True))


def _has_no_such_offset() -> Column:
    """Whether it is about an offset that no log has, before `project`."""
    places = [F.col(name) for name in ("offset", "range_end")]
    outside = [(place < 0) | (place >= NO_OFFSET) for place in places]
    return F.coalesce(outside[0], F.lit(False)) | F.coalesce(outside[1], F.lit(False))


def _code() -> Column:
    """The code of the event, before `project`."""
    code = F.when(_tells_of_a_run(), F.lit(int(EventCode.SUCCEEDED))).otherwise(F.col("event_type").cast("int"))
    return F.when(_has_no_such_offset(), F.lit(_STRANGE)).otherwise(code)


def _tells_of_a_run() -> Column:
    """Whether it was not run since it had been, by a worker that could not record it: a store told whoever claimed it next.

    The same of another record of its key has a leader.
    """
    is_of_another, is_dead = (F.get_json_object("attrs", f"$.{name}") for name in ("leader", "outcome"))
    suppressed = (F.col("event_type") == int(EventCode.DUP_SUPPRESSED)) & F.col("exec_id").isNotNull()
    return suppressed & is_of_another.isNull() & F.coalesce(is_dead != "dead", F.lit(True))


def instant(name: str) -> Column:
    """A time as microseconds, and one beyond all as the farthest."""
    micros = F.unix_micros(name)
    return F.when(micros.isNotNull(), F.greatest(F.least(micros, F.lit(FARTHEST)), F.lit(-FARTHEST)))


def told_by() -> Column:
    """The writer whose run is told of in an event of another, after `project`; null for every other event."""
    return F.when(is_any(EventCode.SUCCEEDED), F.get_json_object("attrs", "$.writer").try_cast("long"))


def project(events: DataFrame, *also: str) -> DataFrame:
    """Return the columns that the job needs, and `also` these; rows without writer, type or time are left out.

    `pk` identifies a partition as a group reads it and `mk` a handler's view of it within one dedup epoch. A message
    is (`mk`, `offset`): two longs, which Spark groups by with far less effort than by names. `at_origin`: it was
    read where the record was first written. Events of the producer side have their place in
    `sent_topic` to `sent_offset` instead: it is where a record was sent to, and need not be read by the group that sent it.
    Where a duplicate tells of the run that it is of, it is taken for the event of that run. An event about an offset outside
    [0, `NO_OFFSET`) has a code that nobody knows.
    """
    is_outgoing = F.col("event_type").isin([int(code) for code in sorted(OUTGOING)])
    names = [F.coalesce(F.col(name), F.lit("")).alias(name) for name in ("cluster", "group_id")]
    places = [F.when(is_outgoing, F.lit("")).otherwise(F.coalesce(F.col(name), F.lit(""))).alias(name) for name in _PLACES]
    known = events.where("writer_id IS NOT NULL AND seq IS NOT NULL AND event_type IS NOT NULL AND event_ts IS NOT NULL")
    named = known.select(
        *names,
        *places,
        "writer_id",
        "seq",
        _code().alias("code"),
        instant("event_ts").alias("ts"),
        "client",
        F.coalesce(F.when(~is_outgoing & (F.col("partition") >= 0), F.col("partition")), F.lit(_NO_PARTITION))
        .cast("long")
        .alias("partition"),
        F.when(~is_outgoing, F.col("offset")).alias("offset"),
        "range_end",
        instant("record_ts").alias("record_ts"),
        F.col("phys_topic").isNull().alias("at_origin"),
        *("phys_topic", "phys_partition", "phys_offset", "duration_us"),
        *(F.coalesce(F.col(name), F.lit("")).alias(f"sent_{name}") for name in ("topic", "topic_id")),
        *(F.col(name).alias(f"sent_{name}") for name in ("partition", "offset")),
        F.col("dedup_key").alias("message_id"),
        F.greatest(F.coalesce(F.col("attempt"), F.lit(1)), F.lit(1)).cast("long").alias("attempt"),
        F.col("level").cast("int").alias("level"),
        instant("due_ts").alias("due"),
        *("exec_id", "dedup_hash", "order_hash"),
        F.coalesce(F.col("dedup_epoch"), F.lit(0)).alias("dedup_epoch"),
        F.col("lost").cast("long").alias("lost"),
        F.col("took_unreleased").cast("long").alias("took"),
        "error",
        "role",
        "from_commit",
        "attrs",
        "proved",
        "mono_ns",
        *also,
    )
    keyed = named.withColumn("pk", F.xxhash64("cluster", "group_id", "topic", "topic_id", "partition"))
    # Both say by these bits in which bin the rows of a partition are.
    last, others = F.col("pk").bitwiseAND(_LAST_BITS), F.xxhash64("pk", "handler", "dedup_epoch").bitwiseAND(~_LAST_BITS)
    return keyed.withColumn("mk", others.bitwiseOR(last))
