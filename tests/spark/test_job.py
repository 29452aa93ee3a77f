"""The job on Spark says what the oracle says, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.cases import CASES, CONFIG
from tests.spark.conftest import UNIVERSES
from tests.spark.fuzz import universe

from ackwise.spark.oracle import rule
from ackwise.spark.vocabulary import Flag, LogicalVerdict, Verdict

if TYPE_CHECKING:
    from tests.spark.running import Answer

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", CASES)
def test_the_job_says_of_the_case_what_the_oracle_says(name: str, bulk: Answer) -> None:
    assert bulk.rulings[name] == rule(CASES[name].history.events, CONFIG)


def test_the_job_says_of_every_universe_what_the_oracle_says(bulk: Answer) -> None:
    histories = [universe(number) for number in range(UNIVERSES)]
    different = [history for history in histories if bulk.rulings[history.group] != rule(history.events, CONFIG)]
    assert [history.group for history in different] == []


def test_the_universes_have_every_verdict_and_every_flag(bulk: Answer) -> None:
    rulings = bulk.rulings.values()
    absent = {name for ruling in rulings for offsets in ruling.absent.values() for name in offsets.values()}
    assert {verdict for ruling in rulings for verdict, _ in ruling.messages.values()} | {Verdict[n] for n in absent - {"GAP"}} == set(
        Verdict
    )
    assert {verdict for ruling in rulings for verdict, _ in ruling.logical.values()} == set(LogicalVerdict)
    flags = {flag for ruling in rulings for _, each in (*ruling.messages.values(), *ruling.logical.values()) for flag in each}
    assert flags == set(Flag)


def test_the_books_of_every_universe_balance(bulk: Answer) -> None:
    assert len(bulk.books) > UNIVERSES / 2
    assert [book for book in bulk.books if book.balance] == []
