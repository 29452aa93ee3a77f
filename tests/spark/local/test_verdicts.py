"""The local engine says what the oracle says, message by message. Needs no Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.fuzz import universe
from tests.spark.histories import SECOND, History, write_parquet, write_produced
from tests.spark.reference.test_oracle import check
from tests.spark.robbed import CONFIG as ROBBED
from tests.spark.robbed import night, robberies
from tests.spark.running import Answer, run

from ackwise.middleware.events import EventCode
from ackwise.spark.local.session import local_engine
from ackwise.spark.reference.oracle import rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Others than those that Spark judges.
UNIVERSES = range(3000, 4000)


@pytest.fixture(scope="module")
def local() -> Iterator[SparkSession]:
    with local_engine() as session:
        yield session


@pytest.fixture(scope="module")
def bulk(local: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """What the local engine says of every named case and every universe, from events that were dealt to three files."""
    histories = [case.history for case in CASES.values()] + [universe(number) for number in UNIVERSES]
    events = [event for history in histories for event in history.events]
    random.Random(3).shuffle(events)
    folder = tmp_path_factory.mktemp("bulk")
    produced = write_produced(folder / "produced.parquet", [row for history in histories for row in history.produced])
    return run(local, [write_parquet(folder / f"{n}.parquet", events[n::3]) for n in range(3)], CONFIG, produced)


@pytest.mark.parametrize("name", CASES)
def test_the_local_engine_says_of_the_case_what_the_oracle_says(name: str, bulk: Answer) -> None:
    check(CASES[name], bulk.rulings[name])
    assert bulk.rulings[name] == rule(CASES[name].history.events, CONFIG, produced=CASES[name].history.produced)


def test_the_local_engine_says_of_every_universe_what_the_oracle_says(bulk: Answer) -> None:
    histories = [universe(number) for number in UNIVERSES]
    different = [history for history in histories if bulk.rulings[history.group] != rule(history.events, CONFIG, produced=history.produced)]
    assert [history.group for history in different] == []


def test_the_books_of_every_universe_balance(bulk: Answer) -> None:
    assert len(bulk.books) > len(UNIVERSES) / 2
    assert [book for book in bulk.books if book.balance] == []


def test_the_local_engine_says_of_robbed_nights_what_the_oracle_says(local: SparkSession, tmp_path: Path) -> None:
    nights = [night(number) for number in range(12)]
    left = {each.group: each.left(robbery) for place, each in enumerate(nights) for robbery in [list(robberies(each))[-1 - place % 2]]}
    files = [write_parquet(tmp_path / f"{place}.parquet", events) for place, events in enumerate(left.values())]
    for last_commits in ([], [last for each in nights for last in each.last_commits]):
        found = run(local, files, ROBBED, last_commits=last_commits)
        for group, events in left.items():
            assert found.rulings[group] == rule(events, ROBBED, last_commits=last_commits)


def test_only_some_time_is_judged_as_the_oracle_judges_it(local: SparkSession, tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.spark.histories import NOW

    config = replace(CONFIG, since=NOW / SECOND - 1800)
    histories = [universe(number) for number in range(200)]
    events = [event for history in histories for event in history.events]
    found = run(local, [write_parquet(tmp_path / "events.parquet", events)], config)
    for history in histories:
        expected = rule(history.events, config)
        assert found.rulings[history.group].messages == expected.messages
        assert found.rulings[history.group].absent == expected.absent


def test_names_are_data_and_never_part_of_a_query(local: SparkSession, tmp_path: Path) -> None:
    odd = "o'; DROP TABLE x; --\"\\%s{}"
    history = History(odd, topic=odd, cluster=odd).assign("w1", 0).say("w1", "RECEIVED_RANGE[0,2) 0:CS 1:CFB W=2", handler=odd)
    history.send("w1", EventCode.PRODUCED, "id", 0, ago=5)
    found = run(local, [write_parquet(tmp_path / "events.parquet", history.events)], CONFIG)
    assert found.rulings[odd] == rule(history.events, CONFIG)
