"""The judgement: from folded events to a verdict on each message and offset. No table is written here.

survey     who wrote, about which partitions     → facts, and what "now" is
holes      which events are missing              → what can't be known
commits    how far each group got                → which offsets there are to account for
fold       the state of each message             → its verdict
words      which offsets no event is about       → theirs, and what became of what was produced
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.logs import NO_LOGS, Logs
from ackwise.spark.events.schema import micros
from ackwise.spark.events.sources import Evidence
from ackwise.spark.fold.facts import CommitRow, Committed, Facts, Named, SurveyRow, committed_by, establish
from ackwise.spark.fold.folded import Folded, FoldedEvents, Horizon
from ackwise.spark.fold.gaps import Around, Blindness, Hole, blindness, pieces, unwritten
from ackwise.spark.fold.survey import committed, named, passed, strange, unreported_commits
from ackwise.spark.frames import DataFrame, Row, SparkSession
from ackwise.spark.judge.books import domains
from ackwise.spark.judge.context import context, delay_partitions
from ackwise.spark.judge.offsets import offset_words, seen_by_messages, unproved_gaps
from ackwise.spark.judge.produced import Produced
from ackwise.spark.judge.unreported import Left, Mark, left, unreported, without_holes
from ackwise.spark.judge.verdicts import follow_epochs, judge, keys, logical, mark_provisional, repeated, settle_repeated, settle_suppressed
from ackwise.spark.session.rows import at_once, rows_of

__all__ = ["Judgement", "Progress", "conclude", "weigh"]

_Row = TypeVar("_Row", bound=tuple[Any, ...])
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Judgement:
    """The result of `conclude`. Its frames are lazy."""

    facts: Facts
    holes: Sequence[Hole]
    commits: Mapping[int, Committed]
    judged: DataFrame
    settled: DataFrame
    """One row per message that is judged: its state, its context, `verdict` and `flags`."""
    failed: DataFrame
    """The dedup hashes where deduplication failed, see `logical`."""
    words: DataFrame
    """The offsets of each partition, see `judge.offsets`."""
    produced: Produced | None
    blind: Blindness
    taken: Sequence[Left]
    """Offsets that dead writers may have started, and did not commit."""
    marked: Collection[int]
    """The dead writers whose log shows all that they had started."""
    strange: int
    """The number of events that were passed over as unknown."""
    kept: Sequence[DataFrame]
    """The frames that are cached until `release`."""

    def release(self) -> None:
        """Drop the cached frames."""
        for frame in self.kept:
            frame.unpersist()


def weigh(
    spark: SparkSession,
    evidence: Evidence,
    config: ReconcileConfig,
    progress: Progress = lambda step: None,
    produced_rows: DataFrame | None = None,
    last_commits: Sequence[LastCommit] = (),
) -> Judgement:
    """Judge the events of files together with rows of `read_produced`, if there are any."""
    return conclude(spark, FoldedEvents(spark, evidence), config, evidence.logs, progress, produced_rows, last_commits)


def conclude(
    spark: SparkSession,
    folded: Folded,
    config: ReconcileConfig,
    logs: Logs = NO_LOGS,
    progress: Progress = lambda step: None,
    produced_rows: DataFrame | None = None,
    last_commits: Sequence[LastCommit] = (),
) -> Judgement:
    """Judge folded events. What needs all of them is decided here."""
    progress("surveying the events")
    moves = folded.steps.persist()
    rows, names, passages, unsaid, doubtful = at_once(
        folded.survey, named(moves), passed(moves), unreported_commits(moves), unproved_gaps(moves)
    )
    facts = establish(_as(rows, SurveyRow), config, logs, _as(names, Named), last_commits)
    progress("looking for missing events")
    between, last = folded.holes(facts.writers), unwritten(facts)
    gone = sorted([*between, *last])
    around = [*folded.around(between), *_as(passages, Around)]
    blind = blindness(facts, gone, around, _as(unsaid, Around) if gone else ())
    progress("reading the commits")
    since, grace = None if config.since is None else micros(config.since), micros(config.grace)
    marked = facts.marked - {hole.writer_id for hole in gone}
    had = left(spark, moves, facts, marked)
    known_commits, open_ranges = at_once(committed(moves, facts.as_of, delay_partitions(spark, facts), since), had)
    commits = committed_by(_as(known_commits, CommitRow))
    taken = without_holes(_as(open_ranges, Mark))
    judged = _judged(spark, folded, facts, commits, blind, taken, marked, since, grace).persist()
    keyed = keys(judged).persist()
    kept = [moves, judged, keyed]
    if not (twice := repeated(judged)).isEmpty():
        kept.append(successes := folded.claimed_successes(twice).persist())
        judged = settle_repeated(judged, successes)
    settled = settle_suppressed(judged, keyed, facts.as_of)
    known = mark_provisional(follow_epochs(settled, spark, facts.views), facts.as_of, micros(config.lateness))
    expected, produced, evidence = domains(facts, commits), None, list[DataFrame]()
    sent = folded.outgoing if facts.sending else None
    if produced_rows is not None or sent is not None:
        progress("counting what was produced")
        blind_clusters = {cluster for cluster, _ in facts.sending & blind.groups}
        produced = Produced.survey(produced_rows, sent, facts.as_of, grace, blind_clusters)
        resumed = {pk for pk, commit in commits.items() if commit.resumed is not None}
        evidence = produced.evidence(spark, facts, expected, blind, resumed)
    seen = folded.seen if since is not None else seen_by_messages(judged)
    words = offset_words(seen, moves, spark, expected, blind, grace, evidence, is_any_unproved=bool(doubtful)).persist()
    failed = logical(settled, keyed)
    kept += [words, *folded.cached]
    passed_over = strange(moves).count() if facts.strange else 0
    return Judgement(
        facts, gone, commits, judged, known.where("concerned"), failed, words, produced, blind, taken, marked, passed_over, kept
    )


def _judged(
    spark: SparkSession,
    folded: Folded,
    facts: Facts,
    commits: Mapping[int, Committed],
    blind: Blindness,
    taken: Sequence[Left],
    marked: Collection[int],
    since: int | None,
    grace: int,
) -> DataFrame:
    begin = None if since is None else since - grace
    states = folded.messages(facts.live_writers, facts.mute, None if begin is None else _horizon(facts, commits, begin))
    rewound = {pk: commit.rewound for pk, commit in commits.items()}
    return judge(
        states,
        context(spark, facts, commits, blind, begin),
        rows_of(spark, pieces(blind.unsettled, rewound), "pk long, start long, end long, unsettled boolean, rewound boolean"),
        unreported(spark, folded, facts, taken, marked),
        facts.as_of,
        grace,
        since,
    )


def _horizon(facts: Facts, commits: Mapping[int, Committed], since: int) -> Horizon:
    retention = max((group.retention for group in facts.groups.values()), default=0)
    return Horizon(since - retention, {pk: commit.resumed for pk, commit in commits.items() if commit.resumed is not None})


def _as(rows: Iterable[Row], kind: type[_Row]) -> list[_Row]:
    return [kind(*row) for row in rows]
