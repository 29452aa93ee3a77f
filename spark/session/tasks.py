"""Tasks of Spark that run our programs: Spark starts them, on any executor, and repeats one that failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from ackwise.spark.bins.program import Program
from ackwise.spark.bins.session import Tasks

__all__ = ["on"]


def on(spark: SparkSession) -> Tasks:
    """Return what runs a program in a task for each bin. It raises what Spark raises."""

    def run(program: Program) -> None:
        bins = spark.range(0, program.bins, 1, program.bins)
        bins.mapInArrow(partial(_run, program), "id bigint").collect()

    return run


def _run(program: Program, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch["id"].to_pylist():
            program.run(number)
        yield batch
