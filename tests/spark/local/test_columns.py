"""Columns and frames of the local engine compute what PySpark's of the same name compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ackwise.spark.frames import F, Window
from ackwise.spark.local.session import local_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def local() -> Iterator[SparkSession]:
    with local_engine() as session:
        yield session


def of_one(local: SparkSession, column: Any, **values: Any) -> Any:
    """The value of a column in a row of longs and texts."""
    schema = ", ".join(f"{name} {'string' if isinstance(value, str) else 'long'}" for name, value in values.items())
    rows = local.createDataFrame([tuple(values.values())], schema) if values else local.createDataFrame([(1,)], "one long")
    return rows.select(column.alias("found")).collect()[0]["found"]


@pytest.mark.parametrize(("number", "place"), [(1, 0), (1, 5), (1, 62), (1, 63), (-1, 0), (-1, 5), (-1, 63)])
def test_a_shift_wraps_into_the_sign_as_javas_does(local: SparkSession, number: int, place: int) -> None:
    shifted = F.call_function("shiftleft", F.lit(number).cast("long"), F.col("place").cast("int"))
    wrapped = ((number << place) + 2**63) % 2**64 - 2**63
    assert of_one(local, shifted, place=place) == wrapped


def test_the_highest_bit_is_counted_and_found(local: SparkSession) -> None:
    assert of_one(local, F.bit_count("mask"), mask=-(2**63)) == 1
    assert of_one(local, F.getbit("mask", F.lit(63)), mask=-(2**63)) == 1
    assert of_one(local, F.shiftright("number", 6), number=-1) == -1


@pytest.mark.parametrize(
    ("attrs", "found"),
    [
        ('{"seq": 7}', 7), ('{"seq": "7"}', 7), ('{"seq": null}', None), ("{}", None), ('{"seq": 7.5}', None), ('{"seq": 1e3}', None),
        ('{"seq": 99999999999999999999}', None), ('{"seq": "x"}', None), ("[1]", None), ("5", None), ("not JSON", None), ("", None),
    ],
)  # fmt: skip
def test_only_a_whole_number_in_json_is_one(local: SparkSession, attrs: str, found: int | None) -> None:
    assert of_one(local, F.get_json_object("attrs", "$.seq").try_cast("long"), attrs=attrs) == found


def test_a_division_is_not_rounded_and_a_floor_is_a_whole_number(local: SparkSession) -> None:
    assert of_one(local, F.col("a") / 2, a=3) == 1.5
    floor = of_one(local, F.floor(F.col("a") / 2), a=3)
    assert (floor, type(floor)) == (1, int)
    assert of_one(local, F.expr("a DIV 16"), a=47) == 2


def test_a_choice_without_an_end_is_null_and_choices_may_be_within_others(local: SparkSession) -> None:
    inner = F.when(F.col("a") == 1, F.lit("one")).otherwise(F.lit("more"))
    assert of_one(local, F.when(F.col("a") > 1, inner), a=1) is None
    assert of_one(local, F.when(F.col("a") > 5, F.lit("many")).when(F.col("a") > 0, inner).otherwise(F.lit("CASE END")), a=2) == "more"
    assert of_one(local, F.when(F.col("a") > 5, F.lit("many")).otherwise(F.lit("it's the END")), a=2) == "it's the END"


def test_a_column_is_neither_true_nor_false() -> None:
    from ackwise.spark.local import functions

    with pytest.raises(TypeError, match="combine columns with"):
        assert functions.col("a") == 1


def test_frames_with_other_columns_are_not_put_together_unasked(local: SparkSession) -> None:
    one, two = local.createDataFrame([(1,)], "a long"), local.createDataFrame([(2,)], "b long")
    with pytest.raises(ValueError, match="different columns"):
        one.unionByName(two)
    assert sorted(map(tuple, one.unionByName(two, allowMissingColumns=True).collect()), key=str) == [(1, None), (None, 2)]


def test_joins_have_the_columns_of_pyspark_once(local: SparkSession) -> None:
    left = local.createDataFrame([(1, 10), (2, 20), (None, 30)], "k long, a long")
    right = local.createDataFrame([(2, 7), (3, 8), (None, 9)], "k long, b long")

    def joined(how: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = left.join(right, "k", how)
        return found.columns, sorted(map(tuple, found.collect()), key=str)

    assert joined("inner") == (["k", "a", "b"], [(2, 20, 7)])
    assert joined("left") == (["k", "a", "b"], [(1, 10, None), (2, 20, 7), (None, 30, None)])
    assert joined("left_semi") == (["k", "a"], [(2, 20)])
    assert joined("left_anti") == (["k", "a"], [(1, 10), (None, 30)])
    assert joined("full")[1] == [(1, 10, None), (2, 20, 7), (3, None, 8), (None, 30, None), (None, None, 9)]


def test_a_struct_is_a_row_within_a_row(local: SparkSession) -> None:
    rows = local.createDataFrame([(1, 10), (2, 20)], "a long, b long")
    other = local.createDataFrame([("x",)], "name string")
    both = rows.select(F.struct("a", "b").alias("of_0")).unionByName(other.select(F.struct("name").alias("of_1")), allowMissingColumns=True)
    found = both.collect()
    assert sorted(tuple(row["of_0"]) for row in found if row["of_0"] is not None) == [(1, 10), (2, 20)]
    assert [row["of_1"]["name"] for row in found if row["of_1"] is not None] == ["x"]


def test_nulls_come_first_in_an_order(local: SparkSession) -> None:
    rows = local.createDataFrame([("b",), (None,), ("a",)], "name string")
    assert [row["name"] for row in rows.orderBy("name").collect()] == [None, "a", "b"]
    place = F.row_number().over(Window.partitionBy("one").orderBy("name"))
    numbered = rows.withColumn("one", F.lit(1)).withColumn("place", place)
    assert {row["name"]: row["place"] for row in numbered.collect()} == {None: 1, "a": 2, "b": 3}


def test_what_is_persisted_is_computed_once_and_dropped_at_the_end(local: SparkSession) -> None:
    kept = local.createDataFrame([(1,), (2,)], "a long").withColumn("b", F.col("a") + 1).persist()
    assert [tuple(row) for row in kept.where("b > 2").collect()] == [(2, 3)]
    kept.unpersist()
    kept.unpersist()
    with pytest.raises(Exception, match="does not exist"):
        kept.collect()
