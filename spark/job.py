"""The reconciliation: events in, verdicts, books and a report out. Only this module and `results.details` set Spark to work.

survey     who wrote, about which partitions     → facts, and what "now" is
holes      which events are missing              → what can't be known
commits    how far each group got                → which offsets there are to account for
fold       the state of each message             → its verdict
words      which offsets no event is about       → theirs, and what became of what was produced
books      do they add up?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from ackwise.middleware.repair import NAME as PLAN
from ackwise.middleware.repair import Summary, Title, write_plan
from ackwise.spark.claims.audit import audit
from ackwise.spark.claims.comparison import Claims
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.bitmap import count, stretches
from ackwise.spark.events.logs import NO_LOGS, Logs
from ackwise.spark.events.schema import micros, project
from ackwise.spark.events.sources import Evidence, read_events
from ackwise.spark.fold.cache import State, brought_up, evidence_since
from ackwise.spark.fold.facts import Committed, Facts, SurveyRow, establish
from ackwise.spark.fold.folded import Folded, FoldedEvents, Horizon
from ackwise.spark.fold.gaps import Around, Blindness, Hole, blindness
from ackwise.spark.fold.survey import committed, passed, untold
from ackwise.spark.judge.accounts import Orphans, Production, keep_produced
from ackwise.spark.judge.books import Book, check, domains, keep
from ackwise.spark.judge.context import context, delay_partitions
from ackwise.spark.judge.offsets import UNPROVED, absent, accounts, offset_words, seen_by_messages, unproved
from ackwise.spark.judge.produced import Produced, read_produced, unpublished_rows
from ackwise.spark.judge.unreported import Left, left, unsaid
from ackwise.spark.judge.verdicts import judge, keys, logical, mark_provisional, settle_suppressed
from ackwise.spark.report.delays import Delays
from ackwise.spark.report.page.compose import report_data
from ackwise.spark.report.page.render import render
from ackwise.spark.report.report import PAGE, DeadLetters, RunReport, Tally, to_json
from ackwise.spark.report.timeline import Buckets, Timeline, buckets, timeline
from ackwise.spark.results.details import Judged, compute_details
from ackwise.spark.results.joins import sized
from ackwise.spark.results.plan import of_keys, of_messages, of_offsets, steps
from ackwise.spark.results.tables import (
    MISSING,
    copy_tallies,
    doubtful,
    findings,
    late_rows,
    logical_rows,
    logical_tallies,
    missing_rows,
    names,
    offsets,
    orphan_rows,
    tallies,
    verdict_rows,
)
from ackwise.spark.results.values import dead_letters_of, delays_of, finding_of, logical_of, missing_of, retry_books_of, tallies_of
from ackwise.spark.sample import Sampled, check_sample
from ackwise.spark.vocabulary import Account, Flag, Verdict

__all__ = ["Judgement", "conclude", "reconcile", "weigh"]

#: As many bars as a narrow screen can still show.
_MOST_BUCKETS: Final = 60
#: Messages are counted by partition and bucket at once, in one pass; where there are very many partitions, buckets are fewer.
_MOST_ROWS: Final = 100_000

_NAMED: Final = 3  # ranges in a sentence

_Row = TypeVar("_Row", bound=tuple[Any, ...])
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Judgement:
    """What `conclude` found. Frames are not computed before somebody asks."""

    facts: Facts
    holes: Sequence[Hole]
    commits: Mapping[int, Committed]
    judged: DataFrame
    settled: DataFrame
    """One row per message that is judged: its state, its context, `verdict` and `flags`."""
    failed: DataFrame
    """The dedup hashes where deduplication failed, see `logical`."""
    words: DataFrame
    """The offsets of each partition, see `ledger`."""
    produced: Produced | None
    blind: Blindness
    taken: Sequence[Left]
    """What writers that died had received and never told the end of."""
    kept: Sequence[DataFrame]
    """What is computed once, for as long as this is in use."""

    def release(self) -> None:
        """Keep nothing any more."""
        for frame in self.kept:
            frame.unpersist()


def reconcile(
    spark: SparkSession,
    evidence: Evidence,
    *,
    out: Path,
    run_id: str,
    config: ReconcileConfig,
    produced: Path | None = None,
    state: State | None = None,
    claims: Claims | None = None,
    progress: Progress = lambda step: None,
) -> RunReport:
    """Judge the events of `evidence` and write tables, `plan.jsonl`, `report.html` and `summary.json` to the folder `out`.

    `produced` is a file or folder that `read_produced` takes; files that `state` knows are not folded again; `claims`
    are compared with the verdicts. `summary.json` is written last: a folder that has it is complete.
    `progress` is told what is being done. Raises `UnbalancedBooks` if the verdicts do not add up, `OSError`, and what Spark raises.
    """
    told = None if produced is None else read_produced(spark, produced)
    folded = None if state is None else brought_up(spark, state, evidence, progress)
    events = read_events(spark, evidence if state is None else evidence_since(evidence, config.since))
    found = conclude(spark, folded or FoldedEvents(spark, project(events)), config, evidence.logs, progress, told)
    try:
        counts = _write_tables(spark, found, out, config, progress)
        books = keep(found.facts, found.commits, counts.booked, counts.absent)
        check(books)
        if config.verify_sample:
            progress(f"judging {config.verify_sample} messages once more, by the plain algebra")
            every = read_events(spark, evidence)
            check_sample(spark, Sampled(found.facts, found.commits, found.blind, found.taken, found.judged, found.settled, every), config)
        audited = None
        if claims is not None:
            progress(f"comparing the claims in {claims.store}")
            audited = audit(claims, found.facts, found.judged, found.settled, names(spark, found.facts), out, config)
        plan = _write_plan(spark, found, counts, out, run_id, config)
        progress("drawing the page")
        judged, of = found.judged.where("concerned"), (counts.kinds, counts.findings, counts.missing)
        counted_from = Judged(found.facts, found.holes, project(events), judged, found.settled, books, *of)
        details = compute_details(spark, counted_from, out, evidence, config)
        if folded is not None:
            folded.keep_open(found.judged)
    finally:
        found.release()
    production = None if produced is None else _production(found, counts, str(produced))
    report = _report(found, counts, books, evidence, run_id, str(out), config)
    report = replace(report, produced=production, plan=plan, details=details, claims=audited)
    _write_text(out / PAGE, render(report_data(report)))
    _write_text(out / "summary.json", to_json(report))
    return report


def weigh(
    spark: SparkSession,
    events: DataFrame,
    config: ReconcileConfig,
    logs: Logs = NO_LOGS,
    progress: Progress = lambda step: None,
    told: DataFrame | None = None,
) -> Judgement:
    """Judge events in `EVENT_SCHEMA`, beside what was produced, in rows of `read_produced`."""
    return conclude(spark, FoldedEvents(spark, project(events)), config, logs, progress, told)


def conclude(
    spark: SparkSession,
    folded: Folded,
    config: ReconcileConfig,
    logs: Logs = NO_LOGS,
    progress: Progress = lambda step: None,
    told: DataFrame | None = None,
) -> Judgement:
    """Judge what was folded: here all is decided that depends on knowing the whole."""
    progress("surveying the events")
    facts = establish(_collect(folded.survey, SurveyRow), config, logs)
    progress("looking for missing events")
    gone = folded.holes(facts.writers)
    moves = folded.steps.persist()
    around = [*folded.around(gone), *_collect(passed(moves), Around)]
    blind = blindness(facts, gone, around, _collect(untold(moves), Around) if gone else ())
    progress("reading the commits")
    since, grace = None if config.since is None else micros(config.since), micros(config.grace)
    commits = {row.pk: row for row in _collect(committed(moves, facts.as_of, delay_partitions(spark, facts), since), Committed)}
    unsettled = [(pk, *span) for pk, spans in blind.unsettled.items() for span in spans]
    states = folded.messages(facts.live_writers, None if since is None else _horizon(facts, commits, since - grace))
    taken = left(spark, moves, facts)
    judged = judge(
        states,
        context(spark, facts, commits, blind, None if since is None else since - grace),
        spark.createDataFrame(unsettled, "pk long, start long, end long"),
        unsaid(spark, folded, facts, taken),
        facts.as_of,
        grace,
        since,
    ).persist()
    keyed = keys(judged).persist()
    known = mark_provisional(settle_suppressed(judged, keyed, facts.as_of), facts.as_of, micros(config.lateness))
    expected, produced, told_of = domains(facts, commits), None, list[DataFrame]()
    if told is not None:
        progress("counting what was produced")
        produced = Produced.survey(told, facts.as_of, grace)
        resumed = {pk for pk, commit in commits.items() if commit.resumed is not None}
        told_of = produced.evidence(spark, facts, expected, blind, resumed)
    seen = folded.seen if since is not None else seen_by_messages(judged)
    words = offset_words(seen, moves, spark, expected, blind, grace, told_of).persist()
    failed = logical(known, keyed)
    kept = (moves, judged, keyed, words)
    return Judgement(facts, gone, commits, judged, known.where("concerned"), failed, words, produced, blind, taken, kept)


def _horizon(facts: Facts, commits: Mapping[int, Committed], since: int) -> Horizon:
    retention = max((group.retention for group in facts.groups.values()), default=0)
    return Horizon(since - retention, {pk: commit.resumed for pk, commit in commits.items() if commit.resumed is not None})


@dataclass(frozen=True)
class _Counts:
    """What was counted, in part as Spark gave it."""

    kinds: Sequence[Row]
    """Of `results.tallies`."""
    tallies: Sequence[Tally]
    booked: Sequence[tuple[int, Verdict, int]]
    absent: Mapping[int, Mapping[str, int]]
    told: Mapping[int, Mapping[str, int]]
    """By `pk` and `Account`."""
    fallen: Sequence[int]
    """The `pk` of partitions whose records get older as offsets grow."""
    unproved: Sequence[tuple[int, int, int]]
    """Ranges of offsets that an older version jumped over, by `pk`, which may be more than gaps."""
    findings: Sequence[Row]
    doubtful: Sequence[Row]
    missing: Sequence[Row]
    logical: Sequence[Row]
    orphans: Sequence[Row]
    copies: Sequence[Row]
    dead_letters: Sequence[DeadLetters]
    delays: Sequence[Delays]
    timeline: Timeline


def _write_tables(spark: SparkSession, found: Judgement, out: Path, config: ReconcileConfig, progress: Progress) -> _Counts:
    """Write the tables and count. What is listed is asked for only where the counts say that there is something."""
    named, classes, time = names(spark, found.facts), absent(), _time(found.facts, config)
    told = {} if found.produced is None else accounts()
    progress("judging the messages")
    _write(verdict_rows(found.settled, named), out / "verdicts")
    counted = tallies(found.settled, time).collect()
    kinds = tallies_of(found.facts, counted)
    worst = findings(found.settled, named, config.listed).collect() if any(kind.is_anomaly for kind in kinds) else []
    in_doubt = doubtful(found.settled, named, config.listed).collect() if any(kind.is_doubtful for kind in kinds) else []
    copies = copy_tallies(found.settled).collect() if any(Flag.RETRIED in kind.flags for kind in kinds) else []
    progress("comparing messages of one key")
    hashes = logical_tallies(found.failed).collect()
    _write(logical_rows(found.settled, sized(found.failed, _number(hashes)), named), out / "logical")
    progress("accounting for every offset")
    partitions = count(found.words, classes | told | unproved(), F.max("falls").alias("falls")).collect()
    without = {row["key"]: {name: row[name] for name in classes} for row in partitions}
    listed = {name: mask for name, mask in (classes | told).items() if name in MISSING}
    absentees = missing_rows(stretches(found.words, listed), named)
    is_missing = any(row[name] for row in partitions for name in listed)
    _write(absentees if is_missing else absentees.limit(0), out / "missing")
    listing = spark.read.parquet(str(out / "missing")).orderBy("group_id", "topic", "partition", "start").limit(config.listed)
    first = listing.collect() if is_missing else []
    return _Counts(
        kinds=counted,
        tallies=kinds,
        booked=_booked(found, counted),
        absent=without,
        told={row["key"]: {name: row[name] for name in told} for row in partitions},
        fallen=[row["key"] for row in partitions if row["falls"]],
        unproved=_unproved(found) if any(row[UNPROVED] for row in partitions) else [],
        findings=worst,
        doubtful=in_doubt,
        missing=first,
        logical=hashes,
        orphans=_write_produced(found, named, out, config),
        copies=copies,
        dead_letters=dead_letters_of(found.facts, counted),
        delays=delays_of(found.facts, counted),
        timeline=timeline(time, ((Verdict(row["verdict"]), row["bucket"], row["count"]) for row in counted)),
    )


def _unproved(found: Judgement) -> list[tuple[int, int, int]]:
    ranges = stretches(found.words, unproved()).select("key", "start", "end").collect()
    return [(row["key"], row["start"], row["end"]) for row in ranges]


def _write_produced(found: Judgement, named: DataFrame, out: Path, config: ReconcileConfig) -> list[Row]:
    """Write what is said of what was produced beside the verdicts; the first orphans."""
    if found.produced is None:
        return []
    orphans = orphan_rows(stretches(found.words, {Account.ORPHAN: accounts()[Account.ORPHAN]}), named)
    late = late_rows(unpublished_rows(found.produced.rows, found.facts.as_of, micros(config.grace)))
    _write(orphans.unionByName(late, allowMissingColumns=True), out / "produced")
    return orphans.orderBy("group_id", "topic", "partition", "start").limit(config.listed).collect()


def _write_plan(spark: SparkSession, found: Judgement, counts: _Counts, out: Path, run_id: str, config: ReconcileConfig) -> Summary:
    """Write what would repair what was found, as one file that is streamed through the driver."""
    named = names(spark, found.facts)
    frames = []
    if any(kind.is_anomaly or kind.verdict is Verdict.UNKNOWN_EXPORT_GAP for kind in counts.tallies):
        frames.append(of_messages(found.settled, named, provisional=config.plan_provisional))
    if counts.logical:
        frames.append(of_keys(found.settled, sized(found.failed, _number(counts.logical)), named))
    if counts.missing:
        frames.append(of_offsets(spark.read.parquet(str(out / "missing"))))
    path = out / PLAN
    planned = write_plan(path, Title(run_id, found.facts.as_of), steps(frames) if frames else iter(()))
    left_out = sum(kind.messages for kind in counts.tallies if Flag.PROVISIONAL in kind.flags and not config.plan_provisional)
    return Summary(str(path), planned, left_out)


def _number(tallies: Sequence[Row]) -> int:
    return sum(row["count"] for row in tallies)


def _production(found: Judgement, counts: _Counts, path: str) -> Production | None:
    if found.produced is None:
        return None
    return Production(
        path=path,
        books=keep_produced(found.facts.partitions, counts.told, found.produced.partitions(found.facts)),
        unpublished=found.produced.unpublished,
        unread=found.produced.unread(found.facts),
        orphans=[Orphans(row["group_id"], row["topic"], row["partition"], row["start"], row["end"]) for row in counts.orphans],
    )


def _booked(found: Judgement, counted: Iterable[Row]) -> list[tuple[int, Verdict, int]]:
    """Offsets with events, by `pk` and verdict."""
    of_view = {view.mk: view.pk for view in found.facts.views}
    if len(of_view) == len(set(of_view.values())):
        return [(of_view[row["mk"]], Verdict(row["verdict"]), row["count"]) for row in counted if row["is_booked"]]
    # Messages of several handlers may share an offset.
    return [(pk, Verdict(verdict), number) for pk, verdict, number in offsets(found.settled).collect()]


def _report(
    found: Judgement, counts: _Counts, books: Sequence[Book], evidence: Evidence, run_id: str, output: str, config: ReconcileConfig
) -> RunReport:
    facts = found.facts
    return RunReport(
        run_id=run_id,
        as_of=facts.as_of,
        roots=[str(root) for root in evidence.roots],
        files=len(evidence.files),
        bytes=evidence.size,
        writers=facts.writers,
        missing_events=_missing_events(found),
        books=books,
        tallies=counts.tallies,
        findings=[finding_of(row) for row in counts.findings],
        doubtful=[finding_of(row) for row in counts.doubtful],
        missing=[missing_of(row) for row in counts.missing],
        listed=config.listed,
        logical=[logical_of(facts, row) for row in counts.logical],
        retry_books=retry_books_of(facts, counts.copies),
        dead_letters=counts.dead_letters,
        delays=counts.delays,
        timeline=counts.timeline if counts.timeline.counts else None,
        unreadable=evidence.unreadable,
        warnings=_warnings(found, counts, evidence, config),
        output=output,
        config=config,
    )


def _time(facts: Facts, config: ReconcileConfig) -> Buckets:
    """From the first event of a message that is judged to the last."""
    about = [row for row in facts.rows if row.message_events]
    first, last = min((row.first_ts for row in about), default=0), max((row.last_ts for row in about), default=0)
    first = first if config.since is None else min(max(first, micros(config.since)), last)
    return buckets(first, last, min(_MOST_BUCKETS, max(1, _MOST_ROWS // max(1, len(facts.views)))))


def _warnings(found: Judgement, counts: _Counts, evidence: Evidence, config: ReconcileConfig) -> list[str]:
    sentences = []
    if config.since is not None:
        begin = datetime.fromtimestamp(config.since, UTC)
        sentences.append(f"only what has happened since {begin:%Y-%m-%d %H:%M:%S} UTC was judged, and what was still open then")
        if micros(config.since) > found.facts.as_of:
            sentences.append("no event is as late as that: give an earlier --since, or see whether the workers still export")
    if found.holes:
        writers = len({hole.writer_id for hole in found.holes})
        sentences.append(f"{_missing_events(found)} events of {writers} writers are missing; what depends on them is UNKNOWN_EXPORT_GAP")
    if evidence.foreign:
        sentences.append(
            f"{len(evidence.foreign)} Parquet files, such as {evidence.foreign[0]}, are not named as events are and were not read"
        )
    if counts.unproved:
        sentences.append(_said_unproved(found.facts, counts.unproved))
    if fallen := counts.fallen:
        first = min((found.facts.partitions[pk] for pk in fallen), key=lambda each: (each.group, each.topic, each.partition))
        sentences.append(
            f"the records of {len(fallen)} partitions, such as {first.topic}/{first.partition} of {first.group[1]}, get older as offsets "
            "grow: if the topic was made anew, offsets of two topics are taken for one here, so keep the events of the older one apart"
        )
    if found.produced is not None and (unread := found.produced.unread(found.facts)):
        sentences.append(f"{unread} records were produced to partitions that no group has read, by these events, and were not judged")
    if found.facts.strange:
        sentences.append(f"{found.facts.strange} events were passed over: this version does not know what they mean")
    return sentences


def _said_unproved(facts: Facts, unproved: Sequence[tuple[int, int, int]]) -> str:
    named = sorted((facts.partitions[pk].topic, facts.partitions[pk].partition, start, end) for pk, start, end in unproved)
    some = ", ".join(f"{topic}/{partition} [{start}, {end})" for topic, partition, start, end in named[:_NAMED])
    offsets = sum(end - start for _, start, end in unproved)
    return (
        f"{offsets} offsets were jumped over by workers of an older version, which did not say whether their log has nothing there: "
        f"{some}{f' and {len(named) - _NAMED} more ranges' if len(named) > _NAMED else ''}; they count as gaps"
    )


def _missing_events(found: Judgement) -> int:
    return sum(hole.after - hole.first for hole in found.holes)


def _collect(frame: DataFrame, kind: type[_Row]) -> list[_Row]:
    return [kind(*row) for row in frame.collect()]


def _write_text(path: Path, text: str) -> None:
    """All of it or nothing, so that nobody opens half a report."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _write(rows: DataFrame, folder: Path) -> None:
    rows.write.mode("overwrite").parquet(str(folder))
