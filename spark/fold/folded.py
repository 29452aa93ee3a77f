"""`Folded`: the interface of a fold, whether computed at once or from partial folds.

What needs the whole is decided later, in `facts`: who lives, what "now" is, how far a group got.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ackwise.spark.events.bitmap import points
from ackwise.spark.events.schema import is_about_a_message
from ackwise.spark.fold import survey, tracks
from ackwise.spark.fold.facts import Writer
from ackwise.spark.fold.gaps import Around, Hole
from ackwise.spark.fold.messages import claimed_successes, copies, fold, outcomes
from ackwise.spark.fold.outgoing import outgoing
from ackwise.spark.frames import DataFrame, SparkSession

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


class FoldedEvents:
    """Projected events, folded on demand."""

    def __init__(self, spark: SparkSession, events: DataFrame) -> None:
        self._spark = spark
        self._events = events

    @property
    def survey(self) -> DataFrame:
        return survey.survey(self._events)

    @property
    def steps(self) -> DataFrame:
        return survey.steps(self._events)

    @property
    def seen(self) -> DataFrame:
        return points(self._events.where(is_about_a_message()), "pk", "offset", "seen", "record_ts", "record_ts").toDF(
            "key", "word", "kind", "mask", "oldest", "newest"
        )

    def holes(self, writers: Sequence[Writer]) -> list[Hole]:
        written = [(writer.writer_id, 0, writer.last_seq + 1) for writer in writers]
        found = survey.holes(self._events, self._spark.createDataFrame(written, "key long, start long, end long"))
        return [Hole(*row) for row in found.collect()]

    def around(self, holes: Sequence[Hole]) -> list[Around]:
        if not holes:
            return []
        written = [tracks.SeqRun(writer, 0, _NO_END) for writer in sorted({hole.writer_id for hole in holes})]
        track_rows = tracks.tracks(self._spark, self._events, tracks.runs(written, holes))
        found = tracks.around(track_rows, self._spark.createDataFrame(list(holes), "writer_id long, first long, after long"))
        return [Around(*row) for row in found.collect()]

    def messages(self, live_writers: Collection[int], mute: Collection[int], horizon: Horizon | None = None) -> DataFrame:
        return fold(self._events, live_writers, mute)

    def outcomes(self, writers: Collection[int]) -> DataFrame:
        return outcomes(self._events, writers)

    def claimed_successes(self, messages: DataFrame) -> DataFrame:
        return claimed_successes(self._events, messages)

    @property
    def copies(self) -> DataFrame:
        return copies(self._events)

    @property
    def outgoing(self) -> DataFrame:
        return outgoing(self._events)
