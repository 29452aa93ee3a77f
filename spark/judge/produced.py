"""What was produced, by a table and by events of the producer side, matched with the partitions that groups read.

One row of a table is a record that the broker acknowledged, such as from a producer's delivery reports. Or it is a row of an outbox,
which has no coordinates before it is published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.events.bitmap import points, spans
from ackwise.spark.events.schema import NO_OFFSET
from ackwise.spark.fold.facts import Facts, Partition
from ackwise.spark.fold.gaps import Blindness, Span
from ackwise.spark.fold.outgoing import acknowledged
from ackwise.spark.frames import Column, DataFrame, F, SparkSession
from ackwise.spark.judge.production import Unpublished, Unsent
from ackwise.spark.judge.unsent import unsent
from ackwise.spark.session.rows import rows_of
from ackwise.spark.vocabulary import ProducedVerdict

__all__ = ["COLUMNS", "PRODUCED_KINDS", "Extent", "Produced", "produced_files", "read_produced", "unpublished_rows"]

#: The columns and their types. Only `topic`, `partition` and `offset` must be there, and be null where they are not known.
COLUMNS: Final = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "aborted": "boolean",
    "key": "string",
}
_NEEDED: Final = ("topic", "partition", "offset")
_PLACE: Final = ("topic", "topic_id", "partition")

#: The kinds of produced offsets: from the first offset that the group read on; below it, since the group began; below it, earlier.
#: `audited` are all from the first to the last in the table.
PRODUCED_KINDS: Final = ("produced", "claimed", "earlier", "audited")

_JSON: Final = {".json", ".jsonl", ".ndjson"}


#: What rows have beside `COLUMNS`: the cluster, null in a table; and whether they are of a table, which has every record of its partitions.
_BESIDE: Final = ("cluster", "is_listed")


class Extent(NamedTuple):
    """The rows about one partition: their number, and the first and last offset."""

    topic: str
    topic_id: str
    partition: int
    cluster: str | None
    """None: of any, since a table names none."""
    is_listed: bool
    """Whether they are of a table, and all that were produced between the first and the last."""
    rows: int
    first: int
    last: int

    def is_of(self, partition: Partition) -> bool:
        """Whether it is about this partition."""
        return _place(partition) == self[:3] and self.cluster in (None, partition.group[0])


@dataclass(frozen=True)
class Produced:
    """What was produced, by a table and by events, and what has been counted of it."""

    rows: DataFrame
    """In `COLUMNS`, `topic_id` never null, with `cluster` and `is_listed`."""
    extents: Sequence[Extent]
    unpublished: Sequence[Unpublished]
    unsent: DataFrame | None = None
    """Rows of `judge.unsent`; None without events of the producer side."""
    unsent_counts: Sequence[Unsent] = ()

    @staticmethod
    def survey(listed: DataFrame | None, sent: DataFrame | None, as_of: int, grace: int, blind: Collection[str] = ()) -> Produced:
        """Count the rows of a table (`read_produced`), of events (`fold.outgoing`), or of both.

        Times are microseconds; a row without coordinates is late if it is older than `grace` or has no time. `blind` are the clusters
        in which events of a group that sends are missing.
        """
        of_table = [] if listed is None else [listed.withColumns({"cluster": F.lit(None).cast("string"), "is_listed": F.lit(True)})]
        of_events = [] if sent is None else [acknowledged(sent).withColumn("is_listed", F.lit(False)).select(*COLUMNS, *_BESIDE)]
        rows = reduce(lambda rows, more: rows.unionByName(more), [*of_table, *of_events])
        offset = F.col("offset")
        published = rows.where(_is_published()).groupBy(*_PLACE, *_BESIDE).agg(F.count("*"), F.min(offset), F.max(offset))
        unpublished = unpublished_rows(rows, as_of, grace).groupBy("topic").agg(F.count("*"), F.count_if("is_late"))
        not_sent = None if sent is None else unsent(sent, as_of, grace, blind)
        return Produced(
            rows,
            [Extent(*row) for row in published.collect()],
            [] if listed is None else sorted(Unpublished(*row) for row in unpublished.collect()),
            not_sent,
            [] if not_sent is None else _counted(not_sent),
        )

    def number_of(self, verdict: ProducedVerdict | None) -> int:
        """Return the number of messages of the producer side with this verdict."""
        return sum(each.messages for each in self.unsent_counts if each.verdict is verdict)

    def partitions(self, facts: Facts) -> dict[int, list[Extent]]:
        """Return the extents of each source partition that has some, by `pk`."""
        of_place: dict[tuple[str, str, int], list[Extent]] = defaultdict(list)
        for extent in self.extents:
            of_place[extent[:3]].append(extent)
        found = {}
        for pk, each in facts.partitions.items():
            mine = [extent for extent in of_place.get(_place(each), ()) if extent.is_of(each)] if each.is_source else []
            if mine:
                found[pk] = mine
        return found

    def unread(self, facts: Facts) -> int:
        """Return the number of rows in partitions that no group has read."""
        sources = [each for each in facts.partitions.values() if each.is_source]
        return sum(extent.rows for extent in self.extents if not any(extent.is_of(each) for each in sources))

    def evidence(
        self, spark: SparkSession, facts: Facts, expected: Mapping[int, Span], blind: Blindness, resumed: Collection[int] = ()
    ) -> list[DataFrame]:
        """Return the offsets of the rows as evidence for words: rows of `PRODUCED_KINDS`.

        `resumed` has the partitions of which only the later offsets are judged. Only a table says what was *not* produced.
        """
        found, known = self.partitions(facts), []
        for pk in found:
            partition = facts.partitions[pk]
            start = expected[pk][0] if pk in expected else None
            is_unknown = partition.group in blind.groups or pk in resumed
            since = None if is_unknown else facts.groups[partition.group].first_ts
            known.append((pk, partition.group[0], *_place(partition), start, since))
        schema = "pk long, reader string, topic string, topic_id string, partition int, start long, since long"
        named = rows_of(spark, known, schema)
        published = self.rows.where(_is_published() & ~_was_aborted()).join(F.broadcast(named), list(_PLACE))
        published = published.where(F.col("cluster").isNull() | (F.col("cluster") == F.col("reader")))
        since_it_began = F.coalesce(F.unix_micros("timestamp") >= F.col("since"), F.lit(False))
        below = F.coalesce(F.col("offset") < F.col("start"), F.lit(False))
        kind = F.when(below & since_it_began, "claimed").when(below, "earlier").otherwise("produced")
        audited = [(pk, "audited", each.first, each.last + 1) for pk, extents in found.items() for each in extents if each.is_listed]
        return [
            points(published, "pk", "offset", kind),
            spans(rows_of(spark, audited, "key long, kind string, start long, end long")),
        ]


def _counted(not_sent: DataFrame) -> list[Unsent]:
    rows = not_sent.groupBy("topic", "verdict").agg(F.count("*")).collect()
    found = [Unsent(topic, None if verdict is None else ProducedVerdict[verdict], number) for topic, verdict, number in rows]
    return sorted(found, key=lambda each: (each.topic, each.verdict or 0))


def read_produced(spark: SparkSession, path: Path) -> DataFrame:
    """Read a Parquet or JSON file, or all in a folder. Raises `ConfigurationError` if they can't be used."""
    files = produced_files(path)
    reader, names = spark.read.option("__globPaths__", "false"), list(map(str, files))
    found = reader.option("mode", "FAILFAST").json(names) if files[0].suffix in _JSON else reader.parquet(*names)
    lacking = [name for name in _NEEDED if name not in found.columns]
    if lacking:
        raise ConfigurationError(f"{path} has no column {lacking[0]!r}; the columns of a produced record are {', '.join(COLUMNS)}")
    cast = [(F.col(name) if name in found.columns else F.lit(None)).try_cast(kind).alias(name) for name, kind in COLUMNS.items()]
    return found.select(*cast).withColumn("topic_id", F.coalesce("topic_id", F.lit("")))


def unpublished_rows(rows: DataFrame, as_of: int, grace: int) -> DataFrame:
    """The rows without coordinates; `is_late`: they should have some by now. Microseconds."""
    is_late = F.coalesce(F.unix_micros("timestamp") < as_of - grace, F.lit(True))
    unpublished = rows.where(~_is_published() & ~_was_aborted())
    return unpublished.withColumn("topic", F.coalesce("topic", F.lit(""))).withColumn("is_late", is_late)


def produced_files(path: Path) -> list[Path]:
    """Return the Parquet or JSON files of `path`. Raises `ConfigurationError` if it has none."""
    if not path.exists():
        raise ConfigurationError(f"{path} is not there; give --produced a file or a folder of what was produced")
    every = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in every if file.suffix in {".parquet", *_JSON} and not file.name.startswith((".", "_"))]
    if not files:
        raise ConfigurationError(f"{path} has no file that ends in .parquet or {', '.join(sorted(_JSON))}; give --produced one")
    if len({file.suffix in _JSON for file in files}) > 1:
        raise ConfigurationError(f"{path} has both Parquet and JSON files; give --produced one kind")
    return files


def _is_published() -> Column:
    known = (F.col("topic") != "") & (F.col("partition") >= 0) & (F.col("offset") >= 0) & (F.col("offset") < NO_OFFSET)
    return F.coalesce(known, F.lit(False))


def _was_aborted() -> Column:
    return F.coalesce("aborted", F.lit(False))


def _place(partition: Partition) -> tuple[str, str, int]:
    return partition.topic, partition.topic_id, partition.partition
