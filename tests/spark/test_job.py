"""The job on Spark says what the oracle says, message by message."""

from __future__ import annotations

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.conftest import UNIVERSES
from tests.spark.fuzz import universe

from ackwise.spark.oracle import Ruling, rule

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", CASES)
def test_the_job_says_of_the_case_what_the_oracle_says(name: str, bulk: dict[str, Ruling]) -> None:
    assert bulk[name] == rule(CASES[name].history.events, CONFIG)


def test_the_job_says_of_every_universe_what_the_oracle_says(bulk: dict[str, Ruling]) -> None:
    different = {n: (bulk[universe(n).group], rule(universe(n).events, CONFIG)) for n in range(UNIVERSES)}
    different = {n: (a, b) for n, (a, b) in different.items() if a != b}
    n, (job, oracle) = next(iter(different.items()), (None, (None, None)))
    assert job == oracle, f"{len(different)} differ, the first is universe {n}"
