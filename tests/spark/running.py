"""Running the job on files of events, and its answer in the words of the oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from ackwise.spark.books import domains
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.coverage import stretches
from ackwise.spark.job import Judgement, weigh
from ackwise.spark.ledger import absent
from ackwise.spark.oracle import Ruling
from ackwise.spark.results import names
from ackwise.spark.schema import EVENT_SCHEMA
from ackwise.spark.verdicts import logical
from ackwise.spark.vocabulary import Flag, LogicalVerdict, Verdict

__all__ = ["judgement", "run"]


def judgement(spark: SparkSession, paths: Sequence[Path], config: ReconcileConfig) -> Judgement:
    """The job's answer, as frames."""
    return weigh(spark, spark.read.schema(EVENT_SCHEMA).parquet(*map(str, paths)), config)


def run(spark: SparkSession, paths: Sequence[Path], config: ReconcileConfig) -> dict[str, Ruling]:
    """The job's answer for each group."""
    found = judgement(spark, paths, config)
    rulings: dict[str, Ruling] = defaultdict(lambda: Ruling(found.facts.as_of))
    partitions = {pk: (*p.group, p.topic, p.topic_id, p.partition) for pk, p in found.facts.partitions.items()}
    views = {view.mk: (partitions[view.pk], view.handler, view.dedup_epoch) for view in found.facts.views}
    scopes = {}
    for row in found.settled.select("mk", "offset", "verdict", "flags", "scope").collect():
        partition, handler, epoch = views[row.mk]
        scopes[row.scope] = (*partition[:2], handler, epoch)
        rulings[partition[1]].messages[partition, handler, epoch, row.offset] = Verdict(row.verdict), Flag(row.flags)
    for pk, domain in domains(found.facts, found.commits).items():
        rulings[partitions[pk][1]].domains[partitions[pk]] = domain
        rulings[partitions[pk][1]].absent[partitions[pk]] = {}
    for row in stretches(found.words, absent()).collect():
        partition = partitions[row["key"]]
        rulings[partition[1]].absent[partition] |= dict.fromkeys(range(row["start"], row["end"]), row["class"])
    for row in logical(found.settled).collect():
        scope = scopes[row.scope]
        rulings[scope[1]].logical[scope, row.dedup_hash] = LogicalVerdict(row.logical_verdict), Flag(row.logical_flags)
    found.judged.unpersist()
    return rulings


_ = names
