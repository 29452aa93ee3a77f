"""The tables and the repair plan of a run, written to its folder, and the counts that its report needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ackwise.middleware.repairplan import NAME as PLAN
from ackwise.middleware.repairplan import Summary, Title, write_plan
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.bitmap import count, stretches
from ackwise.spark.events.schema import micros
from ackwise.spark.fold.facts import Facts
from ackwise.spark.frames import Column, DataFrame, F, Row, SparkSession
from ackwise.spark.judge.offsets import absent, accounts
from ackwise.spark.judge.produced import unpublished_rows
from ackwise.spark.judging import Judgement, Progress
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.report import DeadLetters, Tally
from ackwise.spark.report.timeline import Buckets, Timeline, buckets, timeline
from ackwise.spark.results.measures import latencies, streams
from ackwise.spark.results.plan import of_keys, of_messages, of_offsets, of_parked, steps
from ackwise.spark.results.tables import (
    MISSING,
    MISSING_COLUMNS,
    copy_tallies,
    doubtful,
    findings,
    in_order,
    is_in_ranges,
    late_rows,
    logical_rows,
    logical_tallies,
    missing_rows,
    names,
    offsets,
    orphan_rows,
    range_rows,
    tallies,
    unsent_rows,
    verdict_rows,
)
from ackwise.spark.results.values import dead_letters_of, delays_of, tallies_of
from ackwise.spark.session.rows import at_once
from ackwise.spark.vocabulary import Account, Flag, ProducedVerdict, Verdict

__all__ = ["Counts", "plan_repair", "write_tables"]

#: As many bars as a narrow screen can still show.
_MOST_BUCKETS: Final = 60
#: Messages are counted by partition and bucket at once, in one pass; where there are very many partitions, buckets are fewer.
_MOST_ROWS: Final = 100_000


@dataclass(frozen=True)
class Counts:
    """The numbers of a run, in part as rows of Spark."""

    kinds: Sequence[Row]
    """Rows of `results.tables.tallies`."""
    tallies: Sequence[Tally]
    accounted: Sequence[tuple[int, Verdict, int]]
    absent: Mapping[int, Mapping[str, int]]
    accounts: Mapping[int, Mapping[str, int]]
    """By `pk` and `Account`."""
    fallen: Sequence[int]
    """The `pk` of partitions whose records get older as offsets grow."""
    findings: Sequence[Row]
    doubtful: Sequence[Row]
    missing: Sequence[Row]
    logical: Sequence[Row]
    orphans: Sequence[Row]
    copies: Sequence[Row]
    latencies: Sequence[Row]
    """Rows of `results.measures.latencies`."""
    dead_letters: Sequence[DeadLetters]
    delays: Sequence[Delays]
    timeline: Timeline


def write_tables(spark: SparkSession, found: Judgement, out: Path, config: ReconcileConfig, progress: Progress) -> Counts:
    """Write the tables of a run to `out`, and return its counts."""
    named, time = names(spark, found.facts), _time(found.facts, config)
    progress("judging the messages")
    exceptions, ranged = found.settled.where(~is_in_ranges()), found.every.where(F.lit(False) if config.verdict_rows else is_in_ranges())
    _write(verdict_rows(found.every if config.verdict_rows else exceptions, named), out / "verdicts")
    _write(range_rows(ranged, named), out / "ranges")
    _write(logical_rows(found.keyed, found.failed, named), out / "logical")
    listed = {name: mask for name, mask in (absent() | _accounts(found)).items() if name in MISSING}
    missing = missing_rows(stretches(found.words, listed), named).persist()
    _write(missing, out / "missing")
    progress("counting messages, keys and offsets")
    counted, worst, in_doubt, copies, hashes, partitions, took, first_missing = at_once(
        tallies(found.every, time),
        findings(found.settled, named, config.listed),
        doubtful(found.settled, named, config.listed),
        copy_tallies(found.settled),
        logical_tallies(found.failed),
        _offsets(found),
        latencies(found.every, streams(spark, found.facts)),
        missing.orderBy("group_id", "topic", "partition", "start", "cluster", "topic_id").limit(config.listed),
    )
    missing.unpersist()
    return Counts(
        kinds=counted,
        tallies=tallies_of(found.facts, counted),
        accounted=_accounted(found, counted),
        absent=_by_partition(partitions, absent()),
        accounts=_by_partition(partitions, _accounts(found)),
        fallen=[row["key"] for row in partitions if row["falls"]],
        findings=in_order(worst),
        doubtful=in_order(in_doubt),
        missing=first_missing,
        logical=hashes,
        orphans=_write_produced(found, named, out, config),
        copies=copies,
        latencies=took,
        dead_letters=dead_letters_of(found.facts, counted),
        delays=delays_of(found.facts, counted),
        timeline=timeline(time, ((Verdict(row["verdict"]), row["bucket"], row["count"]) for row in counted)),
    )


def _accounts(found: Judgement) -> dict[str, Column]:
    return {} if found.produced is None else accounts()


def _offsets(found: Judgement) -> DataFrame:
    """A row for each partition: the number of its offsets in each class."""
    classes = {_column(name): mask for name, mask in (absent() | _accounts(found)).items()}
    return count(found.words, classes, F.max("falls").alias("falls"))


def _column(name: str) -> str:
    """The column of a class. The verdict LOST and the account `lost` would be the same name to both engines."""
    return f"account_{name}" if isinstance(name, Account) else name


def _by_partition(partitions: Iterable[Row], classes: Iterable[str]) -> dict[int, dict[str, int]]:
    columns = {name: _column(name) for name in classes}
    return {row["key"]: {name: row[column] for name, column in columns.items()} for row in partitions}


def _write_produced(found: Judgement, named: DataFrame, out: Path, config: ReconcileConfig) -> list[Row]:
    """Write the table of produced records with a verdict of their own, and return the first orphans."""
    if found.produced is None:
        return []
    orphans = orphan_rows(stretches(found.words, {Account.ORPHAN: accounts()[Account.ORPHAN]}), named)
    late = late_rows(unpublished_rows(found.produced.rows, found.facts.as_of, micros(config.grace)))
    rows = orphans.unionByName(late, allowMissingColumns=True)
    if found.produced.unsent is not None:
        rows = rows.unionByName(unsent_rows(found.produced.unsent), allowMissingColumns=True)
    _write(rows, out / "produced")
    return orphans.orderBy("group_id", "topic", "partition", "start", "cluster", "topic_id").limit(config.listed).collect()


def plan_repair(spark: SparkSession, found: Judgement, counts: Counts, out: Path, run_id: str, config: ReconcileConfig) -> Summary:
    """Write the repair plan to `out`, streamed through the driver, and return its summary."""
    named = names(spark, found.facts)
    frames = []
    if any(kind.is_anomaly or kind.verdict is Verdict.UNKNOWN_EXPORT_GAP for kind in counts.tallies):
        frames.append(of_messages(found.settled, named, provisional=config.plan_provisional))
    if counts.logical:
        frames.append(of_keys(found.keyed, found.failed, named))
    if counts.missing:
        frames.append(of_offsets(spark.read.schema(MISSING_COLUMNS).parquet(str(out / "missing"))))
    if found.produced is not None and found.produced.number_of(ProducedVerdict.PARKED):
        frames.append(of_parked(spark.read.parquet(str(out / "produced"))))
    path = out / PLAN
    planned = write_plan(path, Title(run_id, found.facts.as_of), steps(frames) if frames else iter(()))
    left_out = sum(kind.messages for kind in counts.tallies if Flag.PROVISIONAL in kind.flags and not config.plan_provisional)
    return Summary(str(path), planned, left_out)


def _accounted(found: Judgement, counted: Iterable[Row]) -> list[tuple[int, Verdict, int]]:
    """Return the number of offsets with events by `pk` and verdict."""
    of_view = {view.mk: view.pk for view in found.facts.views}
    if len(of_view) == len(set(of_view.values())):
        return [(of_view[row["mk"]], Verdict(row["verdict"]), row["count"]) for row in counted if row["is_accounted"]]
    # Messages of several handlers may share an offset.
    return [(pk, Verdict(verdict), number) for pk, verdict, number in offsets(found.every).collect()]


def _time(facts: Facts, config: ReconcileConfig) -> Buckets:
    """Return the buckets from the first event of a judged message to the last."""
    about = [row for row in facts.rows if row.message_events]
    first, last = min((row.first_ts for row in about), default=0), max((row.last_ts for row in about), default=0)
    first = first if config.since is None else min(max(first, micros(config.since)), last)
    return buckets(first, last, min(_MOST_BUCKETS, max(1, _MOST_ROWS // max(1, len(facts.views)))))


def _write(rows: DataFrame, folder: Path) -> None:
    rows.write.mode("overwrite").parquet(str(folder))
