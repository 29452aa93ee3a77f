"""Running the job on files of events, and its answer in the words of the oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.bitmap import count, stretches
from ackwise.spark.events.logs import NO_LOGS
from ackwise.spark.events.sources import Evidence
from ackwise.spark.frames import F, Row, SparkSession
from ackwise.spark.judge.accounts import PartitionAccount, domains, keep
from ackwise.spark.judge.context import scopes
from ackwise.spark.judge.offsets import absent, accounts
from ackwise.spark.judge.produced import read_produced
from ackwise.spark.judge.production import ALL_PRODUCED, ProducedAccount, keep_produced
from ackwise.spark.judging import Judgement, weigh
from ackwise.spark.reference.oracle import Ruling
from ackwise.spark.results.tables import copy_tallies, offsets
from ackwise.spark.vocabulary import Account, CopyFate, Flag, LogicalVerdict, ProducedVerdict, Verdict

_LISTED: Final = 10_000

__all__ = ["Answer", "answer", "evidence_of", "run"]


@dataclass(frozen=True)
class Answer:
    """What the job says, by group."""

    rulings: Mapping[str, Ruling]
    accounts: Sequence[PartitionAccount]
    produced: Sequence[ProducedAccount]


def run(
    spark: SparkSession,
    paths: Sequence[Path],
    config: ReconcileConfig,
    produced: Path | None = None,
    last_commits: Sequence[LastCommit] = (),
    rolled_on: Mapping[int, str] = MappingProxyType({}),
) -> Answer:
    """The job's answer to the events in these files, beside what was produced."""
    told = None if produced is None else read_produced(spark, produced)
    return answer(weigh(spark, evidence_of(*paths, rolled_on=rolled_on), config, produced_rows=told, last_commits=last_commits))


def evidence_of(*paths: Path, rolled_on: Mapping[int, str] = MappingProxyType({})) -> Evidence:
    """These files, as if they had been found below a root."""
    return Evidence((), paths, 0, NO_LOGS._replace(rolled_on=rolled_on), (), ())


def answer(found: Judgement) -> Answer:
    """What the job says in these frames."""
    try:
        return Answer(_rulings(found), _accounts(found), _produced(found))
    finally:
        found.release()


def _rulings(found: Judgement) -> dict[str, Ruling]:
    rulings: dict[str, Ruling] = defaultdict(lambda: Ruling(found.facts.as_of))
    partitions = {pk: (*p.group, p.topic, p.topic_id, p.partition) for pk, p in found.facts.partitions.items()}
    views = {view.mk: (partitions[view.pk], view.handler, view.dedup_epoch) for view in found.facts.views}
    for row in (
        found.settled.where("state.overtaken_by IS NOT NULL").select("mk", "offset", F.col("state.overtaken_by").alias("by")).collect()
    ):
        partition, handler, epoch = views[row.mk]
        rulings[partition[1]].overtaken[partition, handler, epoch, row.offset] = row.by
    for row in found.every.select("mk", "offset", "verdict", "flags").collect():
        partition, handler, epoch = views[row.mk]
        rulings[partition[1]].messages[partition, handler, epoch, row.offset] = Verdict(row.verdict), Flag(row.flags)
    for pk, domain in domains(found.facts, found.commits).items():
        rulings[partitions[pk][1]].domains[partitions[pk]] = domain
        rulings[partitions[pk][1]].absent[partitions[pk]] = {}
    for row in stretches(found.words, absent()).collect():
        partition = partitions[row["key"]]
        rulings[partition[1]].absent[partition].update((offset, str(row["class"])) for offset in _first(row))
    for row in count(found.words, {}, F.max("falls").alias("falls")).where("falls").collect():
        rulings[partitions[row["key"]][1]].fallen.add(partitions[row["key"]])
    for row in copy_tallies(found.settled).collect():
        partition, handler, epoch = views[row["mk"]]
        copies = rulings[partition[1]].copies.setdefault((partition, handler, epoch), {})
        copies[row["attempt"], CopyFate(row["fate"])] = row["count"]
    _account(found, rulings, partitions)
    known = scopes(found.facts)
    for row in found.failed.collect():
        group, handler, epoch = known[row.scope]
        rulings[group[1]].logical[(*group, handler, epoch), row.dedup_hash] = LogicalVerdict(row.logical_verdict), Flag(row.logical_flags)
    return rulings


def _first(row: Row) -> range:
    """The offsets of a range, if there are not very many."""
    return range(row["start"], min(row["end"], row["start"] + _LISTED))


def _account(found: Judgement, rulings: Mapping[str, Ruling], partitions: Mapping[int, tuple[str, str, str, str, int]]) -> None:
    if found.produced is None:
        return
    for pk in found.produced.partitions(found.facts):
        rulings[partitions[pk][1]].produced[partitions[pk]] = {}
    masks = {name: mask for name, mask in accounts().items() if name != ALL_PRODUCED}
    for row in stretches(found.words, masks).collect():
        partition = partitions[row["key"]]
        rulings[partition[1]].produced[partition] |= dict.fromkeys(_first(row), Account(row["class"]))
    groups = {partition[2]: partition[1] for partition in partitions.values()}
    for topic, _, late in found.produced.unpublished:
        if late:
            rulings[groups[topic]].unpublished[topic] = late
    in_clusters = dict(found.facts.groups)  # those that send have a cluster of their own
    for row in [] if found.produced.unsent is None else found.produced.unsent.collect():
        verdict = None if row["verdict"] is None else ProducedVerdict[row["verdict"]]
        group = next(group for cluster, group in in_clusters if cluster == row["cluster"])
        rulings[group].unsent[row["cluster"], row["message_id"]] = verdict


def _produced(found: Judgement) -> list[ProducedAccount]:
    if found.produced is None:
        return []
    masks = accounts()
    counted = {row["key"]: {name: row[name] for name in masks} for row in count(found.words, masks).collect()}
    return keep_produced(found.facts.partitions, counted, found.produced.partitions(found.facts))


def _accounts(found: Judgement) -> list[PartitionAccount]:
    accounted = [(pk, Verdict(verdict), number) for pk, verdict, number in offsets(found.every).collect()]
    masks = absent()
    without = {row["key"]: {name: row[name] for name in masks} for row in count(found.words, masks).collect()}
    return keep(found.facts, found.commits, accounted, without)
