"""What a run asks of Spark: jobs, and how often it reads all events. Neither depends on how fast the machine is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.commands.test_reconcile import AS_OF, reconciled, root_of, summary
from tests.spark.histories import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MESSAGES = 300
EVENTS_OF_EACH = 7


class Asked:
    """What was asked of Spark in a block."""

    jobs = 0
    reads: list[int]
    """Rows that each stage read from files or from what is cached."""


@contextmanager
def counted(spark: SparkSession) -> Iterator[Asked]:
    context: Any = spark.sparkContext._jsc
    gateway: Any = spark.sparkContext._gateway
    jvm: Any = spark._jvm
    store = context.sc().statusStore()
    nothing = gateway.new_array(jvm.double, 0)

    def stages() -> dict[int, int]:
        every = store.stageList(None, False, False, nothing, jvm.java.util.ArrayList())
        return {(stage := every.apply(place)).stageId(): stage.inputRecords() for place in range(every.size())}

    def settled() -> set[int]:
        context.sc().listenerBus().waitUntilEmpty()
        every = store.jobsList(None)
        return {every.apply(place).jobId() for place in range(every.size())}

    jobs, known, asked = settled(), set(stages()), Asked()
    yield asked
    asked.jobs = len(settled() - jobs)
    asked.reads = [rows for stage, rows in stages().items() if stage not in known]


def of_a_day(history: History) -> History:
    """Most of it by one worker, so that a pass over the files of others is no pass over all."""
    return history.say("w1", " ".join(f"{offset}:RCICICS" for offset in range(MESSAGES)) + f" W={MESSAGES}", ago=400)


def full_passes(asked: Asked) -> int:
    return sum(rows >= MESSAGES * EVENTS_OF_EACH for rows in asked.reads)


def test_a_clean_run_reads_all_events_three_times(spark: SparkSession, tmp_path: Path) -> None:
    root = root_of(tmp_path / "root", of_a_day(History("g")))
    with counted(spark) as asked:
        result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 0, result.output
    assert full_passes(asked) == 3
    assert asked.jobs <= 30


def test_a_run_with_a_dead_worker_and_stuck_messages_reads_them_five_times(spark: SparkSession, tmp_path: Path) -> None:
    history = of_a_day(History("g").say("w2", f"RECEIVED_RANGE[{MESSAGES},{MESSAGES + 4}) {MESSAGES}:RC W={MESSAGES + 4}", ago=9000))
    root = root_of(tmp_path / "root", history)
    with counted(spark) as asked:
        result = reconciled(root, "--out", tmp_path / "out", "--as-of", AS_OF)
    assert result.exit_code == 1, result.output
    assert {"STUCK", "LOST"} <= set(summary(tmp_path / "out")["verdicts"])
    assert full_passes(asked) == 5
    assert asked.jobs <= 42
