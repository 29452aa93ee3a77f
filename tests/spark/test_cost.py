"""What a run asks of Spark: jobs, and how often it reads all events. Neither depends on how fast the machine is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.histories import History
from tests.spark.reconciling import AS_OF, reconciled, root_of, summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

MESSAGES = 300
EVENTS_OF_EACH = 7
_READ = "internal.metrics.input.recordsRead"


@dataclass
class Asked:
    """What was asked of Spark in a block."""

    jobs: int = 0
    reads: list[int] = field(default_factory=list)
    """Rows that each stage read from files or from what is cached."""


@contextmanager
def counted(spark: SparkSession, folder: Path) -> Iterator[Asked]:
    """Count by a log of Spark's own: what it keeps in memory is little."""
    java: Any = spark.sparkContext._jsc
    context = java.sc()
    jvm: Any = spark._jvm
    conf = context.getConf().set("spark.eventLog.compress", "false").set("spark.eventLog.rolling.enabled", "false")
    nobody = jvm.scala.Option.apply(None)
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "cost", nobody, jvm.java.net.URI(folder.as_uri()), conf, context.hadoopConfiguration()
    )
    context.listenerBus().waitUntilEmpty()
    log.start()
    context.addSparkListener(log)
    asked = Asked()
    try:
        yield asked
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(log)
        log.stop()
    for event in map(json.loads, (folder / "cost").read_text().splitlines()):
        asked.jobs += event["Event"] == "SparkListenerJobStart"
        if event["Event"] == "SparkListenerStageCompleted":
            asked.reads += [int(each["Value"]) for each in event["Stage Info"]["Accumulables"] if each["Name"] == _READ]


def of_a_day(history: History) -> History:
    """Most of it by one worker, so that a pass over the files of others is no pass over all."""
    return history.say("w1", " ".join(f"{offset}:RCICICS" for offset in range(MESSAGES)) + f" W={MESSAGES}", ago=400)


def full_passes(asked: Asked) -> int:
    return sum(rows >= MESSAGES * EVENTS_OF_EACH for rows in asked.reads)


def test_a_clean_run_reads_all_events_three_times(spark: SparkSession, tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", of_a_day(History("g")))
    with counted(spark, tmp_path) as asked:
        result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF, "--engine", "spark")
    assert result.exit_code == 0, result.output
    assert full_passes(asked) == 3
    assert asked.jobs <= 30


def test_a_run_with_a_dead_worker_and_stuck_messages_reads_them_six_times(spark: SparkSession, tmp_path: Path) -> None:
    history = of_a_day(History("g").say("w2", f"RECEIVED_RANGE[{MESSAGES},{MESSAGES + 4}) {MESSAGES}:RC W={MESSAGES + 4}", ago=9000))
    root = root_of(tmp_path / "root", history)
    with counted(spark, tmp_path) as asked:
        result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF, "--engine", "spark")
    assert result.exit_code == 1, result.output
    assert {"STUCK", "LOST"} <= set(summary(tmp_path / "out")["verdicts"])
    assert full_passes(asked) == 6, "the sixth asks what others told of the dead worker's runs"
    assert asked.jobs <= 42
