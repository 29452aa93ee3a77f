"""Running the job on files of events, and its answer in the words of the oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ackwise.spark.books import Book, domains, keep
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.context import scopes
from ackwise.spark.coverage import count, stretches
from ackwise.spark.job import Judgement, weigh
from ackwise.spark.ledger import absent
from ackwise.spark.oracle import Ruling
from ackwise.spark.results import offsets
from ackwise.spark.schema import EVENT_SCHEMA
from ackwise.spark.verdicts import logical
from ackwise.spark.vocabulary import Flag, LogicalVerdict, Verdict

__all__ = ["Answer", "run"]


@dataclass(frozen=True)
class Answer:
    """What the job says, by group."""

    rulings: Mapping[str, Ruling]
    books: Sequence[Book]


def run(spark: SparkSession, paths: Sequence[Path], config: ReconcileConfig) -> Answer:
    """The job's answer to the events in these files."""
    found = weigh(spark, spark.read.schema(EVENT_SCHEMA).parquet(*map(str, paths)), config)
    try:
        return Answer(_rulings(found), _books(found))
    finally:
        found.judged.unpersist()


def _rulings(found: Judgement) -> dict[str, Ruling]:
    rulings: dict[str, Ruling] = defaultdict(lambda: Ruling(found.facts.as_of))
    partitions = {pk: (*p.group, p.topic, p.topic_id, p.partition) for pk, p in found.facts.partitions.items()}
    views = {view.mk: (partitions[view.pk], view.handler, view.dedup_epoch) for view in found.facts.views}
    for row in found.settled.select("mk", "offset", "verdict", "flags").collect():
        partition, handler, epoch = views[row.mk]
        rulings[partition[1]].messages[partition, handler, epoch, row.offset] = Verdict(row.verdict), Flag(row.flags)
    for pk, domain in domains(found.facts, found.commits).items():
        rulings[partitions[pk][1]].domains[partitions[pk]] = domain
        rulings[partitions[pk][1]].absent[partitions[pk]] = {}
    for row in stretches(found.words, absent()).collect():
        partition = partitions[row["key"]]
        rulings[partition[1]].absent[partition].update((offset, str(row["class"])) for offset in range(row["start"], row["end"]))
    for row in count(found.words, {}, F.max("falls").alias("falls")).where("falls").collect():
        rulings[partitions[row["key"]][1]].fallen.add(partitions[row["key"]])
    for row in logical(found.settled).collect():
        group, handler, epoch = scopes(found.facts)[row.scope]
        rulings[group[1]].logical[(*group, handler, epoch), row.dedup_hash] = LogicalVerdict(row.logical_verdict), Flag(row.logical_flags)
    return rulings


def _books(found: Judgement) -> list[Book]:
    booked = [(pk, Verdict(verdict), number) for pk, verdict, number in offsets(found.settled).collect()]
    without = {row["key"]: {name: row[name] for name in absent()} for row in count(found.words, absent()).collect()}
    return keep(found.facts, found.commits, booked, without)
