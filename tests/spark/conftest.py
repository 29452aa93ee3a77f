"""One Spark session for all tests, the local engine beside it, and what each says of all made-up histories."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark import reconciling
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import write_produced
from tests.spark.joined import write_joined

from ackwise.stores.journal.runs import LONGEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.running import Answer

#: Made-up histories that Spark judges beside the cases. The local engine judges others, and more of them.
UNIVERSES = 200

#: Seconds for a test with Spark: two sessions on two busy cores, and all that a fixture judges. A session that is cut off is broken.
_PATIENCE = 1200

#: One session serves all tests of a process: what was compiled and what earlier tests keep alive stays in it.
_HEAP = "3g"

#: A test in either engine: the local one in each run, and Spark at night.
_ENGINES = ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.nightly])]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_PATIENCE))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ackwise.spark.session.spark import local_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with local_session(driver_memory=_HEAP) as session:
        yield session


@pytest.fixture(params=_ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine of runs that name none."""
    if request.param == "spark":
        request.getfixturevalue("spark")
        monkeypatch.setattr(reconciling, "default_engine", "spark")
    return str(request.param)


@pytest.fixture(scope="module", params=_ENGINES)
def session(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of either engine."""
    from ackwise.spark.local.session import local_engine

    if request.param == "spark":
        yield request.getfixturevalue("spark")
        return
    with local_engine() as made:
        yield made


@pytest.fixture(scope="module", params=_ENGINES)
def judging(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that judges: in this process, or in tasks of Spark."""
    from ackwise.spark.local.session import local_engine
    from ackwise.spark.session.tasks import in_tasks

    is_spark = request.param == "spark"
    with in_tasks(request.getfixturevalue("spark"), 0, tmp_path_factory.mktemp("tasks")) if is_spark else local_engine() as made:
        yield made


@pytest.fixture(scope="session")
def bulk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What tasks of Spark say of every named case and of some universes."""
    from ackwise.spark.session.tasks import in_tasks

    folder = tmp_path_factory.mktemp("bulk")
    with in_tasks(spark, 0, folder) as session:
        return judged(session, folder, range(UNIVERSES))


def judged(session: SparkSession, folder: Path, universes: Iterable[int]) -> Answer:
    """What a single run says of all cases and of these universes, from three files: each history is whole in one, or dealt to all."""
    from tests.spark.running import run

    histories = [case.history for case in CASES.values()] + [universe(number) for number in universes]
    draw, dealt = random.Random(3), list[list[Mapping[str, Any]]]([[], [], []])
    for history in histories:
        whole = draw.choice([None, draw.choice(dealt)])
        for event in history.events:
            (draw.choice(dealt) if whole is None else whole).append(event)
    produced = write_produced(folder / "produced.parquet", [row for history in histories for row in history.produced])
    files = [
        write_joined(folder / f"{n}.parquet", events, longest)
        for n, (events, longest) in enumerate(zip(dealt, (LONGEST, 3, 1), strict=True))
    ]
    rolled_on = {writer: boot_id for history in histories for writer, boot_id in history.rolled_on.items()}
    return run(session, files, CONFIG, produced, rolled_on=rolled_on)
