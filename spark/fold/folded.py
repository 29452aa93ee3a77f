"""`Folded`: the interface of a fold, whether computed at once or from partial folds.

What needs the whole is decided later, in `facts`: who lives, what "now" is, how far a group got.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from ackwise.spark.events.bitmap import points
from ackwise.spark.events.schema import is_about_a_message, project
from ackwise.spark.events.sources import Evidence, read_events
from ackwise.spark.fold import survey, tracks
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import claimed_successes, copies, fold, outcomes, told
from ackwise.spark.fold.outgoing import outgoing
from ackwise.spark.fold.written import Written, written_in
from ackwise.spark.frames import DataFrame, SparkSession
from ackwise.spark.session.rows import rows_of

__all__ = ["Folded", "FoldedEvents", "Horizon"]

#: Larger than any sequence number.
_NO_END: Final = 2**62


class Horizon(NamedTuple):
    """The limit behind which messages have an outcome, were committed past, and have no event since."""

    since: int
    """Microseconds."""
    resumed: Mapping[int, int]
    """The committed position by `pk`; other partitions have no horizon."""


class Folded(Protocol):
    """The fold of a set of events. Its frames are lazy."""

    @property
    def survey(self) -> DataFrame:
        """Rows of `SurveyRow`, one of each writer, partition and handler."""
        ...

    @property
    def steps(self) -> DataFrame:
        """The events about partitions, see `survey.steps`."""
        ...

    @property
    def seen(self) -> DataFrame:
        """Offsets with a message event, as `points` of the kind `seen`; `oldest` and `newest` are record times."""
        ...

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        """Return the missing sequence numbers of the writers."""
        ...

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        """Return the positions in each partition before and after each hole."""
        ...

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        """The states of the messages, as `fold` has them; those beyond the horizon may be left out."""
        ...

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        """Return the outcomes that `writers` reported, as `messages.outcomes` does; call it after `messages`, for the same ones."""
        ...

    def told(self, writers: Collection[int]) -> DataFrame:
        """Return the messages with a run of `writers` that others told of, as `messages.told`; call it after `messages`."""
        ...

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        """Return how many runs under a claim succeeded, as `messages.claimed_successes`; call it after `messages`."""
        ...

    @property
    def copies(self) -> DataFrame:
        """Places at which copies were read, as `messages.copies` returns them."""
        ...

    @property
    def outgoing(self) -> DataFrame:
        """The events of the producer side, see `outgoing`; one may be there several times."""
        ...

    @property
    def cached(self) -> Sequence[DataFrame]:
        """The frames that are cached, to be dropped at the end."""
        ...


class FoldedEvents:
    """The events of files, folded on demand."""

    def __init__(self, spark: SparkSession, evidence: Evidence) -> None:
        self._spark = spark
        self._evidence = evidence
        self.events = project(read_events(spark, evidence))
        """Projected."""
        self._surveyed = survey.surveyed(self.events).persist()
        self._told: Sequence[DataFrame] = ()

    @property
    def survey(self) -> DataFrame:
        return survey.merged(self._surveyed)

    @property
    def steps(self) -> DataFrame:
        return survey.steps_in(self._surveyed)

    @cached_property
    def _written(self) -> Written:
        return written_in(self._evidence)

    def _of(self, writers: Collection[int]) -> DataFrame:
        """Return the events of all files that have some of these writers."""
        return project(read_events(self._spark, replace(self._evidence, files=self._written.of(writers))))

    @property
    def seen(self) -> DataFrame:
        return points(self.events.where(is_about_a_message()), "pk", "offset", "seen", "record_ts", "record_ts").toDF(
            "key", "word", "kind", "mask", "oldest", "newest"
        )

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        known = {writer.writer_id for writer in writers}
        return [hole for hole in tracks.holes_between(self._written.runs) if hole.writer_id in known]

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        if not holes:
            return []
        writers = sorted({hole.writer_id for hole in holes})
        runs = tracks.runs([tracks.SeqRun(writer, 0, _NO_END) for writer in writers], holes)
        track_rows = tracks.tracks(self._spark, self._of(writers), runs)
        found = tracks.around(track_rows, rows_of(self._spark, holes, "writer_id long, first long, after long"))
        return [Around(*row) for row in found.collect()]

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        return fold(self.events, live_writers, mute)

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        return outcomes(self._of(writers), writers)

    def told(self, writers: Collection[int]) -> DataFrame:
        self._told = [*self._told, found := told(self.events, writers).persist()]  # it is asked for of origins and of copies
        return found

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        return claimed_successes(self.events, messages)

    @property
    def copies(self) -> DataFrame:
        return copies(self.events)

    @property
    def outgoing(self) -> DataFrame:
        return outgoing(self.events)

    @property
    def cached(self) -> Sequence[DataFrame]:
        return (self._surveyed, *self._told)
