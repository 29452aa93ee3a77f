"""The fold stays in one hash aggregate, whatever is added to it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.histories import no_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def plan(frame: DataFrame) -> str:
    """The physical plan, before it is adapted while it runs."""
    text = io.StringIO()
    with redirect_stdout(text):
        frame.explain()
    return text.getvalue()


def test_whatever_is_folded_stays_in_hash_aggregates_and_is_dealt_out_as_seldom_as_can_be(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from ackwise.spark.events.bitmap import count, fold_words, points
    from ackwise.spark.events.schema import project
    from ackwise.spark.fold.messages import fold
    from ackwise.spark.report.timeline import Buckets
    from ackwise.spark.results.measures import bins, writing

    events = project(no_events(spark, tmp_path))
    words = fold_words([points(events, "pk", "offset", "seen")], ["seen"])
    for name, frame, exchanges in (
        ("fold", fold(events, {1, 2}), 1),
        ("offsets", count(words, {"seen": F.col("seen")}), 2),
        ("writing", writing(events, None, Buckets(0, 1, 60), bins(spark, [])), 2),
    ):
        found = plan(frame)
        assert found.count("Exchange hashpartitioning") == exchanges, name
        for slow in ("SortAggregate", "ObjectHashAggregate", "EvalPython", "SortMergeJoin"):
            assert slow not in found, (name, slow)
        if name == "offsets":
            assert "Sort " not in found
            assert "Window" not in found
