"""The details of a report, computed by Spark after the verdicts in two passes, and more only where needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ackwise.middleware.events import EventCode
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.schema import micros
from ackwise.spark.events.sources import Evidence
from ackwise.spark.fold.facts import Facts
from ackwise.spark.fold.gaps import Hole
from ackwise.spark.frames import DataFrame, Row, SparkSession
from ackwise.spark.judge.accounts import PartitionAccount
from ackwise.spark.report.attempts import Attempts
from ackwise.spark.report.details import AGES, Details, Failures, StuckClaims
from ackwise.spark.report.earlier import earlier_runs
from ackwise.spark.report.exports import Written, exports
from ackwise.spark.report.latency import Latency
from ackwise.spark.report.strips import Strip
from ackwise.spark.report.timeline import Buckets, Timeline, buckets, timeline
from ackwise.spark.results.measures import absent_bins, bins, stream_names, stuck_claims, trails, writing
from ackwise.spark.results.stories import Flagged, safe_error, stories_of
from ackwise.spark.results.tables import HOUR, MISSING_COLUMNS
from ackwise.spark.session.rows import at_once, rows_of
from ackwise.spark.vocabulary import Flag, Verdict
from ackwise.spark.why.story import Story

__all__ = ["Judged", "compute_details"]

#: As many bars as a narrow screen can still show.
_MOST_BUCKETS: Final = 60
_PARTITION: Final = ("cluster", "group_id", "topic", "topic_id", "partition")


@dataclass(frozen=True)
class Judged:
    """A judgement and its counts."""

    facts: Facts
    holes: Sequence[Hole]
    events: DataFrame
    """Projected, but those of clean messages."""
    messages: DataFrame
    """The messages of runs, see `fold.runs`."""
    judged: DataFrame
    settled: DataFrame
    accounts: Sequence[PartitionAccount]
    tallies: Sequence[Row]
    """Rows of `results.tables.tallies`."""
    latencies: Sequence[Row]
    """Rows of `results.measures.latencies`."""
    findings: Sequence[Row]
    missing: Sequence[Row]


def compute_details(spark: SparkSession, found: Judged, out: Path, evidence: Evidence, config: ReconcileConfig) -> Details:
    """Count what the page draws. `out` has the table `missing` already."""
    facts, time = found.facts, _time(found.facts)
    flagged = _some_of_each([*map(_flagged, found.findings), *_first_of_ranges(found)], config.listed)
    rows, absent, stuck, behind = at_once(
        writing(found.events, found.messages, time, bins(spark, found.accounts)),
        _absent(spark, found, out) if found.missing else rows_of(spark, (), "pk long, bin long, verdict string"),
        stuck_claims(found.events, found.settled, facts.as_of),
        trails(found.events, _asked(spark, flagged)),
    )
    return Details(
        latencies=_latencies(found),
        attempts=_attempts(facts, found.tallies),
        strips=_strips(found, rows, absent),
        stuck=_stuck(found, stuck),
        failures=_failures(facts, rows),
        exports=exports(facts.writers, found.holes, _written(rows), time),
        time=time,
        hours=_hours(found.tallies),
        stories=_stories(found, flagged, behind, evidence, config),
        earlier=earlier_runs(out, [str(root) for root in evidence.roots], facts.as_of),
    )


def _time(facts: Facts) -> Buckets:
    first, last = min((w.first_ts for w in facts.writers), default=0), max((w.last_ts for w in facts.writers), default=0)
    return buckets(first, last, _MOST_BUCKETS)


def _written(rows: Iterable[Row]) -> list[Written]:
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row["writer_id"] is not None:
            spans[row["writer_id"], row["bucket"]].append((row["first"], row["last"]))
    return [Written(*key, min(first for first, _ in each), max(last for _, last in each)) for key, each in spans.items()]


def _latencies(found: Judged) -> list[Latency]:
    names = stream_names(found.facts)
    classes: dict[int, dict[int, int]] = defaultdict(dict)
    for row in found.latencies:
        classes[row["stream"]][row["class"]] = row["count"]
    return [Latency(*names[stream], each) for stream, each in sorted(classes.items())]


def _attempts(facts: Facts, tallies: Iterable[Row]) -> list[Attempts]:
    views = {view.mk: view for view in facts.views}
    found: dict[tuple[str, str, str], Counter[tuple[int, Verdict]]] = defaultdict(Counter)
    in_place: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for row in tallies:
        view = views[row["mk"]]
        kind = view.group[1], view.handler, facts.partitions[view.pk].topic
        last = row["attempt"] + row["in_place"]
        found[kind][last, Verdict(row["verdict"])] += row["count"]
        in_place[kind].update(dict.fromkeys(range(row["attempt"], last), row["count"]))
    return [Attempts(*kind, last, in_place[kind]) for kind, last in sorted(found.items())]


def _strips(found: Judged, rows: Iterable[Row], absent: Iterable[Row]) -> list[Strip]:
    of_view = {view.mk: view.pk for view in found.facts.views}
    verdicts: dict[int, dict[int, Counter[Verdict]]] = defaultdict(lambda: defaultdict(Counter))
    for row in found.tallies:
        if row["bin"] is not None:
            verdicts[of_view[row["mk"]]][row["bin"]][Verdict(row["verdict"])] += row["count"]
    for row in absent:
        verdicts[row["pk"]][row["bin"]][Verdict[row["verdict"]]] += row["count"]
    moved: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in rows:
        if row["bin"] is not None:
            moved[row["pk"], row["code"]].add(row["bin"])
    return [
        Strip(
            account,
            verdicts[account.partition.pk],
            sorted(moved[account.partition.pk, EventCode.ASSIGNED]),
            sorted(moved[account.partition.pk, EventCode.REVOKED]),
        )
        for account in found.accounts
    ]


def _absent(spark: SparkSession, found: Judged, out: Path) -> DataFrame:
    partitions = found.facts.partitions.values()
    rows = [(p.pk, *p.group, p.topic, p.topic_id, p.partition) for p in partitions]
    keyed = rows_of(spark, rows, "pk long, cluster string, group_id string, topic string, topic_id string, partition int")
    return absent_bins(spark.read.schema(MISSING_COLUMNS).parquet(str(out / "missing")), keyed.join(bins(spark, found.accounts), "pk"))


def _stuck(found: Judged, rows: Iterable[Row]) -> list[StuckClaims]:
    clients = {writer.writer_id: writer.client for writer in found.facts.writers}
    ages: dict[int, list[int]] = defaultdict(lambda: [0] * (len(AGES) + 1))
    for row in rows:
        ages[row["writer_id"]][row["age"]] += row["count"]
    most_first = sorted(ages.items(), key=lambda item: (-sum(item[1]), item[0]))
    return [StuckClaims(writer, clients.get(writer, ""), each) for writer, each in most_first]


def _hours(tallies: Iterable[Row]) -> Timeline | None:
    """Return when the records of what is anomalous or unknown were written, or None if there is nothing of that kind."""
    wrong = [(Verdict(row["verdict"]), row["hour"] * HOUR, row["count"]) for row in tallies if row["hour"] is not None]
    if not wrong:
        return None
    begins = [begin for _, begin, _ in wrong]
    time = buckets(min(begins), max(begins), _MOST_BUCKETS, narrowest=3600)
    return timeline(time, ((verdict, (begin - time.begin) // time.width, count) for verdict, begin, count in wrong))


def _failures(facts: Facts, rows: Iterable[Row]) -> list[Failures]:
    views = {view.mk: view for view in facts.views}
    found: Counter[tuple[str, str, str, str]] = Counter()
    for row in rows:
        if row["mk"] in views:
            view = views[row["mk"]]
            found[view.group[1], view.handler, facts.partitions[view.pk].topic, safe_error(row["error"])] += row["count"]
    return [Failures(*kind, runs) for kind, runs in sorted(found.items())]


def _asked(spark: SparkSession, flagged: Sequence[Flagged]) -> DataFrame:
    rows = [(number, each.pk, each.mk, each.offset) for number, each in enumerate(flagged)]
    return rows_of(spark, rows, "number int, pk long, flagged_mk long, at long")


def _stories(found: Judged, flagged: Sequence[Flagged], rows: Iterable[Row], evidence: Evidence, config: ReconcileConfig) -> list[Story]:
    order = ("number", "ts", "writer_id", "seq")
    behind: list[Mapping[str, Any]] = sorted((row.asDict() for row in rows), key=lambda row: [_or_least(row[name]) for name in order])
    return stories_of(found.facts, flagged, behind, evidence.logs.still_written, micros(config.writer_timeout))


def _or_least(number: int | None) -> int:
    return -(2**63) if number is None else number


def _some_of_each(flagged: Sequence[Flagged], most: int) -> list[Flagged]:
    """Return at most so many, worst verdict first, with some of each verdict."""
    seen: Counter[Verdict] = Counter()
    ranked = []
    for each in flagged:
        seen[each.verdict] += 1
        ranked.append((seen[each.verdict], each.verdict, each))
    chosen = [each for _, _, each in sorted(ranked, key=lambda item: item[:2])[:most]]
    return sorted(chosen, key=lambda each: each.verdict)


def _flagged(row: Row) -> Flagged:
    return Flagged(Verdict(row["verdict"]), Flag(row["flags"]), row["pk"], row["mk"], row["offset"])


def _first_of_ranges(found: Judged) -> list[Flagged]:
    keys = {(*p.group, p.topic, p.topic_id, p.partition): pk for pk, p in found.facts.partitions.items()}
    return [
        Flagged(Verdict[row["verdict"]], Flag(0), keys[*(row[name] for name in _PARTITION)], None, row["start"]) for row in found.missing
    ]
