"""The fold stays in one hash aggregate, whatever is added to it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import pytest

from ackwise.middleware.events import EventCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def plan(frame: DataFrame) -> str:
    """The physical plan, before it is adapted while it runs."""
    text = io.StringIO()
    with redirect_stdout(text):
        frame.explain()
    return text.getvalue()


def test_the_fold_has_one_exchange_and_only_hash_aggregates(spark: SparkSession) -> None:
    from ackwise.spark.events.schema import EVENT_SCHEMA, project
    from ackwise.spark.fold.messages import fold

    found = plan(fold(project(spark.createDataFrame([], EVENT_SCHEMA)), {1, 2}))
    assert found.count("Exchange hashpartitioning") == 1
    assert found.count("HashAggregate") == 2
    for slow in ("SortAggregate", "ObjectHashAggregate", "EvalPython"):
        assert slow not in found


def test_merging_has_one_exchange_and_only_hash_aggregates(spark: SparkSession) -> None:
    from ackwise.spark.events.schema import EVENT_SCHEMA, project
    from ackwise.spark.fold.messages import fold_by_writer, merge

    apart = fold_by_writer(project(spark.createDataFrame([], EVENT_SCHEMA))).localCheckpoint()
    found = plan(merge(apart, {1, 2}))
    assert found.count("Exchange hashpartitioning") == 1
    for slow in ("SortAggregate", "ObjectHashAggregate", "EvalPython"):
        assert slow not in found


def test_offsets_without_events_are_found_without_sorting_a_partition(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from ackwise.spark.events.bitmap import count, fold_words, points
    from ackwise.spark.events.schema import EVENT_SCHEMA, project

    events = project(spark.createDataFrame([], EVENT_SCHEMA))
    found = plan(count(fold_words([points(events, "pk", "offset", "seen")], ["seen"]), {"seen": F.col("seen")}))
    assert found.count("Exchange hashpartitioning") == 2
    for slow in ("Sort ", "Window", "SortAggregate", "ObjectHashAggregate", "EvalPython"):
        assert slow not in found


def test_a_hundred_thousand_events_of_one_message_are_one_row(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from ackwise.spark.events.schema import EVENT_TYPES, project
    from ackwise.spark.fold.messages import fold

    given = {
        "schema_version": 1, "writer_id": 1, "event_type": int(EventCode.RECEIVED), "event_ts": F.timestamp_seconds(F.lit(1)),
        "topic": "orders", "partition": 0, "offset": 7, "attempt": 1,
    }  # fmt: skip
    columns = [
        F.col("id").alias("seq") if name == "seq" else F.lit(given.get(name)).cast(kind).alias(name) for name, kind in EVENT_TYPES.items()
    ]
    rows = fold(project(spark.range(100_000).select(*columns)), set()).collect()
    assert [(row["offset"], row["bits"]) for row in rows] == [(7, 1 << EventCode.RECEIVED)]
