"""`DataFrame`: a query of DuckDB, written as PySpark's frames are. It is computed when rows are asked for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ackwise.spark.local.column import Column, Ordered, Zipped, identifier, type_of

__all__ = ["DataFrame", "Database", "Row", "emptied", "write_parquet"]

_JOINS: Final = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "left_semi": "SEMI JOIN", "left_anti": "ANTI JOIN"}
#: Rows that are grouped at once where nearly every row is a group: some 60 bytes each.
_AT_ONCE: Final = 5_000_000
_ONE_SIDED: Final = ("left_semi", "left_anti")


class Database(Protocol):
    """What runs queries. Raises `duckdb.Error`."""

    def new_name(self) -> str:
        """Return a name that no table and no frame has."""
        ...

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    def arrow(self, sql: str) -> pa.Table:
        """Return the rows of a query as a table of Arrow."""
        ...

    def columns_of(self, sql: str) -> list[str]:
        """Return the columns of a query."""
        ...

    def batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query part by part; meanwhile only `insert` and `rows` may be called."""
        ...

    def rows(self, table: pa.Table) -> list[tuple[Any, ...]]:
        """Return the rows of a table of Arrow, as Python has them."""
        ...

    def insert(self, name: str, rows: pa.Table) -> None:
        """Add rows of Arrow to a table that is not a temporary one."""
        ...


class Row(tuple[Any, ...]):
    """Values of one row, by place or by name."""

    names: Sequence[str]

    @staticmethod
    def of(names: Sequence[str], values: Iterable[Any]) -> Row:
        """Return a row of these values, in which structs are rows, too."""
        row = Row(Row.of([*value], value.values()) if isinstance(value, dict) else value for value in values)
        row.names = names
        return row

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:
        if name == "names" or name not in self.names:
            raise AttributeError(name)
        return self[name]

    def asDict(self) -> dict[str, Any]:  # PySpark's name
        return dict(zip(self.names, self, strict=True))


class DataFrame:
    """A query and its columns."""

    def __init__(self, database: Database, sql: str, columns: Sequence[str], name: str = "", table: str = "") -> None:
        self._database = database
        self.sql = sql
        self.columns = list(columns)
        self._name = name or database.new_name()
        self._table = table

    def _made(self, sql: str, columns: Sequence[str], *others: DataFrame, name: str = "", table: str = "") -> DataFrame:
        """A query of this frame, and of `others`."""
        return DataFrame(self._database, sql, columns, name, table)

    # What changes the columns.

    def select(self, *columns: str | Column) -> DataFrame:
        return self._query(self._chosen(columns))

    def withColumn(self, name: str, column: Column) -> DataFrame:  # PySpark's name, as are those below
        return self.withColumns({name: column})

    def withColumns(self, columns: Mapping[str, Column]) -> DataFrame:
        kept = [columns[name].alias(name) if name in columns else name for name in self.columns]
        return self.select(*kept, *(column.alias(name) for name, column in columns.items() if name not in self.columns))

    def withColumnRenamed(self, old: str, new: str) -> DataFrame:
        return self.select(*(Column(identifier(name), new if name == old else name) for name in self.columns))

    def drop(self, *names: str) -> DataFrame:
        return self.select(*(name for name in self.columns if name not in names))

    def toDF(self, *names: str) -> DataFrame:
        return self._made(f"SELECT * FROM ({self.sql}) AS named({', '.join(map(identifier, names))})", names)

    def __getitem__(self, name: str) -> Column:
        return Column(f"{self._name}.{identifier(name)}", name)

    # What changes the rows.

    def where(self, condition: str | Column) -> DataFrame:
        text = condition.sql if isinstance(condition, Column) else condition
        return self._same(f"SELECT * FROM ({self.sql}) AS {self._name} WHERE {text}")

    def limit(self, number: int) -> DataFrame:
        return self._same(f"SELECT * FROM ({self.sql}) AS {self._name} LIMIT {number}")

    def distinct(self) -> DataFrame:
        return self._same(f"SELECT DISTINCT * FROM ({self.sql}) AS {self._name}")

    def orderBy(self, *columns: str | Column | Ordered) -> DataFrame:
        order = ", ".join(identifier(each) if isinstance(each, str) else each.sql for each in columns)
        return self._same(f"SELECT * FROM ({self.sql}) AS {self._name} ORDER BY {order}")

    def coalesce(self, number: int) -> DataFrame:
        """All rows are in one place as it is."""
        return self

    def repartition(self, column: str) -> DataFrame:
        """All rows are in one place as it is."""
        return self

    def for_all(self) -> DataFrame:
        """The same rows, which others may be joined with wherever those are."""
        return self

    def groupBy(self, *keys: str | Column) -> Grouped:
        return Grouped(self, [*self._chosen(keys)])

    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> DataFrame:
        names = [*self.columns, *(name for name in other.columns if name not in self.columns)]
        if not allowMissingColumns and len({*self.columns, *other.columns}) > min(len(self.columns), len(other.columns)):
            raise ValueError(f"the frames have different columns: {self.columns}, {other.columns}")
        both = [frame.select(*(name if name in frame.columns else Column("NULL", name) for name in names)).sql for frame in (self, other)]
        return self._made(f"({both[0]}) UNION ALL ({both[1]})", names, other)

    def join(self, other: DataFrame, on: Any = None, how: str = "inner") -> DataFrame:
        """Join by the columns that `on` names, which are there once then, or where all conditions in `on` hold."""
        given = list(on) if isinstance(on, list | tuple) else [on]
        shared = [each for each in given if isinstance(each, str)]
        left, right = self._name, other._name if other._name != self._name else self._database.new_name()
        where = f"USING ({', '.join(map(identifier, shared))})" if shared else "ON " + " AND ".join(each.sql for each in given)
        chosen = [Column(identifier(name), name) for name in shared]
        chosen += [Column(f"{left}.{identifier(name)}", name) for name in self.columns if name not in shared]
        if how not in _ONE_SIDED:
            chosen += [Column(f"{right}.{identifier(name)}", name) for name in other.columns if name not in shared]
        text = f"SELECT {', '.join(each.sql for each in chosen)} FROM ({self.sql}) AS {left} {_JOINS[how]} ({other.sql}) AS {right} {where}"
        return self._made(text, [each.name for each in chosen], other)

    # What computes.

    def collect(self) -> list[Row]:
        return [Row.of(self.columns, values) for values in self._database.run(self.sql)]

    def toLocalIterator(self) -> Iterator[Row]:
        for batch in self.batches():
            for values in self._database.rows(pa.Table.from_batches([batch])):
                yield Row.of(self.columns, values)

    def together(self, *frames: DataFrame) -> list[list[Row]]:
        """Return the rows of several frames, one after the other: what they have in common is not computed once in one query either."""
        return [frame.collect() for frame in frames]

    def isEmpty(self) -> bool:
        return not self.limit(1).collect()

    def count(self) -> int:
        return int(self._database.run(f"SELECT count(*) FROM ({self.sql})")[0][0])

    def persist(self) -> DataFrame:
        """Compute it now, and keep the rows until `unpersist`; what is kept already is not copied."""
        if self._table:
            return self
        table = self._database.new_name()
        self._database.run(f"CREATE TABLE {table} AS {self.toDF(*self.columns).sql}")
        return DataFrame(self._database, f"SELECT * FROM {table}", self.columns, table=table)

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str) -> DataFrame:
        """Give the rows to the function now, and keep what it makes of them until `unpersist`."""
        columns = [column.split() for column in schema.split(", ")]
        names, table = [name.strip("`") for name, _ in columns], self._database.new_name()
        self._database.run(
            f"CREATE TABLE {table} ({', '.join(f'{identifier(n)} {type_of(k)}' for n, (_, k) in zip(names, columns, strict=True))})"
        )
        for batch in function(self.batches()):
            self._database.insert(table, pa.Table.from_batches([batch]))
        return DataFrame(self._database, f"SELECT * FROM {table}", names, table=table)

    def repeated(self, *keys: str) -> DataFrame:
        """Return the values of columns that several rows have, kept until `unpersist`.

        They are found part by part: a group for each row need not fit into memory.
        """
        table, columns = self._database.new_name(), ", ".join(map(identifier, keys))
        parts = self.count() // _AT_ONCE + 1
        for part in range(parts):
            rows = f"SELECT {columns} FROM ({self.sql}) WHERE hash({columns}) % {parts} = {part} GROUP BY {columns} HAVING count(*) > 1"
            self._database.run(f"INSERT INTO {table} {rows}" if part else f"CREATE TABLE {table} AS {rows}")
        return DataFrame(self._database, f"SELECT * FROM {table}", keys, table=table)

    def unpersist(self) -> None:
        if self._table:
            self._database.run(f"DROP TABLE IF EXISTS {self._table}")

    @property
    def write(self) -> Writer:
        return Writer(self)

    def write_to(self, path: str) -> None:
        """Write the rows to a Parquet file in a folder, in place of what is there."""
        folder = emptied(path)
        write_parquet(self.limit(0).arrow().schema, self.batches(), folder)
        (folder / "_SUCCESS").touch()

    def arrow(self) -> pa.Table:
        """Return all rows."""
        return self._database.arrow(self.sql).rename_columns(self.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows part by part; columns may have other names."""
        return self._database.batches(self.sql)

    def _chosen(self, columns: Sequence[str | Column]) -> list[Column]:
        chosen = list[Column]()
        for each in columns:
            if isinstance(each, Column):
                chosen.append(each)
            elif each == "*":
                chosen.extend(Column(identifier(name), name) for name in self.columns)
            else:
                chosen.append(Column(identifier(each), each.rpartition(".")[2]))
        return chosen

    def _query(self, chosen: Sequence[Column], more: str = "") -> DataFrame:
        names, texts = list[str](), list[str]()
        for column in (part for each in chosen for part in (each.columns if isinstance(each, Zipped) else [each])):
            if "recursive := true" in column.sql:  # its fields become columns
                texts.append(column.sql)
                names.extend(self._database.columns_of(f"SELECT {column.sql} FROM ({self.sql}) AS {self._name}"))
            else:
                names.append(column.name or f"column{len(names)}")
                texts.append(f"{column.sql} AS {identifier(names[-1])}")
        return self._made(f"SELECT {', '.join(texts)} FROM ({self.sql}) AS {self._name}{more}", names)

    def _same(self, sql: str) -> DataFrame:
        """A query of the same columns, which may be named by this frame."""
        return self._made(sql, self.columns, name=self._name)


class Grouped:
    """A frame by keys, to be aggregated."""

    def __init__(self, frame: DataFrame, keys: Sequence[Column]) -> None:
        self._frame = frame
        self._keys = keys

    def agg(self, *columns: Column) -> DataFrame:
        places = ", ".join(str(number + 1) for number in range(len(self._keys)))
        return self._frame._query([*self._keys, *columns], f" GROUP BY {places}" if places else "")

    def count(self) -> DataFrame:
        return self.agg(Column("count(*)", "count"))


class Writer:
    """Writes a frame to a folder, as Spark does: a file that is whole, or none."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def mode(self, mode: str) -> Writer:
        assert mode == "overwrite"
        return self

    def parquet(self, path: str) -> None:
        self._frame.write_to(path)


def emptied(path: str) -> Path:
    """Return the folder, without files of an earlier run."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.iterdir():
        earlier.unlink()
    return folder


def write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], folder: Path, number: int = 0) -> None:
    """Write one of the files of a table part by part; it is there whole, or not at all, even where two tasks write the same.

    Columns are taken by their places.
    """
    name = f"part-{number:05d}.parquet"
    unfinished = folder / f".{name}.{secrets.token_hex(4)}"
    in_utc = pa.schema([field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field for field in schema])
    with pq.ParquetWriter(unfinished, in_utc, compression="snappy") as file:
        for batch in batches:
            file.write_table(pa.Table.from_batches([batch]).rename_columns(schema.names).cast(in_utc))
    unfinished.replace(folder / name)
