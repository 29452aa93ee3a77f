"""The events of a log as NumPy arrays, an array for each field, without a Python value for any event.

`middleware/eventlog.py` says what the blocks mean: `rows` of a block gives the same values one by one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ackwise.middleware.eventlog import FIELDS, GROWING, NONE, RECORD_SIZE, RUN_FIELDS, STAYING, Block, EventLog, OutcomeBlock, StartBlock

__all__ = ["Columns"]

Array = npt.NDArray[Any]

_SIZES: Final = {"q": "i8", "i": "i4", "h": "i2", "b": "i1"}
_FIELDS: Final = [(field.name, f"<{_SIZES[field.format]}") for field in FIELDS]
_RECORD: Final = np.dtype([*_FIELDS, ("filling", f"V{RECORD_SIZE - np.dtype(_FIELDS).itemsize}")])
_PART: Final = 1024  # records that a cache holds while their fields are taken apart
_NONE: Final = NONE["q"]


class Columns:
    """The fields of all events of a log, of which there is at least one. Fields that are the same in all events take no memory."""

    def __init__(self, log: EventLog) -> None:
        self._blocks = log.blocks
        is_run = np.array([not isinstance(block, Block) for block in log.blocks])
        self._counts = np.array([block.count for block in log.blocks])
        self._firsts = np.cumsum(self._counts) - self._counts
        # A record stands for one event, or for all of a run.
        self._records = np.where(is_run, 1, self._counts)
        self._times = np.repeat(np.where(is_run, self._counts, 1), self._records)
        self._number = int(self._counts.sum())
        given = np.frombuffer(b"".join(block.records if isinstance(block, Block) else block.record for block in log.blocks), _RECORD)
        self.texts: list[str | None] = [None]
        """What the numbers of a text field stand for."""
        of_records = self._numbered(_apart(given))
        self._rank = np.arange(self._number) - self._of_blocks(self._firsts)
        self._source = self._sources()
        self.fields: dict[str, Array] = {
            name: self._of_runs(name, values) if name in RUN_FIELDS else self._spread(values) for name, values in of_records.items()
        }
        self.seq = np.arange(log.header.first_seq, log.next_seq)

    def _numbered(self, given: dict[str, Array]) -> dict[str, Array]:
        """With numbers for texts that are the same in all blocks."""
        numbers: dict[str | None, int] = {None: 0}
        of_blocks = np.array([numbers.setdefault(text, len(numbers)) for block in self._blocks for text in block.strings], np.int32)
        self.texts = list(numbers)
        sizes = np.array([len(block.strings) for block in self._blocks])
        bases = np.repeat(np.cumsum(sizes) - sizes, self._records)
        return {
            name: of_blocks[bases + values] if is_text and values.any() else values
            for (name, _, is_text), values in zip(FIELDS, given.values(), strict=True)
        }

    def _of_blocks(self, values: Array) -> Array:
        return np.repeat(values, self._counts)

    def _spread(self, values: Array) -> Array:
        """A field of records, at each event."""
        if len(values) and (values == values[0]).all():
            return np.broadcast_to(values[0], self._number)
        return values if len(values) == self._number else np.repeat(values, self._times)

    def _sources(self) -> Array | None:
        """Where each event has the columns of its run: that of an outcome at the start of its message. `None`: all at their own place."""
        places = {block.first_seq: place for place, block in enumerate(self._blocks)}
        outcomes = [(place, block) for place, block in enumerate(self._blocks) if isinstance(block, OutcomeBlock)]
        if not outcomes:
            return None
        starts = self._firsts.copy()
        for place, block in outcomes:
            starts[place] = self._firsts[places[block.start.first_seq]]
        found = self._of_blocks(starts) + self._rank
        for place, block in outcomes:
            if block.places is not None:
                first = self._firsts[place]
                found[first : first + block.count] = starts[place] + np.array(block.places)
        return found

    def _of_runs(self, name: str, values: Array) -> Array:
        """As `_spread`, of a field that may differ within a run."""
        given = self._spread(values)
        columns = [block.columns.get(name) if isinstance(block, StartBlock) else None for block in self._blocks]
        if name in GROWING:
            grows = np.array([isinstance(block, StartBlock) and name not in block.columns for block in self._blocks])
            given = np.where(self._of_blocks(grows) & (given != _NONE), given + self._rank, given) if grows.any() else given
        if any(columns):
            given = given.copy()
            there = self._of_blocks(np.array([column is not None for column in columns]))
            given[there] = np.frombuffer(b"".join(column for column in columns if column is not None), given.dtype)
        return given if self._source is None or name not in STAYING else given[self._source]


def _apart(records: Array) -> dict[str, Array]:
    """The fields of records, each by itself."""
    found = {name: np.empty(len(records), kind) for name, kind in _FIELDS}
    for first in range(0, len(records), _PART):
        part = records[first : first + _PART]
        for name, values in found.items():
            values[first : first + _PART] = part[name]
    return found
