"""Some messages are judged twice, and a job that says something else of one of them fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.commands.test_reconcile import AS_OF, reconciled, root_of
from tests.spark.histories import History, write_parquet

from ackwise.spark.vocabulary import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_message_of_the_cases_is_judged_alike(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.running import evidence_of

    from ackwise.spark.events.schema import EVENT_SCHEMA
    from ackwise.spark.judging import weigh
    from ackwise.spark.sample import Sampled, check_sample

    path = write_parquet(tmp_path / "events.parquet", [event for case in CASES.values() for event in case.history.events])
    events = spark.read.schema(EVENT_SCHEMA).parquet(str(path))
    config = replace(CONFIG, verify_sample=10_000)
    found = weigh(spark, evidence_of(path), config)
    try:
        checked = check_sample(
            spark, Sampled(found.facts, found.commits, found.blind, found.taken, found.judged, found.settled, events), config
        )
        assert checked == found.settled.count() > 100
    finally:
        found.release()


@pytest.mark.usefixtures("spark")
def test_a_job_that_says_something_else_concludes_nothing_and_names_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F

    from ackwise.spark import judging
    from ackwise.spark.judge import verdicts
    from ackwise.spark.sample import Disagreement

    def wrong(*frames: DataFrame | int | None) -> DataFrame:
        lost: Column = F.when(F.col("offset") == 3, F.lit(int(Verdict.DEAD_LETTERED))).otherwise(F.col("verdict"))
        return verdicts.judge(*frames).withColumn("verdict", lost)  # type: ignore[arg-type]  # passed on as it came

    root = root_of(tmp_path / "root", History("g").say("w1", "RECEIVED_RANGE[0,6) 0:CS 1:CS 2:CFB 3:CS 4:D 5:K 2@2:CS W=6"))
    monkeypatch.setattr(judging, "judge", wrong)
    result = reconciled(root, "--as-of", AS_OF, "--verify-sample", "20", "--out", tmp_path / "out")
    assert isinstance(result.exception, Disagreement)
    assert str(result.exception).startswith(
        "orders/0/3 of group g, agent bill: the job says DEAD_LETTERED, and the plain algebra EXACTLY_ONCE, as for 1 of 6 messages"
    )
    assert not (tmp_path / "out" / "summary.json").exists()
