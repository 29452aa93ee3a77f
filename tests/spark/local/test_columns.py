"""Columns and frames of the local engine compute what PySpark's of the same name compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ackwise.spark.frames import F
from ackwise.spark.local.session import local_engine
from ackwise.spark.session.rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def local() -> Iterator[SparkSession]:
    with local_engine() as session:
        yield session


def of_one(local: SparkSession, column: Any, **values: Any) -> Any:
    """The value of a column in a row of longs and texts."""
    schema = ", ".join(f"{name} {'string' if isinstance(value, str) else 'long'}" for name, value in values.items())
    rows = rows_of(local, [tuple(values.values())], schema) if values else rows_of(local, [(1,)], "one long")
    return rows.select(column.alias("found")).collect()[0]["found"]


def test_bits_numbers_and_choices_are_those_of_pyspark(local: SparkSession) -> None:
    for number, place in ((1, 0), (1, 5), (1, 62), (1, 63), (-1, 0), (-1, 5), (-1, 63)):
        shifted = F.call_function("shiftleft", F.lit(number).cast("long"), F.col("place").cast("int"))
        assert of_one(local, shifted, place=place) == ((number << place) + 2**63) % 2**64 - 2**63, (number, place)
    assert of_one(local, F.bit_count("mask"), mask=-(2**63)) == of_one(local, F.getbit("mask", F.lit(63)), mask=-(2**63)) == 1
    whole = F.get_json_object("attrs", "$.seq").try_cast("long")
    assert [of_one(local, whole, attrs=attrs) for attrs in ('{"seq": 7}', '{"seq": "7"}')] == [7, 7]
    for attrs in ('{"seq": null}', '{"seq": 7.5}', '{"seq": 1e3}', '{"seq": 99999999999999999999}', "[1]", "5", "not JSON", ""):
        assert of_one(local, whole, attrs=attrs) is None, attrs
    assert of_one(local, F.col("a") / 2, a=3) == 1.5
    assert of_one(local, F.when(F.col("a") > 1, F.lit("one")), a=1) is None


def test_a_column_is_neither_true_nor_false() -> None:
    from ackwise.spark.local import functions

    with pytest.raises(TypeError, match="combine columns with"):
        assert functions.col("a") == 1
