"""The judgement: from folded events to a verdict on each message and offset. No table is written here.

survey     who wrote, about which partitions     → facts, and what "now" is
holes      which events are missing              → what can't be known
commits    how far each group got                → which offsets there are to account for
clean      64 offsets at a time                  → which messages ran once and need no other look
fold       the state of each other message       → its verdict
words      which offsets no event is about       → theirs, and what became of what was produced
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ackwise.middleware.progress.commitmetadata import LastCommit
from ackwise.spark.config import ReconcileConfig
from ackwise.spark.events.bitmap import word_of
from ackwise.spark.events.logs import NO_LOGS, Logs
from ackwise.spark.events.schema import micros
from ackwise.spark.events.sources import Evidence
from ackwise.spark.fold.facts import CommitRow, Committed, Facts, Named, SurveyRow, committed_by, establish
from ackwise.spark.fold.folded import FoldedEvents
from ackwise.spark.fold.gaps import Around, Blindness, Hole, blindness, pieces, unwritten
from ackwise.spark.fold.messages import claimed_successes, fold
from ackwise.spark.fold.runs import events_of, is_in, over_epochs
from ackwise.spark.fold.runs import words as words_of
from ackwise.spark.fold.survey import committed, named, passed, strange, unreported_commits
from ackwise.spark.frames import DataFrame, F, Row, SparkSession
from ackwise.spark.judge.accounts import domains
from ackwise.spark.judge.clean import cleared, excluded, mates_of, ran_twice, shared_keys, times_by_word
from ackwise.spark.judge.context import context, delay_partitions
from ackwise.spark.judge.offsets import offset_words, seen_by, seen_in, unproved_gaps
from ackwise.spark.judge.order import overtaken, with_overtaken
from ackwise.spark.judge.order import words_of as late_words
from ackwise.spark.judge.produced import Produced
from ackwise.spark.judge.unreported import Left, Mark, left, unreported, without_holes
from ackwise.spark.judge.verdicts import follow_epochs, judge, keys, logical, mark_provisional, repeated, settle_repeated, settle_suppressed
from ackwise.spark.results.tables import names
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
    events: DataFrame
    """The events about partitions, and those about messages that are not clean; projected."""
    messages: DataFrame
    """The messages of runs, see `fold.runs`."""
    judged: DataFrame
    settled: DataFrame
    """One row per message that is judged and not clean: its state, its context, `verdict` and `flags`."""
    clean: DataFrame
    """One row per clean message, with the same columns but `state`."""
    mates: DataFrame
    """The clean messages whose dedup hash others have, too."""
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

    @property
    def every(self) -> DataFrame:
        """The rows of `settled` and of the clean messages that are judged."""
        return _together(self.settled, self.clean)

    @property
    def known(self) -> DataFrame:
        """The rows of `judged` and of all clean messages."""
        return self.judged.unionByName(self.clean, allowMissingColumns=True)

    @property
    def keyed(self) -> DataFrame:
        """The rows of `settled`, and of clean messages whose dedup hash others have."""
        return _together(self.settled, self.mates)

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
    folded: FoldedEvents,
    config: ReconcileConfig,
    logs: Logs = NO_LOGS,
    progress: Progress = lambda step: None,
    produced_rows: DataFrame | None = None,
    last_commits: Sequence[LastCommit] = (),
) -> Judgement:
    """Judge folded events. What needs all of them is decided here."""
    progress("surveying the events")
    moves = folded.steps.persist()
    rows, said, passages, unsaid, doubtful = at_once(
        folded.survey, named(moves), passed(moves), unreported_commits(moves), unproved_gaps(moves)
    )
    facts = establish(_as(rows, SurveyRow), config, logs, _as(said, Named), last_commits)
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
    contexts = context(spark, facts, commits, blind, None if since is None else since - grace)
    open_still = unreported(spark, folded, facts, taken, marked).persist()
    late = overtaken(spark, folded, facts, blind, grace)
    against = excluded(spark, facts.views, commits, [open_still] if late is None else [open_still, late_words(late)])
    clean = _clean(spark, folded, facts, contexts, against, since, grace)
    events = folded.events.unionByName(clean.others, allowMissingColumns=True)
    states = with_overtaken(fold(events, facts.live_writers, facts.mute), late)
    judged = judge(states, contexts, _stretches(spark, commits, blind), open_still, facts.as_of, grace, since).persist()
    twice = ran_twice(judged, clean.rows)
    shared = shared_keys(judged, twice).persist()
    mates = mates_of(clean.rows, shared).persist()
    keyed = keys(judged.unionByName(mates, allowMissingColumns=True)).persist()
    kept = [moves, open_still, judged, keyed, clean.masks, clean.rows, twice, shared, mates, *(() if late is None else [late])]
    judged = settle_repeated(judged, claimed_successes(events, repeated(judged)))
    settled = settle_suppressed(judged, keyed, facts.as_of)
    known = mark_provisional(follow_epochs(settled, spark, facts.views), facts.as_of, micros(config.lateness)).persist()
    expected, produced, evidence = domains(facts, commits), None, list[DataFrame]()
    sent = folded.outgoing if facts.sending else None
    if produced_rows is not None or sent is not None:
        progress("counting what was produced")
        blind_clusters = {cluster for cluster, _ in facts.sending & blind.groups}
        produced = Produced.survey(produced_rows, sent, facts.as_of, grace, blind_clusters)
        resumed = {pk for pk, commit in commits.items() if commit.resumed is not None}
        evidence = produced.evidence(spark, facts, expected, blind, resumed)
    seen = [seen_in(clean.masks, clean.named), times_by_word(folded.messages, clean.named), seen_by(folded.events)]
    words = offset_words(seen, moves, spark, expected, blind, grace, evidence, is_any_unproved=bool(doubtful)).persist()
    failed = logical(settled, keyed).persist()
    kept += [known, words, failed, *folded.cached]
    passed_over = strange(moves).count() if facts.strange else 0
    return Judgement(
        facts=facts,
        holes=gone,
        commits=commits,
        events=events,
        messages=folded.messages,
        judged=judged,
        settled=known.where("concerned"),
        clean=clean.rows,
        mates=mates,
        failed=failed,
        words=words,
        produced=produced,
        blind=blind,
        taken=taken,
        marked=marked,
        strange=passed_over,
        kept=kept,
    )


def _together(settled: DataFrame, clean: DataFrame) -> DataFrame:
    return settled.unionByName(clean.where("concerned"), allowMissingColumns=True)


class _Clean(NamedTuple):
    """The messages of runs, by what is known of the words that they are in."""

    masks: DataFrame
    """Rows of `fold.runs.words`."""
    named: DataFrame
    rows: DataFrame
    """The clean ones, see `judge.clean.cleared`."""
    others: DataFrame
    """The events of the others."""


def _clean(
    spark: SparkSession, folded: FoldedEvents, facts: Facts, contexts: DataFrame, against: DataFrame, since: int | None, grace: int
) -> _Clean:
    masks = over_epochs(words_of(folded.messages, folded.events, against), spark, facts.views).persist()
    every, named_views = folded.messages.withColumn("word", word_of("offset")).join(masks, ["mk", "word"]), names(spark, facts)
    others = events_of(every.where(~is_in("clean"))).join(F.broadcast(named_views), "mk")
    return _Clean(masks, named_views, cleared(every, contexts, since, grace).persist(), others)


def _stretches(spark: SparkSession, commits: Mapping[int, Committed], blind: Blindness) -> DataFrame:
    rewound = {pk: commit.rewound for pk, commit in commits.items()}
    return rows_of(spark, pieces(blind.unsettled, rewound), "pk long, start long, end long, unsettled boolean, rewound boolean")


def _as(rows: Iterable[Row], kind: type[_Row]) -> list[_Row]:
    return [kind(*row) for row in rows]
