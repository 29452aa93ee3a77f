"""One Spark session for all tests, and one job over all made-up histories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import write_parquet

from ackwise.spark.config import ReconcileConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackwise.spark.oracle import Ruling

UNIVERSES = 1500


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ackwise.spark.session import local_session

    with local_session(0) as session:
        yield session


@pytest.fixture(scope="session")
def bulk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ruling]:
    """What the job says of every named case and every universe, by group, from a single run."""
    from tests.spark.running import run

    histories = [case.history for case in CASES.values()] + [universe(number) for number in range(UNIVERSES)]
    path = write_parquet(tmp_path_factory.mktemp("bulk") / "events.parquet", (event for h in histories for event in h.events))
    return run(spark, [path], CONFIG)


@pytest.fixture(scope="session")
def config() -> ReconcileConfig:
    return CONFIG
