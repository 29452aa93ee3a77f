"""Where Spark runs: what the options mean, what executors must reach, and tables that are copied into a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.histories import History
from tests.spark.reconciling import root_of

from ackwise.middleware.errors import ConfigurationError
from ackwise.spark.session.engine import HEAP, LOCAL, engine_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_configuration_of_spark_is_given_as_spark_submit_takes_it_and_refused_without_its_value() -> None:
    conf = {"spark.executor.memory": "4g", "spark.app.name": "a=b"}
    assert engine_of(LOCAL, HEAP, [f"{name}={value}" for name, value in conf.items()]).conf == conf
    for setting in ("spark.executor.memory", "sesame=open", "=open"):
        with pytest.raises(ConfigurationError, match="write it as KEY=VALUE") as refused:
            engine_of(LOCAL, HEAP, [setting])
        assert "open" not in str(refused.value)


def test_under_spark_submit_the_master_is_that_of_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert engine_of(LOCAL, HEAP, []).conf == {}
    with pytest.raises(ConfigurationError, match="spark-submit has begun Spark; give --master and --driver-memory to it"):
        engine_of("spark://elsewhere:7077", HEAP, [])


def test_paths_that_executors_reach_are_probed_without_a_trace(tmp_path: Path, spark: SparkSession) -> None:
    from ackwise.spark.events.reach import probe

    root = root_of(tmp_path / "a [b] c", History("g").say("w1", "0:CS"))
    files = sorted(root.rglob("*.parquet"))
    (tmp_path / "out").mkdir()
    probe(spark, files, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_paths_that_executors_do_not_reach_are_named(tmp_path: Path, spark: SparkSession) -> None:
    from ackwise.spark.events.reach import probe

    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=rf"the executors can't read {tmp_path}/gone; mount it under the same path"):
        probe(spark, [tmp_path / "gone" / "events.parquet"], tmp_path)
    with pytest.raises(ConfigurationError, match=rf"the executors can't write to {tmp_path}/file; mount it under the same path"):
        probe(spark, [], tmp_path / "file")


def test_what_executors_write_to_disks_of_their_own_is_missed(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is empty for the driver, though all that was written there succeeded."""
    from ackwise.spark.events import reach

    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    with pytest.raises(ConfigurationError, match=r"what the executors write to .* is not there; mount it"):
        reach.probe(spark, [], tmp_path)


def test_a_session_of_small_audits_keeps_little_in_its_heap(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.buffer.pageSize") == "2m"
