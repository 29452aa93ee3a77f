"""Events that were folded day by day, in any order, say what they say at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import write_parquet, write_produced

from ackwise.spark.oracle import rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.running import Answer

pytestmark = pytest.mark.spark

HISTORIES = [case.history for case in CASES.values()] + [universe(number) for number in range(400)]


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What three days say of every case and of many universes: one folded late, one not in the state, and some events in two."""
    from tests.spark.running import answer

    from ackwise.spark.delta import FoldedDeltas, delta_of, together
    from ackwise.spark.job import conclude
    from ackwise.spark.produced import read_produced
    from ackwise.spark.schema import EVENT_SCHEMA, project
    from ackwise.spark.state import opened

    folder, draw = tmp_path_factory.mktemp("kept"), random.Random(5)
    days: list[list[dict[str, Any]]] = [[], [], []]
    for history in HISTORIES:
        for event in history.events:
            for day in draw.sample(days, draw.choice([1, 1, 1, 2])):
                day.append(event)
    with opened(folder / "state", [folder]) as state:
        deltas = []
        for number in (1, 0, 2):
            path = write_parquet(folder / f"{number}.parquet", days[number])
            deltas.append(delta_of(spark, project(spark.read.schema(EVENT_SCHEMA).parquet(str(path)))))
            if number != 2:
                state.take(deltas[-1], f"2026-01-0{number + 1}", [path])
        folded = FoldedDeltas(spark, together([state.read(spark), deltas[-1]]))
        produced = write_produced(folder / "produced.parquet", [row for history in HISTORIES for row in history.produced])
        return answer(conclude(spark, folded, CONFIG, told=read_produced(spark, produced)))


def test_events_folded_day_by_day_say_what_the_oracle_says_of_them_at_once(kept: Answer) -> None:
    different = [h.group for h in HISTORIES if kept.rulings[h.group] != rule(h.events, CONFIG, produced=h.produced)]
    assert different == []


def test_books_of_events_folded_day_by_day_balance(kept: Answer) -> None:
    assert len(kept.books) > len(HISTORIES) / 2
    assert [book for book in kept.books if book.balance] == []
