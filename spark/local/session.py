"""`LocalSession`: where frames of the local engine come from, and what runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.frames import SparkSession, computed_by
from ackwise.spark.local.frame import DataFrame
from ackwise.stores.journal.parquet import SCHEMA

__all__ = [
    "EVENTS",
    "FUNCTIONS",
    "LocalSession",
    "Reader",
    "connected",
    "files_of",
    "local_engine",
    "memory_for_rows",
    "read_files",
    "without_zones",
]

#: Nulls come first in an order, as in Spark. The files are read by Arrow: DuckDB itself touches no file but its own, and no network.
_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "default_null_order": "nulls_first",
    "enable_external_access": "false",
    "temp_directory": "",
}
#: Bytes that DuckDB takes at most, and which share of the memory that there is; what Arrow and Python hold comes to it.
_MOST: Final = 2**30
_SHARE: Final = 2
#: Rows that are taken out at once.
_PART: Final = 20_000
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


#: The columns of events; a flipped bit in a page is an error.
_CHECKED: Final = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True))


#: Of the engine, as `computed_by` takes them.
FUNCTIONS: Final = ("ackwise.spark.local.functions", "ackwise.spark.local.window")


@contextmanager
def local_engine(scratch: Path | None = None) -> Iterator[SparkSession]:
    """A session of the local engine, which stands for PySpark's; while it is open, `frames.F` are its functions.

    What it keeps is in files in a folder of its own within `scratch`, so its memory is bounded; without one, all must fit into memory.
    Raises `OSError` if the folder can't be made.
    """
    with ExitStack() as stack:
        given: tuple[Any, ...] = ()
        if scratch is not None:
            folder = stack.enter_context(TemporaryDirectory(prefix="rows-", dir=scratch, ignore_cleanup_errors=True))
            given = {"memory_limit": f"{memory_for_rows() // 2**20}MiB", "temp_directory": folder}, f"{folder}/rows.duckdb"
        session = stack.enter_context(connected(*given))
        stack.enter_context(computed_by(*FUNCTIONS))
        yield cast("SparkSession", session)


@contextmanager
def connected(settings: Mapping[str, Any] = MappingProxyType({}), database: str = ":memory:") -> Iterator[LocalSession]:
    """A session with a database of its own, in memory or in a file, which has these settings of DuckDB beside ours."""
    connection = duckdb.connect(database, config={**_SETTINGS, **settings})
    try:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        yield LocalSession(connection)
    finally:
        connection.close()


def memory_for_rows() -> int:
    """Return the bytes of memory that rows may take, before they go to files."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or "max"
        there = min(there, int(_CGROUP.read_text()))
    return min(_MOST, there // _SHARE)


class LocalSession:
    """The part of PySpark's session that the job uses."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._numbers = count(1)

    def new_name(self) -> str:
        """Return a name that no table and no frame has."""
        return f"f{next(self._numbers)}"

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises `duckdb.Error`."""
        return self._connection.execute(sql).fetchall()

    def arrow(self, sql: str) -> pa.Table:
        """Return the rows of a query. Raises `duckdb.Error`."""
        return self._connection.sql(sql).to_arrow_table()

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query part by part; meanwhile only `insert` and `rows` may be called. Raises `duckdb.Error`."""
        yield from self._connection.sql(sql).to_arrow_reader(_PART)

    def insert(self, name: str, rows: pa.Table) -> None:
        """Add rows of Arrow to a table that is not a temporary one."""
        with self._connection.cursor() as beside:
            beside.register("given", rows)
            beside.execute(f"INSERT INTO {name} SELECT * FROM given")

    def rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Return the rows of a table of Arrow, as Python has them."""
        with self._connection.cursor() as beside:
            return beside.from_arrow(table).fetchall()

    def columns_of(self, sql: str) -> list[str]:
        """Return the columns of a query."""
        return [name for name, *_ in self.run(f"DESCRIBE {sql}")]

    def createDataFrame(self, rows: pa.Table, schema: str = "") -> DataFrame:  # PySpark's name
        """Return the rows of a table of Arrow, whose types need no schema."""
        return self.table(without_zones(rows))

    def table(self, table: pa.Table | ds.Dataset) -> DataFrame:
        """Return the rows of a table of Arrow, or of files, which are read anew for each query."""
        self.register(name := self.new_name(), table)
        return DataFrame(self, f"SELECT * FROM {name}", table.schema.names)

    def files(self, paths: Sequence[str], *, are_events: bool) -> DataFrame:
        """Return the rows of Parquet files, or of those in folders."""
        return self.table(read_files(files_of(paths), are_events=are_events))

    def register(self, name: str, table: pa.Table | ds.Dataset) -> None:
        """Give the rows of Arrow, or of files, a name for queries."""
        self._connection.register(name, table)

    @property
    def read(self) -> Reader:
        return Reader(self)


class FileSession(Protocol):
    """What makes frames of files."""

    def createDataFrame(self, rows: pa.Table) -> DataFrame:
        """Return the rows of a table of Arrow."""
        ...

    def files(self, paths: Sequence[str], *, are_events: bool) -> DataFrame:
        """Return the rows of Parquet files, or of those in folders."""
        ...


class Reader:
    """Reads files, as PySpark's reader does."""

    def __init__(self, session: FileSession, *, are_events: bool = False) -> None:
        self._session = session
        self._are_events = are_events

    def option(self, name: str, value: str) -> Reader:
        return self

    def schema(self, schema: str) -> Reader:
        """Other tables than those of events were written here, so their columns are known."""
        names: list[str] = SCHEMA.names
        return Reader(self._session, are_events=[column.split()[0] for column in schema.split(", ")] == names)

    def parquet(self, *paths: str) -> DataFrame:
        return self._session.files(paths, are_events=self._are_events)

    def json(self, paths: Sequence[str]) -> DataFrame:
        """Return the objects in the lines of these files. Raises `ConfigurationError` if there is anything else."""
        return self._session.createDataFrame(_objects(paths))


def files_of(paths: Iterable[str]) -> list[str]:
    """Return the Parquet files at these paths, or in these folders."""
    return [str(file) for path in paths for file in ([*sorted(Path(path).glob("*.parquet"))] if Path(path).is_dir() else [path])]


def read_files(paths: Sequence[str], *, are_events: bool) -> pa.Table | ds.Dataset:
    """Return the rows of Parquet files; those of events are read when they are asked for."""
    if are_events:
        return ds.dataset([*paths], schema=EVENTS, format=_CHECKED)
    return without_zones(pa.concat_tables([pq.read_table(file) for file in paths]))


def _objects(paths: Sequence[str]) -> pa.Table:
    """Return the objects in the lines of these files as rows of texts. Raises `ConfigurationError` if there is anything else."""
    rows = [row for path in paths for row in _objects_in(path)]
    names = {name: None for row in rows for name in row}
    return pa.table({name: pa.array([_as_text(name, row.get(name)) for row in rows], pa.string()) for name in names})


def _objects_in(path: str) -> list[dict[str, Any]]:
    found: list[Any] = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            value = json.loads(line or b"[]")
        except ValueError as error:
            raise ConfigurationError(f"line {number} of {path} is no JSON ({error}); write one object in each line") from None
        found += value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise ConfigurationError(f"{path} has lines that are no JSON objects; write one object in each line")
    return found


def _as_text(name: str, value: Any) -> str | None:
    """The value as a text from which it is cast; a number as a time is seconds since 1970, as in Spark."""
    if name == "timestamp" and isinstance(value, int | float):
        return (datetime(1970, 1, 1) + timedelta(seconds=value)).isoformat(" ")  # noqa: DTZ001  # every time is in UTC
    return value if value is None or isinstance(value, str) else json.dumps(value)


def without_zones(table: pa.Table) -> pa.Table:
    """Every time is in UTC; without a zone DuckDB needs no extension for it."""
    plain = [field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in table.schema]
    return table.cast(pa.schema(plain))


#: Without zones, as `without_zones`.
EVENTS: Final = pa.schema([field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in SCHEMA])
