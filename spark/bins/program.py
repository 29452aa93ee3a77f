"""What a task does for its bin of the rows: queries of DuckDB, from files of Arrow to files of Arrow.

    FOLDER/{table}/{bin}.arrow          rows that stay in their bin
    FOLDER/{table}/from-{bin}.arrow     rows that go to other bins, a part for each

A task that is repeated writes the same files again: each is there whole, or not at all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.local.column import identifier
from ackwise.spark.local.frame import DataFrame, write_parquet
from ackwise.spark.local.session import LocalSession, connected, read_files

__all__ = [
    "BIN",
    "Constant",
    "Files",
    "Input",
    "Kept",
    "Moved",
    "Keep",
    "Map",
    "Move",
    "Program",
    "Show",
    "Step",
    "Write",
    "parts",
    "shown",
]

#: The variable of a query that has the number of the task's bin.
BIN: Final = "getvariable('bin')"

_TO: Final = "_to_bin"
_COMPRESSED: Final = ipc.IpcWriteOptions(compression="lz4")


class Input(Protocol):
    """Rows that a program starts with, as a table of this name."""

    @property
    def name(self) -> str: ...

    def rows(self, program: Program, number: int) -> Any:
        """Return the rows of a bin: a table of Arrow, or files."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Rows that every task has."""

    name: str
    table: pa.Table

    def rows(self, program: Program, number: int) -> pa.Table:
        return self.table


@dataclass(frozen=True, slots=True)
class Files:
    """Parquet files, of which each bin has some."""

    name: str
    paths: Sequence[Sequence[str]]
    schema: pa.Schema
    are_events: bool

    def rows(self, program: Program, number: int) -> Any:
        mine = self.paths[number]
        if not mine:
            return self.schema.empty_table()
        rows = read_files(mine, are_events=self.are_events)
        return rows.to_table() if self.are_events else rows  # in memory, since several queries ask for them


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier program kept in the same bin."""

    name: str

    def rows(self, program: Program, number: int) -> pa.Table:
        return _read(program.path(self.name, f"{number}"))


@dataclass(frozen=True, slots=True)
class Moved:
    """What earlier programs sent to the bin."""

    name: str
    schema: pa.Schema

    def rows(self, program: Program, number: int) -> pa.Table:
        return pa.Table.from_batches(list(_sent(program, self.name, number)), self.schema)


class Step(Protocol):
    """A query, and what becomes of its rows."""

    @property
    def name(self) -> str: ...

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        """Run it for a bin."""
        ...


@dataclass(frozen=True, slots=True)
class Keep:
    """Rows that later steps and programs use in the same bin."""

    name: str
    sql: str

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        session.run(f"CREATE TEMP TABLE {self.name} AS {self.sql}")
        _write(program.path(self.name, f"{number}"), session.arrow(f"SELECT * FROM {self.name}"))


@dataclass(frozen=True, slots=True)
class Map:
    """The rows that a function makes of others, kept."""

    name: str
    sql: str
    columns: Sequence[str]
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: str

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        made = DataFrame(session, self.sql, self.columns).mapInArrow(self.function, self.schema)
        session.run(f"CREATE TEMP VIEW {self.name} AS {made.sql}")
        _write(program.path(self.name, f"{number}"), session.arrow(made.sql))


@dataclass(frozen=True, slots=True)
class Move:
    """Rows that go to the bin that `to` says, an expression; None: to all."""

    name: str
    sql: str
    to: str | None

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        if self.to is None:
            _send(program, self.name, number, [session.arrow(self.sql)])
            return
        rows = session.arrow(f"SELECT *, {self.to} AS {identifier(_TO)} FROM ({self.sql})")
        if rows[_TO].null_count:
            raise ValueError(f"{rows[_TO].null_count} rows of {self.name} would go to no bin")
        places = rows[_TO].to_numpy()
        in_order = rows.drop_columns([_TO]).take(np.argsort(places, kind="stable"))
        ends = np.searchsorted(np.sort(places), np.arange(program.bins + 1))
        _send(program, self.name, number, [in_order.slice(first, end - first) for first, end in pairwise(ends)])


@dataclass(frozen=True, slots=True)
class Show:
    """Rows for the driver."""

    name: str
    sql: str

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        _write(program.path(self.name, f"{number}"), session.arrow(self.sql))


@dataclass(frozen=True, slots=True)
class Write:
    """A table of the results: a Parquet file of each bin."""

    name: str
    sql: str
    columns: Sequence[str]
    folder: str

    def run(self, program: Program, session: LocalSession, number: int) -> None:
        rows = session.arrow(self.sql).rename_columns(list(self.columns))
        write_parquet(rows.schema, rows.to_batches(), Path(self.folder), number)


@dataclass(frozen=True, slots=True)
class Program:
    """What each task does for its bin."""

    folder: Path
    bins: int
    settings: Mapping[str, str]
    """Of DuckDB."""
    inputs: Sequence[Input] = ()
    steps: Sequence[Step] = ()
    duckdb_version: str = duckdb.__version__
    """The version that all tasks must have: another may number partitions and deal out keys otherwise."""

    def run(self, number: int) -> None:
        """Do it for the bin of this number. Raises `duckdb.Error`, `OSError`, and `ConfigurationError` for another DuckDB."""
        if duckdb.__version__ != self.duckdb_version:
            raise ConfigurationError(
                f"DuckDB is {duckdb.__version__} where a task runs, and {self.duckdb_version} on the driver; install one version"
            )
        # A task may run twice at once, and one that is killed leaves its files until the run ends.
        with (
            TemporaryDirectory(prefix=f"spilled-{number}-", dir=self.folder, ignore_cleanup_errors=True) as spilled,
            connected({**self.settings, "temp_directory": spilled}) as session,
        ):
            session.run(f"SET VARIABLE bin = {number}")
            for given in self.inputs:
                session.register(given.name, given.rows(self, number))
            for step in self.steps:
                step.run(self, session, number)

    def path(self, table: str, name: str) -> Path:
        """Return the file of a table."""
        return self.folder / table / f"{name}.arrow"


def shown(folder: Path, name: str, bins: int) -> list[pa.Table]:
    """Return the rows of a `Show`, or of what was kept, bin by bin."""
    return [_read(folder / name / f"{number}.arrow") for number in range(bins)]


def parts(paths: Sequence[str], bins: int) -> list[list[str]]:
    """Deal files out to bins, so that each has about as many bytes."""
    found: list[list[str]] = [[] for _ in range(bins)]
    sizes = [0] * bins
    for size, path in sorted(((os.path.getsize(path), path) for path in paths), reverse=True):
        least = sizes.index(min(sizes))
        found[least].append(path)
        sizes[least] += size
    return found


def _send(program: Program, name: str, number: int, for_bins: Sequence[pa.Table]) -> None:
    """Write the rows for each bin, or those for all, to one file."""
    batches = [[*rows.combine_chunks().to_batches()] for rows in for_bins]
    ends = np.cumsum([len(each) for each in batches])
    schema = for_bins[0].schema.with_metadata({b"ends": ",".join(map(str, ends)).encode()})
    _write_batches(program.path(name, f"from-{number}"), schema, (batch for each in batches for batch in each))


def _sent(program: Program, name: str, number: int) -> Iterator[pa.RecordBatch]:
    for sender in range(program.bins):  # a file that can't be seen is an error, and not a bin that sent nothing
        with pa.memory_map(str(program.path(name, f"from-{sender}"))) as file:
            reader = ipc.open_file(file)
            ends = [0, *map(int, reader.schema.metadata[b"ends"].split(b","))]
            place = number if len(ends) > 2 else 0
            for each in range(ends[place], ends[place + 1]):
                yield reader.get_batch(each).replace_schema_metadata(None)


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return ipc.open_file(file).read_all()


def _write(path: Path, rows: pa.Table) -> None:
    _write_batches(path, rows.schema, rows.to_batches())


def _write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    path.parent.mkdir(exist_ok=True)  # in a folder that is there until the run ends
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with pa.OSFile(str(unfinished), "wb") as file, ipc.new_file(file, schema, options=_COMPRESSED) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    unfinished.replace(path)
