"""Rows that go from the driver to the engine, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

from ackwise.spark.frames import DataFrame, Row, SparkSession

__all__ = ["at_once", "repeated", "rows_of", "through"]

#: The types of columns of kernels, as Arrow and as Spark write them.
_SPARK_TYPES: Final = {"int64": "bigint"}


def rows_of(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """Return `rows` in `schema`, such as `pk long, name string`.

    They go to it as an Arrow table, whose types need no look at the rows.
    """
    import pyarrow as pa

    types = {
        **dict.fromkeys(("long", "bigint"), pa.int64()),
        "int": pa.int32(),
        "smallint": pa.int16(),
        "tinyint": pa.int8(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<long>": pa.list_(pa.int64()),
    }
    fields = [column.split() for column in schema.split(",")]
    values = list(rows)
    columns = [pa.array([row[place] for row in values], types[kind]) for place, (_, kind) in enumerate(fields)]
    return spark.createDataFrame(pa.table(columns, names=[name for name, _ in fields]), schema)  # Spark Connect infers none from no rows


def through(frame: DataFrame, kernel: Callable[[Any], Iterable[Any]], schema: Any, *, whole: bool = False) -> DataFrame:
    """Return the rows that a kernel makes of a frame, part by part: a function from a table of Arrow to tables with this schema.

    On Spark a Python worker of each task calls it, with rows of its own; `whole`: with all of them at once.
    """
    return frame.mapInArrow(
        partial(_all_at_once if whole else _part_by_part, kernel),
        ", ".join(f"`{field.name}` {_SPARK_TYPES[str(field.type)]}" for field in schema),
    )


def _part_by_part(kernel: Callable[[Any], Iterable[Any]], batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        for found in kernel(pa.Table.from_batches([batch])):
            yield from found.to_batches()


def _all_at_once(kernel: Callable[[Any], Iterable[Any]], batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    if every := list(batches):
        for found in kernel(pa.Table.from_batches(every)):
            yield from found.to_batches()


def repeated(frame: DataFrame, *keys: str) -> DataFrame:
    """Return the values of columns that several rows have, kept until `unpersist`."""
    found: DataFrame = cast("Any", frame).repeated(*keys)
    return found


def at_once(*frames: DataFrame) -> list[list[Row]]:
    """Return the rows of several frames, in no order; tasks compute them together."""
    found: list[list[Row]] = cast("Any", frames[0]).together(*frames)
    return found
