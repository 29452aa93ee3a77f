"""The landing of events from a Kafka topic, as the files that the journal would have written.

    ROOT/events/dt=…/hr=…/events-{writer}-{first seq}-{last seq}.parquet

A file has a run of one writer's events without a hole. So its name identifies its events, and what comes again is there already.
The file that ends with the last event of a log that a dead process left says on which machine it was rolled, as the published one did.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ackwise.spark.events.invalid_records import InvalidRecords, note
from ackwise.spark.events.runs import explode
from ackwise.spark.events.schema import EVENT_TYPES, ROW_TYPES
from ackwise.stores.journal.layout import make_directories, sync_directory
from ackwise.stores.journal.parquet import ROLLED_ON

__all__ = ["Landing", "as_files", "read_records"]

#: The value of a record, as JSON: a row of a file, times as microseconds. Spark puts what it can't read aside.
_UNREAD: Final = "_unread"
_RECORD: Final = ", ".join(
    [
        *(f"{name} {'bigint' if kind == 'timestamp' else kind}" for name, kind in ROW_TYPES.items()),
        *("rolled_on string", "rolled_to bigint", f"{_UNREAD} string"),
    ]
)
_ROLLED: Final = ("rolled_on", "rolled_to")
_IDENTITY: Final = ("writer_id", "seq", "event_type", "event_ts")
#: The name of a file, as the folders that Spark makes of columns.
_FOLDERS: Final = ("dt", "hr", "file", "rolled_on")
#: What a boot id looks like; anything else is none.
_BOOT_ID: Final = "^[0-9A-Za-z-]{1,64}$"
#: What Spark calls a folder for nulls.
_NONE: Final = "__HIVE_DEFAULT_PARTITION__"
#: How `ackwise publish` writes a writer into the key of a record.
_WRITER: Final = "^[0-9a-f]{16}$"


class Landing:
    """Lands batches of records below one root. `count` is how many events were landed, with those that were there already."""

    def __init__(self, root: Path, topic: str, progress: Callable[[str], None]) -> None:
        self._root = root
        self._place = root / "collected" / topic
        self._progress = progress
        self.count = 0
        self.invalid = 0

    def land(self, records: DataFrame, batch: int) -> None:
        """Land a batch, in columns of Spark's Kafka source; durable when it returns. Raises `OSError`."""
        read = read_records(records).persist()
        try:
            invalid = self._note(read.where("event IS NULL"), batch)
            rows = read.where("event IS NOT NULL").select("event.*")
            self._write(as_files(explode(rows, *_ROLLED)))
            self.invalid += invalid
            self.count += rows.agg(F.sum(F.coalesce("n", F.lit(1)) + F.coalesce("ok_n", F.lit(0)))).collect()[0][0] or 0
        finally:
            read.unpersist()
        self._progress(f"{self.count:,} events")

    def _note(self, invalid: DataFrame, batch: int) -> int:
        first = invalid.select("topic", "partition", "offset").head()
        if first is None:
            return 0
        keys = invalid.where(F.col("key").rlike(_WRITER)).select("key").distinct().collect()
        writers = frozenset(int(row["key"], 16) for row in keys)
        found = InvalidRecords(self._place / "strangers", invalid.count(), "{}/{}/{}".format(*first), writers)
        note(found, batch)
        return found.records

    def _write(self, rows: DataFrame) -> None:
        unfinished = self._place / ".landing"
        shutil.rmtree(unfinished, ignore_errors=True)
        rows.write.partitionBy(*_FOLDERS).option("compression", "zstd").parquet(str(unfinished))
        for part in sorted(unfinished.glob("dt=*/hr=*/file=*/rolled_on=*/*.parquet")):
            _settle(part, self._root)
        shutil.rmtree(unfinished)


def read_records(records: DataFrame) -> DataFrame:
    """`topic`, `partition`, `offset` and `key` of records, and `event`, a row of a file; null where the value is none."""
    value = F.col("value").cast("string")
    read = records.select(
        *("topic", "partition", "offset", F.col("key").cast("string").alias("key")),
        F.from_json(value, _RECORD, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREAD}).alias("read"),
    )
    whole = F.col(f"read.{_UNREAD}").isNull()
    for name in _IDENTITY:
        whole &= F.col(f"read.{name}").isNotNull()
    whole &= F.col("read.seq") >= 0  # otherwise no file could be named by it
    times = {name for name, kind in ROW_TYPES.items() if kind == "timestamp"}
    boot_id = F.when(F.col("read.rolled_on").rlike(_BOOT_ID), F.col("read.rolled_on")).alias("rolled_on")
    columns = [(F.timestamp_micros(f"read.{name}") if name in times else F.col(f"read.{name}")).alias(name) for name in ROW_TYPES]
    return read.select("topic", "partition", "offset", "key", F.when(whole, F.struct(*columns, boot_id, "read.rolled_to")).alias("event"))


def as_files(events: DataFrame) -> DataFrame:
    """Each event once, with `dt`, `hr` and `file`: what the file of its run is called; `rolled_on` is null but for a last file.

    The rows of a file are in order, and together.
    """
    of_writer = Window.partitionBy("writer_id").orderBy("seq")
    once = (
        events.withColumn("before", F.lag("seq").over(of_writer))
        .withColumn("run", F.col("seq") - F.dense_rank().over(of_writer))
        .where("before IS NULL OR before < seq")
    )
    of_run = Window.partitionBy("writer_id", "run").orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    name = F.format_string("events-%016x-%012d-%012d", "writer_id", F.first("seq").over(of_run), F.last("seq").over(of_run))
    closed = F.last("event_ts").over(of_run)
    rolled_on = F.last(F.when(F.col("seq") == F.col("rolled_to"), F.col("rolled_on"))).over(of_run).alias("rolled_on")
    in_runs = [F.lit(None).cast(kind).alias(name) for name, kind in ROW_TYPES.items() if name not in EVENT_TYPES]
    named = once.select(
        *EVENT_TYPES,
        *in_runs,
        F.date_format(closed, "yyyy-MM-dd").alias("dt"),
        F.date_format(closed, "HH").alias("hr"),
        name.alias("file"),
        rolled_on,
    )
    return named.sortWithinPartitions(*_FOLDERS, "seq")


def _settle(part: Path, root: Path) -> None:
    """Move a file that Spark wrote to its place, durably. One that is there has the same events, and may be read now."""
    day, hour, name, rolled_on = (folder.partition("=")[2] for folder in part.parts[-5:-1])
    place = root / "events" / f"dt={day}" / f"hr={hour}" / f"{name}.parquet"
    if place.exists():
        return
    if rolled_on != _NONE:
        with pq.ParquetFile(part) as file:  # and no dataset: the names of folders would become columns
            table = file.read()
        pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), ROLLED_ON: rolled_on}), part, compression="zstd")
    make_directories(root, place.parent)
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    part.replace(place)
    sync_directory(place.parent)
