"""One Spark session for all tests, and one job over all made-up histories."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import write_parquet, write_produced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.running import Answer

UNIVERSES = 3000


#: Seconds for a test with Spark: two sessions on two busy cores, and all that a fixture judges. A session that is cut off is broken.
_PATIENCE = 1200


#: One session serves all tests of a process: what was compiled and what earlier tests keep alive stays in it.
_HEAP = "3g"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_PATIENCE))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ackwise.spark.session.spark import local_session

    with local_session(0, driver_memory=_HEAP) as session:
        yield session


@pytest.fixture(scope="session")
def bulk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What the job says of every named case and every universe, from a single run over events that were dealt to three files."""
    from tests.spark.running import run

    histories = [case.history for case in CASES.values()] + [universe(number) for number in range(UNIVERSES)]
    events = [event for history in histories for event in history.events]
    random.Random(3).shuffle(events)
    folder = tmp_path_factory.mktemp("bulk")
    produced = write_produced(folder / "produced.parquet", [row for history in histories for row in history.produced])
    return run(spark, [write_parquet(folder / f"{n}.parquet", events[n::3]) for n in range(3)], CONFIG, produced)
