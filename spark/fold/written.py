"""The sequence numbers that are in files of events, read without Spark: a few columns of many say which events are missing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from ackwise.spark.events.exploding import IDENTIFIED, numbers_of
from ackwise.spark.events.numbers import Run, Runs, together, without
from ackwise.spark.events.reading import for_each, read
from ackwise.spark.events.sources import Evidence, counted, events_of
from ackwise.spark.fold.tracks import SeqRun

__all__ = ["written_in"]


def written_in(evidence: Evidence) -> list[SeqRun]:
    """Return the numbers in its files, without disputed ones: of each writer, without a hole within, in order.

    Raises `OSError` for a file that can't be read.
    """
    runs: dict[int, list[Runs]] = defaultdict(list)
    for found in for_each(evidence.files, _numbers):
        for writer_id, each in found.items():
            runs[writer_id].append(each)
    joined = {writer_id: together(np.concatenate(each)).tolist() for writer_id, each in sorted(runs.items())}
    return [
        SeqRun(writer_id, first, after - 1)
        for writer_id, each in joined.items()
        for first, after in without(each, _disputed(evidence, writer_id))
    ]


def _disputed(evidence: Evidence, writer_id: int) -> list[Run]:
    return [(each.first, each.after) for each in evidence.disputed if each.writer == writer_id]


def _numbers(path: Path) -> dict[int, Runs]:
    """Return the runs of numbers by writer. Where the rows of a file have as many as its name says, these are what it has."""
    named = events_of(path)
    if named is not None and counted(read(path, ["n", "ok_n"])) == named.after - named.first:
        return {named.writer_id: np.array([named[1:]])}
    return numbers_of(read(path, IDENTIFIED))
