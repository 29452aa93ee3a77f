"""`FoldedEvents`: the events of files, run rows apart from the others, and what each step of the job needs of them.

What needs the whole is decided later, in `facts`: who lives, what "now" is, how far a group got.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ackwise.spark.events.schema import project
from ackwise.spark.events.sources import Evidence, events_in, read_rows, single_events
from ackwise.spark.fold import runs, survey, tracks
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import copies, outcomes, told
from ackwise.spark.fold.outgoing import outgoing
from ackwise.spark.fold.written import written_in
from ackwise.spark.frames import DataFrame, F, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["FoldedEvents"]

#: Larger than any sequence number.
_NO_END: Final = 2**62


class FoldedEvents:
    """The events of files, folded on demand."""

    def __init__(self, spark: SparkSession, evidence: Evidence) -> None:
        self._spark = spark
        self._evidence = evidence
        rows = read_rows(spark, evidence)
        found, self._names, self.events = _apart(rows, evidence)
        """All other events; projected."""
        self.messages = runs.paired(found.where("code > 0"))
        """The messages of run rows that say only what is said of clean ones, see `runs.messages`."""
        self.pieces = runs.pieces(found)
        """These run rows themselves, without their messages."""
        self._kept = (found, self.events)
        self._surveyed = survey.surveyed(self.events).persist()
        self._told: Sequence[DataFrame] = ()

    @property
    def survey(self) -> DataFrame:
        """Rows of `SurveyRow`, one of each writer, partition and handler."""
        return survey.merged(self._surveyed.drop("step").unionByName(runs.survey_of(self.messages, self._names)))

    @property
    def steps(self) -> DataFrame:
        """The events about partitions, see `survey.steps_in`."""
        return survey.steps_in(self._surveyed)

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        """Return the missing sequence numbers of the writers."""
        known = {writer.writer_id for writer in writers}
        return [hole for hole in tracks.holes_between(written_in(self._evidence)) if hole.writer_id in known]

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        """Return the positions in each partition before and after each hole."""
        if not holes:
            return []
        writers = sorted({hole.writer_id for hole in holes})
        between = tracks.runs([tracks.SeqRun(writer, 0, _NO_END) for writer in writers], holes)
        mine = F.col("writer_id").isin(writers)
        of_runs = self.messages.where(mine).join(self._names, ["writer_id", "mk"])
        track_rows = tracks.tracks(self._spark, self.events.where(mine), of_runs, between).persist()
        try:
            found = tracks.around(track_rows, rows_of(self._spark, holes, "writer_id long, first long, after long")).collect()
        finally:
            track_rows.unpersist()
        return [Around(*row) for row in found]

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        """Return the outcomes that `writers` reported, as `messages.outcomes` does."""
        return outcomes(self.events, writers).unionByName(runs.outcomes(self.messages, writers))

    def told(self, writers: Collection[int]) -> DataFrame:
        """Return the messages with a run of `writers` that others told of, as `messages.told`."""
        self._told = [*self._told, found := told(self.events, writers).persist()]  # it is asked for of origins and of copies
        return found

    @property
    def copies(self) -> DataFrame:
        """Places at which copies were read, as `messages.copies` returns them."""
        return copies(self.events)

    @property
    def outgoing(self) -> DataFrame:
        """The events of the producer side, see `outgoing`; one may be there several times."""
        return outgoing(self.events)

    @property
    def cached(self) -> Sequence[DataFrame]:
        """The frames that are cached, to be dropped at the end."""
        return (*self._kept, self._surveyed, *self._told)


def _apart(rows: DataFrame, evidence: Evidence) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The messages of runs that may be clean, the names of their writers and views, and all other events."""
    plain, is_run = runs.may_be_clean([each.writer for each in evidence.disputed]), F.col("n").isNotNull()
    projected = runs.projected_runs(rows.where(plain)).repartition("pk")
    found = runs.messages(projected).persist()
    names = projected.select(*runs.NAMES).distinct()
    # A row that contradicts itself: an event without an offset counts as one of an unknown code.
    said = found.where("code > 0")
    strange = said.where(F.col("offset").isNull()).select("writer_id", "mk", "code", "seq", "ts")
    others = runs.without_start(said).unionByName(strange, allowMissingColumns=True).join(names, ["writer_id", "mk"])
    rest = single_events(rows.where(~is_run), evidence).unionByName(events_in(rows.where(is_run & ~plain), evidence))
    return found, names, project(rest).repartition("pk").unionByName(others, allowMissingColumns=True).persist()
