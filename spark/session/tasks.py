"""Bins as tasks of Spark: it starts them, on any executor, and repeats one that failed. What they send each other are files."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ackwise.spark.bins.program import Program
from ackwise.spark.bins.session import binned, parquet_of

__all__ = ["in_tasks", "rows_in_spark"]

#: Bytes of Parquet to a bin: a task has some 500 MB of memory with them.
_BIN: Final = 8 * 2**20
_FEWEST: Final = 2
#: Of DuckDB in a task, which has one core.
_SETTINGS: Final = {"threads": "1", "memory_limit": "1GiB"}


@contextmanager
def in_tasks(spark: SparkSession, size: int, folder: Path) -> Iterator[SparkSession]:
    """A session that computes in tasks of `spark`, for `size` bytes of event files; `folder` is one that executors reach.

    It stands for PySpark's, as that of `binned`.
    """

    def run(program: Program) -> None:
        numbers = spark.range(0, program.bins, 1, program.bins)
        numbers.mapInArrow(partial(_run, program), "id bigint").collect()

    with binned(run, max(_FEWEST, size // _BIN), folder / f"bins-{secrets.token_hex(4)}", _SETTINGS) as session:
        yield session


def rows_in_spark(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Compute the rows of a session of `in_tasks`, and return them as a frame of `spark`, which its executors keep."""
    files = parquet_of(rows)
    schema = pa.schema([_in_utc(field) for field in pq.read_schema(files[0])])
    bins = spark.range(0, len(files), 1, len(files))
    return bins.mapInArrow(partial(_load, [str(file) for file in files]), from_arrow_schema(schema)).localCheckpoint()


def _run(program: Program, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch["id"].to_pylist():
            program.run(number)
        yield batch


def _load(files: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch["id"].to_pylist():
            rows = pq.read_table(files[number])
            yield from rows.cast(pa.schema([_in_utc(field) for field in rows.schema])).to_batches()


def _in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
