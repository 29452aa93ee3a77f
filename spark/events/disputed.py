"""Events that are there twice with other content: nobody knows which of the two was written, so none of them counts.

The same event in two files is usual: a log that is still written, a folder that was copied, a topic that was collected. The
names of files have the numbers of their events; only files whose numbers overlap are read.
"""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

__all__ = ["Disputed", "disputed"]


class Disputed(NamedTuple):
    """Numbers of a writer, from `first` to before `after`, that say one thing in a file and another in one more."""

    writer: int
    first: int
    after: int
    files: tuple[Path, ...]

    def __str__(self) -> str:
        """A sentence."""
        events = f"event {self.first}" if self.after == self.first + 1 else f"events {self.first} to {self.after - 1}"
        are = "is" if self.after == self.first + 1 else "are"
        return f"{events} of {self.writer:016x} {are} there with different content, in {self.files[0]} and {self.files[1]}; neither counts"


def disputed(files: Sequence[Path]) -> list[Disputed]:
    """Return the events that are there twice with other content. Raises `OSError` and what pyarrow raises for an unreadable file."""
    return [found for writer, overlapping in _overlapping(files) for found in _differences(writer, overlapping)]


def _overlapping(files: Sequence[Path]) -> Iterator[tuple[int, list[Path]]]:
    """Yield the files of a writer that have numbers in common with others; those with the same bytes once."""
    by_writer: dict[int, list[tuple[int, int, Path]]] = defaultdict(list)
    for path in files:
        numbers = path.stem.split("-")
        by_writer[int(numbers[1], 16)].append((int(numbers[2]), int(numbers[3]), path))
    for writer, spans in by_writer.items():
        together: list[Path] = []
        until = -1
        for first, last, path in sorted(spans):
            if first > until:
                if len(together) > 1:
                    yield writer, together
                together = []
            if not any(other.name == path.name and filecmp.cmp(other, path, shallow=False) for other in together):
                together.append(path)
            until = max(until, last)
        if len(together) > 1:
            yield writer, together


def _differences(writer: int, files: Sequence[Path]) -> Iterator[Disputed]:
    from ackwise.spark.events.differing import differing

    for _, group in groupby(enumerate(sorted(differing(files))), key=lambda each: each[1].seq - each[0]):
        events = [each for _, each in group]
        yield Disputed(writer, events[0].seq, events[-1].seq + 1, (files[events[0].file], files[events[0].other]))
