"""Numbers as words of 64, and ranges of them of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ackwise.spark.events.bitmap import count, fold_words, spans, stretches, with_mask
from ackwise.spark.events.schema import FARTHEST, instant
from ackwise.spark.fold.facts import Committed, View
from ackwise.spark.frames import F
from ackwise.spark.judge.clean import excluded
from ackwise.spark.local.session import local_engine
from ackwise.spark.session.rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END = 2**61


@pytest.fixture(scope="module")
def local() -> Iterator[SparkSession]:
    with local_engine() as session:
        yield session


def test_a_range_of_any_length_is_a_few_rows(local: SparkSession) -> None:
    rows = [(1, "here", 5, END), (1, "there", 0, 3), (1, "there", 2**40, 2**40 + 200), (2, "here", 63, 65), (2, "there", 9, 9)]
    words = fold_words([spans(rows_of(local, rows, "key long, kind string, start long, end long"))], ["here", "there"])
    assert len(words.collect()) < 12
    classes = {"only": F.col("here").bitwiseAND(F.bitwise_not("there")), "both": F.col("here").bitwiseAND(F.col("there"))}
    assert {row["key"]: (row["only"], row["both"]) for row in count(words, classes).collect()} == {1: (END - 5 - 200, 200), 2: (2, 0)}
    found = {(row["key"], row["class"], row["start"], row["end"]) for row in stretches(words, classes).collect()}
    assert found == {(1, "only", 5, 2**40), (1, "both", 2**40, 2**40 + 200), (1, "only", 2**40 + 200, END), (2, "only", 63, 65)}


def test_messages_that_a_commit_went_back_over_or_a_dead_worker_left_open_are_excluded_whatever_the_distance(local: SparkSession) -> None:
    views, commits = [View(7, 1, ("c", "g"), "bill", 0)], {1: Committed(1, 9, None, ((10, END),))}
    left_open = rows_of(local, [(7, 0, 1, 4)], "mk long, word long, words long, mask long")
    against = excluded(local, views, commits, [left_open])
    asked = rows_of(local, [(7, 0), (7, 2**40), (7, END >> 6), (8, 0)], "mk long, word long")
    found = {(row["mk"], row["word"]): row["mask"] for row in with_mask(asked, against).collect()}
    assert found == {(7, 0): -(2**10) | 4, (7, 2**40): -1, (7, END >> 6): 0, (8, 0): 0}


def test_a_time_beyond_all_is_the_farthest(local: SparkSession) -> None:
    given = rows_of(local, [(2**63 - 1,), (1 - 2**63,), (2**62,), (5,), (None,)], "time timestamp")
    assert [row["at"] for row in given.select(instant("time").alias("at")).collect()] == [FARTHEST, -FARTHEST, FARTHEST, 5, None]
