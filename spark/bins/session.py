"""`BinnedSession`: where frames in bins come from, and what computes them: a task for each bin, by Spark or one after the other.

A frame is only a text until rows are asked for. Then everything that it needs and that is not there yet is computed, in *rounds*: a
program for each, which every bin runs. Rows that must move end a round, since a bin can't go on before all others have sent theirs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.bins.frame import ANYWHERE, EVERYWHERE, BinnedFrame
from ackwise.spark.bins.program import Constant, Files, Input, Keep, Kept, Map, Move, Moved, Program, Show, Step, Write, parts, shown
from ackwise.spark.frames import DataFrame as SparkFrame
from ackwise.spark.frames import SparkSession, computed_by
from ackwise.spark.local.column import identifier, type_of
from ackwise.spark.local.frame import Database, emptied
from ackwise.spark.local.session import EVENTS, FUNCTIONS, LocalSession, Reader, connected, files_of, without_zones

__all__ = ["BinnedSession", "Tasks", "binned", "parquet_of", "in_this_process"]

Tasks = Callable[[Program], None]
"""Runs a program for each of its bins."""

#: Rows of a constant beyond which it is a file, which each task reads, and no part of what is sent to it.
_FEW: Final = 10_000


@dataclass(eq=False)
class _Table:
    """A table of a session. A step computes it, unless it is given."""

    step: Step | None
    given: Input
    sources: frozenset[str]
    is_there: bool = False

    @property
    def moves(self) -> bool:
        """Whether bins send it to each other."""
        return isinstance(self.step, Move)


@contextmanager
def binned(tasks: Tasks, bins: int, folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """A session that computes in `bins` bins by `tasks`, with files in `folder`, which is removed at the end.

    It stands for PySpark's; while it is open, `frames.F` are the functions of the local engine.
    """
    folder.mkdir(parents=True)
    try:
        with connected() as shapes, computed_by(*FUNCTIONS):
            session = BinnedSession(shapes, tasks, bins, folder, settings)
            yield cast("SparkSession", session)
            session.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_this_process(program: Program) -> None:
    """Run a program for one bin after the other."""
    for number in range(program.bins):
        program.run(number)


class BinnedSession:
    """The part of PySpark's session that the job uses."""

    def __init__(self, shapes: LocalSession, tasks: Tasks, bins: int, folder: Path, settings: Mapping[str, str]) -> None:
        self._shapes = shapes
        """Has every table without rows, to tell the columns of queries."""
        self._tasks = tasks
        self.bins = bins
        self._folder = folder
        self._settings = settings
        self._tables: dict[str, _Table] = {}
        self._moved: dict[tuple[str, str | None], str] = {}
        self._written: list[tuple[Step, BinnedFrame]] = []
        self._numbers = count(1)

    def new_name(self) -> str:
        """Return a name that no table and no frame has."""
        return f"b{next(self._numbers)}"

    # Where frames come from.

    def createDataFrame(self, rows: pa.Table, schema: str = "") -> BinnedFrame:  # PySpark's name
        """Return the rows of a table of Arrow, whose types need no schema; every bin has them."""
        name, table = self.new_name(), without_zones(rows)
        self._shapes.register(name, table.schema.empty_table())
        self._tables[name] = _Table(None, self._constant(name, table), frozenset(), is_there=True)
        return BinnedFrame(cast("Database", self), f"SELECT * FROM {name}", table.schema.names, sources=frozenset({name}), by=EVERYWHERE)

    def none_of(self, frame: BinnedFrame) -> BinnedFrame:
        """Return a frame of the same columns without rows."""
        return self.createDataFrame(self._shapes.arrow(_named(frame)))

    def _constant(self, name: str, table: pa.Table) -> Input:
        if len(table) <= _FEW:
            return Constant(name, table)
        path = self._folder / f"{name}.parquet"
        pq.write_table(table, path)
        return Files(name, [[str(path)]] * self.bins, table.schema, are_events=False)

    @property
    def read(self) -> Reader:
        return Reader(self)

    def files(self, paths: Sequence[str], *, are_events: bool) -> BinnedFrame:
        """Return the rows of Parquet files, or of those in folders; each bin reads some."""
        self.flush()  # they may be of this run
        name, files = self.new_name(), files_of(paths)
        schema = EVENTS if are_events else without_zones(pq.read_schema(files[0]).empty_table()).schema
        self._shapes.register(name, schema.empty_table())
        given = Files(name, parts(files, self.bins), schema, are_events)
        self._tables[name] = _Table(None, given, frozenset(), is_there=True)
        return BinnedFrame(cast("Database", self), f"SELECT * FROM {name}", schema.names, sources=frozenset({name}), by=ANYWHERE)

    # What makes tables of frames. None of these computes anything.

    def keep(self, frame: BinnedFrame) -> str:
        name, sql = self.new_name(), _named(frame)
        self._shapes.run(f"CREATE TEMP TABLE {name} AS {sql}")
        return self._add(name, Keep(name, sql), Kept(name), frame)

    def move(self, frame: BinnedFrame, to: str | None) -> str:
        sql = _named(frame)
        if (sql, to) in self._moved:
            return self._moved[sql, to]
        name = self.new_name()
        self._shapes.run(f"CREATE TEMP TABLE {name} AS {sql}")
        schema = self._shapes.arrow(f"SELECT * FROM {name}").schema
        self._moved[sql, to] = self._add(name, Move(name, sql, to), Moved(name, schema), frame)
        return name

    def map(self, frame: BinnedFrame, function: Callable[..., Any], schema: str) -> tuple[str, list[str]]:
        name = self.new_name()
        columns = [(name.strip("`"), kind) for name, kind in (column.split() for column in schema.split(", "))]
        self._shapes.run(f"CREATE TEMP TABLE {name} ({', '.join(f'{identifier(each)} {type_of(kind)}' for each, kind in columns)})")
        self._add(name, Map(name, frame.sql, frame.columns, function, schema), Kept(name), frame)
        return name, [each for each, _ in columns]

    def _add(self, name: str, step: Step, given: Input, frame: BinnedFrame) -> str:
        self._tables[name] = _Table(step, given, frame.sources)
        return name

    def drop(self, table: str) -> None:
        if self._tables[table].is_there:
            shutil.rmtree(self._folder / table, ignore_errors=True)

    # What a frame needs of a database.

    def columns_of(self, sql: str) -> list[str]:
        """Return the columns of a query."""
        return self._shapes.columns_of(sql)

    def rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Return the rows of a table of Arrow, as Python has them."""
        return self._shapes.rows(table)

    # What computes.

    def show(self, *frames: BinnedFrame) -> list[list[pa.Table]]:
        """Compute the rows of each frame, bin by bin."""
        names = [self.new_name() for _ in frames]
        self._compute([(Show(name, _named(frame)), frame) for name, frame in zip(names, frames, strict=True)])
        found = [shown(self._folder, name, self.bins) for name in names]
        for name in names:
            shutil.rmtree(self._folder / name)
        return found

    def files_of(self, frame: BinnedFrame) -> list[Path]:
        """Compute the rows, and return the Parquet files that have them."""
        folder = self._folder / self.new_name()
        self.write(frame, str(folder))
        self.flush()
        return sorted(folder.glob("*.parquet"))

    def write(self, frame: BinnedFrame, folder: str) -> None:
        """Write the rows to Parquet files in a folder, together with what is computed next."""
        path = emptied(folder)
        here = frame if frame.by is not EVERYWHERE else frame.coalesce(1)
        self._written.append((Write(self.new_name(), here.sql, here.columns, str(path)), here))

    def flush(self) -> None:
        """Write what is to be written."""
        if self._written:
            self._compute([])

    def _compute(self, shown: Sequence[tuple[Step, BinnedFrame]]) -> None:
        asked, self._written = [*self._written, *shown], []
        needed = {name: self._tables[name] for _, frame in asked for name in self._missing(frame.sources)}
        at = {name: self._round(table, needed) for name, table in needed.items()}
        of_asked = [self._after(frame.sources, at) for _, frame in asked]
        for number in range(max(of_asked, default=0) + 1):
            # Names grow: a table is made after those that it is made of.
            mine = sorted((name for name, place in at.items() if place == number), key=lambda name: int(name[1:]))
            last = [each for each, place in zip(asked, of_asked, strict=True) if place == number]
            sources = {source for of in (*(needed[name].sources for name in mine), *(frame.sources for _, frame in last)) for source in of}
            before = sources.difference(name for name in mine if not needed[name].moves)
            steps = [*(cast("Step", needed[name].step) for name in mine), *(step for step, _ in last)]
            self._run(steps, [self._tables[name].given for name in sorted(before)])
            for name in mine:
                needed[name].is_there = True
        for step, _ in asked:
            if isinstance(step, Write):
                _finish(Path(step.folder), self.bins)

    def _run(self, steps: Sequence[Step], inputs: Sequence[Input]) -> None:
        self._tasks(Program(self._folder, self.bins, self._settings, inputs, steps))

    def _missing(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the tables among these, and behind them, that are still to be computed."""
        for name in names:
            table = self._tables[name]
            if not table.is_there:
                yield from self._missing(table.sources)
                yield name

    def _round(self, table: _Table, needed: Mapping[str, _Table]) -> int:
        return max((self._round(needed[name], needed) + needed[name].moves for name in table.sources if name in needed), default=0)

    def _after(self, sources: Iterable[str], at: Mapping[str, int]) -> int:
        return max((at[name] + self._tables[name].moves for name in sources if name in at), default=0)


def _finish(folder: Path, bins: int) -> None:
    """Say that a table is whole. Raises `ConfigurationError` if a file is not seen here that a task has written."""
    written = sum(1 for _ in folder.glob("part-*.parquet"))
    if written != bins:
        raise ConfigurationError(f"{written} of {bins} files are in {folder}, where each task wrote one; mount it on every machine")
    (folder / "_SUCCESS").touch()


def parquet_of(rows: SparkFrame) -> list[Path]:
    """Compute the rows of a session of `binned`, and return the Parquet files that have them: they are there while it is open."""
    frame = cast("BinnedFrame", rows)
    return cast("BinnedSession", frame.session).files_of(frame)


def _named(frame: BinnedFrame) -> str:
    """The query of a frame, whose columns have their names."""
    return f"SELECT * FROM ({frame.sql}) AS named({', '.join(map(identifier, frame.columns))})"
