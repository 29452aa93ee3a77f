"""The fold says the same of events in any order, however often, and however they are dealt out."""

from __future__ import annotations

import random
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.fuzz import universe
from tests.spark.histories import write_parquet

from ackwise.middleware.disposition import OUR_REASONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_each_of_our_reasons_has_a_number_which_is_its_place_in_the_list_that_a_state_notes() -> None:
    from ackwise.spark.fold.messages import REASONS

    assert set(REASONS) == OUR_REASONS
    assert [*REASONS.values()] == [*range(1, len(OUR_REASONS) + 1)]


def test_parts_that_were_folded_apart_in_any_order_and_some_twice_say_what_the_whole_says(spark: SparkSession, tmp_path: Path) -> None:
    from ackwise.spark.events.schema import EVENT_SCHEMA, project
    from ackwise.spark.fold.messages import fold, fold_by_writer, merge

    events = [event for number in range(400) for event in universe(number).events]
    live = {event["writer_id"] for event in events if event["writer_id"] % 3 == 0}
    mute = {event["writer_id"] for event in events} - live
    whole = write_parquet(tmp_path / "whole.parquet", events)
    random.Random(5).shuffle(events)
    parts = [write_parquet(tmp_path / f"{n}.parquet", events[n::4] + events[n : 200 + n]) for n in range(4)]

    def read(path: Path) -> DataFrame:
        return project(spark.read.schema(EVENT_SCHEMA).parquet(str(path)))

    apart = reduce(lambda one, other: one.unionByName(other), [fold_by_writer(read(path)) for path in [*parts, parts[0]]])
    merged, folded = merge(apart, live, mute), fold(read(whole), live, mute)
    assert merged.columns == folded.columns
    both = merged.withColumn("side", merged["mk"] * 0 + 1).unionByName(folded.withColumn("side", folded["mk"] * 0 + 2))
    sides = both.groupBy(*folded.columns).agg({"side": "sum"}).groupBy("sum(side)").count().collect()
    assert [(row["sum(side)"], row["count"] > 3000) for row in sides] == [(3, True)]
