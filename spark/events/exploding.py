"""Rows of event files as events, from a table of Arrow to another one. `runs.explode` does the same to frames."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.compute import call_function as call

from ackwise.middleware.events import EVENT_COLUMNS, EventCode
from ackwise.spark.events.numbers import Runs, runs_in
from ackwise.spark.kernels.arrays import Flags, Numbers, arrow, begins, flat, is_there, numbers
from ackwise.spark.kernels.runs import LISTS, RunRows
from ackwise.stores.journal.parquet import SCHEMA

__all__ = ["EVENTS", "IDENTIFIED", "NUMBERED", "Numbered", "exploded", "numbered", "numbers_of"]

#: The columns of an event.
EVENTS: Final = pa.schema([SCHEMA.field(column.name) for column in EVENT_COLUMNS])
#: The columns that `numbered` needs: a row that contradicts itself by any of its numbers is one event.
NUMBERED: Final = (
    *("seq", "ok_seq", "n", "ok_n", "offset", "last_offset", "masks", "ok_masks", "exec_id", "event_ts", "ok_ts", "mono_ns", "ok_mono_ns"),
    *LISTS,
)
#: A start and a success without one of these are no events, see `project`.
_OF_START: Final = ("writer_id", "event_type", "event_ts")
_OF_SUCCESS: Final = ("writer_id", "ok_ts")
#: The columns that `numbers_of` needs.
IDENTIFIED: Final = ("writer_id", "event_type", *NUMBERED)
_OF_STARTS: Final = ("lost", "took_unreleased", "attrs", "error", "level", "due_ts")


def exploded(rows: pa.Table, *also: str) -> pa.Table:
    """Return a row per event, see `explode`, with the columns `also` of its row: row by row, each success after its start."""
    schema = pa.schema([*EVENTS, *(rows.schema.field(name) for name in also)])
    if rows["n"].null_count == len(rows):
        return rows.select(schema.names).cast(schema)
    events = _Events(rows)
    found = {**{name: events.of_row(name) for name in schema.names}, **events.values()}
    return pa.table([found[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


class Numbered(NamedTuple):
    """The sequence numbers of events, row by row."""

    seq: Numbers
    row: Numbers
    """The places of their rows."""
    is_success: Flags
    """Whether it is the success in a row of starts."""


def numbered(rows: pa.Table) -> Numbered:
    """Return the numbers of the events of rows with the columns `NUMBERED`; events without one are left out."""
    events = _Events(rows)
    there = is_there(events.seq)
    return Numbered(numbers(events.seq, 0)[there], events.row[there], events.is_success[there])


def numbers_of(rows: pa.Table) -> dict[int, Runs]:
    """Return the runs of the numbers of events, by writer, of rows with the columns `IDENTIFIED`."""
    events = numbered(rows)
    has_start, has_success = (np.logical_and.reduce([is_there(rows[name]) for name in of]) for of in (_OF_START, _OF_SUCCESS))
    there = np.where(events.is_success, has_success[events.row], has_start[events.row])
    seq, writer = events.seq[there], numbers(rows["writer_id"], 0)[events.row[there]]
    return {int(writer_id): runs_in(seq[writer == writer_id]) for writer_id in np.unique(writer)}


class _Events:
    """The events of rows: arrays that have a value of each."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        messages = _Messages(rows)
        each = 1 + messages.is_ok
        message = np.repeat(np.arange(len(each)), each)
        self.is_success: Flags = np.append(False, message[1:] == message[:-1]) if len(message) else np.zeros(0, np.bool_)
        self.row = messages.row[message]
        self._rank = messages.rank[message]
        self._is_run = messages.is_run[self.row]
        self._offset = arrow(messages.offset[message], messages.has_offset[message])

    def of_row(self, name: str) -> pa.Array:
        """A column of each event's row."""
        return self._rows[name].combine_chunks().take(arrow(self.row))

    @cached_property
    def seq(self) -> pa.Array:
        """The sequence numbers."""
        number = call("coalesce", [self._either("ok_seqs", "seqs", self._listed), arrow(self._rank)])
        return call("add", [self._either("ok_seq", "seq", self.of_row), number])

    def values(self) -> dict[str, pa.Array]:
        """The columns of an event that differ from those of its row."""
        is_run, is_success = arrow(self._is_run), arrow(self.is_success)
        after = call("coalesce", [self._either("ok_us", "at_us", self._listed), _scalar(0)])
        took = call("coalesce", [self._listed("took_us"), _numbers(self.of_row("duration_us"))])
        has_ok = self._is_run & (numbers(self.of_row("ok_n"), 0) > 0)
        is_told = arrow(~has_ok | self.is_success)
        record_ts = call("multiply", [self._listed("record_ms"), _scalar(1000)])
        own = {name: self.of_row(name) for name in ("event_type", "order_hash", "record_ts", "dedup_hash", *_OF_STARTS)}
        start = {name: call("if_else", [is_success, _null(own[name].type), own[name]]) for name in _OF_STARTS}
        order = call("if_else", [is_run, self._listed("order_hashes"), _numbers(own["order_hash"])])
        return {
            **start,
            "seq": self.seq,
            "event_type": call("if_else", [is_success, _scalar(EventCode.SUCCEEDED), _numbers(own["event_type"])]),
            "event_ts": call("add", [self._either("ok_ts", "event_ts", self.of_row), after]),
            "mono_ns": call("add", [self._either("ok_mono_ns", "mono_ns", self.of_row), call("multiply", [after, _scalar(1000)])]),
            "offset": self._offset,
            "record_ts": call("if_else", [is_run, record_ts, _numbers(own["record_ts"])]),
            "exec_id": call("add", [self.of_row("exec_id"), arrow(self._rank)]),
            "order_hash": call("if_else", [is_success, _null(pa.int64()), order]),
            "dedup_hash": call("if_else", [is_run, self._listed("hashes"), own["dedup_hash"]]),
            "duration_us": call("if_else", [is_told, took, _null(pa.int64())]),
        }

    def _either(self, success: str, start: str, column: Any) -> pa.Array:
        """The one column of successes and the other of starts, as numbers."""
        return call("if_else", [arrow(self.is_success), _numbers(column(success)), _numbers(column(start))])

    def _listed(self, name: str) -> pa.Array:
        """The value of each in a column of lists; null without a list."""
        lists = self._rows[name]
        there = self._is_run & is_there(lists)[self.row]
        places = np.where(there, begins(lists)[self.row] + self._rank, 0)
        return _numbers(flat(lists).take(arrow(places, there)))


class _Messages:
    """The messages of rows. A row without `n`, and one that contradicts itself, is one; the latter has no offset."""

    def __init__(self, rows: pa.Table) -> None:
        has_n = is_there(rows["n"])
        runs = RunRows(rows.filter(arrow(has_n)).select(NUMBERED).rename_columns({"event_ts": "ts"}))
        self.is_run = np.zeros(len(rows), np.bool_)
        self.is_run[np.flatnonzero(has_n)[runs.is_well_formed]] = True
        sizes = np.where(self.is_run, numbers(rows["n"], 1), 1)
        self.row = np.repeat(np.arange(len(sizes)), sizes)
        self.rank = np.arange(len(self.row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        of_runs = self.is_run[self.row]
        self.offset, self.is_ok = numbers(rows["offset"], -1)[self.row], np.zeros(len(self.row), np.bool_)
        self.offset[of_runs], self.is_ok[of_runs] = runs.offset, runs.is_ok
        self.has_offset = of_runs | (is_there(rows["offset"]) & ~has_n)[self.row]


def _numbers(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64())


def _scalar(value: int) -> pa.Scalar:
    return arrow(np.array([value]))[0]


def _null(kind: pa.DataType) -> pa.Scalar:
    return pa.nulls(1, kind)[0]
